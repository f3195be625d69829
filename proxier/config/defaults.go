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

// kube-proxy's defaults (v1.36). Each is named in its documentation.
const (
	healthzPort          = 10256
	metricsPort          = 10249
	defaultMasqueradeBit = 14
	defaultOOMScoreAdj   = -999
	defaultSyncPeriod    = 30 * time.Second
	defaultResync        = 15 * time.Minute
	defaultMaxPerCore    = 32 * 1024
	defaultConntrackMin  = 128 * 1024
	defaultEstablished   = 24 * time.Hour
	defaultCloseWait     = time.Hour
	defaultContentType   = "application/vnd.kubernetes.protobuf"
	defaultQPS           = 5
	defaultBurst         = 10
)

// NodePort keywords of nodePortAddresses. kube-proxy v1.36 has only the first;
// v1.37 has all three.
const (
	keywordPrimary   = "primary"
	keywordLocalhost = "localhost"
	keywordAll       = "all"
)

// setDefaults fills what is unset, as kube-proxy does. Two things differ:
// minSyncPeriod stays 0 (kube-proxy: 1 s), because a pause between transactions
// buys nothing here, and what mode decides is left to resolve.
func setDefaults(k *kubeproxyconfig.KubeProxyConfiguration) {
	orString(&k.BindAddress, "0.0.0.0")
	setAddressDefaults(k)
	setClientDefaults(k)
	setConntrackDefaults(&k.Conntrack)
	orInt32(&k.OOMScoreAdj, defaultOOMScoreAdj)
	for _, period := range []*metav1.Duration{&k.IPTables.SyncPeriod, &k.IPVS.SyncPeriod, &k.NFTables.SyncPeriod} {
		orDuration(&period.Duration, defaultSyncPeriod)
	}
	orDuration(&k.ConfigSyncPeriod.Duration, defaultResync)
	if k.IPTables.LocalhostNodePorts == nil {
		yes := true
		k.IPTables.LocalhostNodePorts = &yes
	}
	orInt32(&k.IPTables.MasqueradeBit, defaultMasqueradeBit)
	orInt32(&k.NFTables.MasqueradeBit, defaultMasqueradeBit)
	if k.FeatureGates == nil {
		k.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&k.Logging)
}

// setAddressDefaults fills the addresses of the servers: in IPv6 form when
// bindAddress is IPv6 or, as in kube-proxy, not an address at all.
func setAddressDefaults(k *kubeproxyconfig.KubeProxyConfiguration) {
	any, loopback := "0.0.0.0", "127.0.0.1"
	if a, ok := parseAddr(k.BindAddress); !ok || a.Is6() {
		any, loopback = "::", "::1"
	}
	orString(&k.HealthzBindAddress, net.JoinHostPort(any, strconv.Itoa(healthzPort)))
	orString(&k.MetricsBindAddress, net.JoinHostPort(loopback, strconv.Itoa(metricsPort)))
	k.HealthzBindAddress = withPort(k.HealthzBindAddress, healthzPort)
	k.MetricsBindAddress = withPort(k.MetricsBindAddress, metricsPort)
}

func setClientDefaults(k *kubeproxyconfig.KubeProxyConfiguration) {
	orString(&k.ClientConnection.ContentType, defaultContentType)
	if k.ClientConnection.QPS == 0 {
		k.ClientConnection.QPS = defaultQPS
	}
	if k.ClientConnection.Burst == 0 {
		k.ClientConnection.Burst = defaultBurst
	}
}

func setConntrackDefaults(ct *kubeproxyconfig.KubeProxyConntrackConfiguration) {
	orInt32(&ct.MaxPerCore, defaultMaxPerCore)
	orInt32(&ct.Min, defaultConntrackMin)
	if ct.TCPEstablishedTimeout == nil {
		ct.TCPEstablishedTimeout = &metav1.Duration{Duration: defaultEstablished}
	}
	if ct.TCPCloseWaitTimeout == nil {
		ct.TCPCloseWaitTimeout = &metav1.Duration{Duration: defaultCloseWait}
	}
}

func orString(s *string, or string) {
	if *s == "" {
		*s = or
	}
}

func orDuration(d *time.Duration, or time.Duration) {
	if *d == 0 {
		*d = or
	}
}

func orInt32(i **int32, or int32) {
	if *i == nil {
		*i = &or
	}
}

// localModes lists the accepted values of detectLocalMode beside empty.
func localModes() []string {
	return []string{string(LocalByClusterCIDR), string(LocalByNodeCIDR), string(LocalByBridge), string(LocalByPrefix)}
}
