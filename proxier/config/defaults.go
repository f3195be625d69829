// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

// kube-proxy's defaults (v1.36) that are needed more than once.
const (
	defaultBindAddress   = "0.0.0.0"
	healthzPort          = 10256
	metricsPort          = 10249
	defaultMasqueradeBit = 14
	defaultSyncPeriod    = 30 * time.Second
)

// Keywords of nodePortAddresses (kube-proxy v1.36 has only the first, v1.37 the first three) and of externalIPs.allow
// (the last two).
const (
	keywordPrimary   = "primary"
	keywordLocalhost = "localhost"
	keywordAll       = "all"
	keywordNone      = "none"
)

// setDefaults fills what is unset, as kube-proxy does. Two things differ: minSyncPeriod stays 0 (kube-proxy: 1 s),
// because a pause between transactions has no benefit here, and what depends on the mode is left to resolve.
func setDefaults(k *kubeproxyconfig.KubeProxyConfiguration) {
	orValue(&k.BindAddress, defaultBindAddress)
	// In IPv6 form when bindAddress is IPv6 or, as in kube-proxy, no address at all.
	any, loopback := defaultBindAddress, "127.0.0.1"
	if a, ok := parseAddr(k.BindAddress); !ok || a.Is6() {
		any, loopback = "::", "::1"
	}
	orValue(&k.HealthzBindAddress, net.JoinHostPort(any, strconv.Itoa(healthzPort)))
	orValue(&k.MetricsBindAddress, net.JoinHostPort(loopback, strconv.Itoa(metricsPort)))
	k.HealthzBindAddress = withPort(k.HealthzBindAddress, healthzPort)
	k.MetricsBindAddress = withPort(k.MetricsBindAddress, metricsPort)

	orValue(&k.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orValue(&k.ClientConnection.QPS, 5)
	orValue(&k.ClientConnection.Burst, 10)

	ct := &k.Conntrack
	orPointer(&ct.MaxPerCore, 32*1024)
	orPointer(&ct.Min, 128*1024)
	orPointer(&ct.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orPointer(&ct.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})

	for _, period := range []*metav1.Duration{&k.IPTables.SyncPeriod, &k.IPVS.SyncPeriod, &k.NFTables.SyncPeriod} {
		orValue(&period.Duration, defaultSyncPeriod)
	}
	orValue(&k.ConfigSyncPeriod.Duration, 15*time.Minute)
	orPointer(&k.IPTables.LocalhostNodePorts, true)
	orPointer(&k.IPTables.MasqueradeBit, defaultMasqueradeBit)
	orPointer(&k.NFTables.MasqueradeBit, defaultMasqueradeBit)
	orPointer(&k.OOMScoreAdj, -999)
	if k.FeatureGates == nil {
		k.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&k.Logging)
}

// orValue sets a zero value to a default.
func orValue[T comparable](v *T, or T) {
	var zero T
	if *v == zero {
		*v = or
	}
}

// orPointer sets a nil pointer to a default of its own.
func orPointer[T any](v **T, or T) {
	if *v == nil {
		*v = &or
	}
}

// localModes lists the accepted values of detectLocalMode beside empty.
func localModes() []string {
	return []string{string(LocalByClusterCIDR), string(LocalByNodeCIDR), string(LocalByBridge), string(LocalByPrefix)}
}
