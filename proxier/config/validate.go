// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// modeNFTables is the only proxy mode there is.
const modeNFTables = "nftables"

// ifNameMax is IFNAMSIZ - 1: the longest name of an interface.
const ifNameMax = 15

// validateKube checks a defaulted KubeProxyConfiguration by kube-proxy's rules
// for nftables mode. Sections of other modes are not looked at.
func validateKube(k *kubeproxyconfig.KubeProxyConfiguration) field.ErrorList {
	root := field.NewPath(kubeKind)
	var errs field.ErrorList
	errs = append(errs, validateMode(string(k.Mode), root.Child("mode"))...)
	errs = append(errs, validateNFTables(k.NFTables, root.Child("nftables"))...)
	errs = append(errs, validateConntrack(k.Conntrack, root.Child("conntrack"))...)
	errs = append(errs, between(int(*k.OOMScoreAdj), -1000, 1000, root.Child("oomScoreAdj"))...)
	errs = append(errs, notNegative(int64(k.ClientConnection.Burst), root.Child("clientConnection", "burst"))...)
	errs = append(errs, positive(k.ConfigSyncPeriod.Duration, root.Child("configSyncPeriod"))...)
	if _, ok := parseAddr(k.BindAddress); !ok {
		errs = append(errs, field.Invalid(root.Child("bindAddress"), k.BindAddress, "must be an IP address"))
	}
	errs = append(errs, validateBind(k.HealthzBindAddress, root.Child("healthzBindAddress"))...)
	errs = append(errs, validateBind(k.MetricsBindAddress, root.Child("metricsBindAddress"))...)
	errs = append(errs, validateNodePorts(k.NodePortAddresses, root.Child("nodePortAddresses"))...)
	errs = append(errs, validateDetectLocal(k, root)...)
	if v := k.ShowHiddenMetricsForVersion; v != "" && !regexp.MustCompile(`^\d+\.\d+$`).MatchString(v) {
		errs = append(errs, field.Invalid(root.Child("showHiddenMetricsForVersion"), v, "must be MAJOR.MINOR"))
	}
	return errs
}

// validateMode says what to do about a mode that nftproxy does not have.
func validateMode(mode string, path *field.Path) field.ErrorList {
	if mode == "" || mode == modeNFTables {
		return nil
	}
	return field.ErrorList{field.Invalid(path, mode,
		`nftproxy has the mode "nftables" only: set it, or leave the mode empty; `+
			"settings for another mode (iptables, ipvs) do not carry over; to keep that mode, run kube-proxy on this node")}
}

func validateNFTables(n kubeproxyconfig.KubeProxyNFTablesConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, between(int(*n.MasqueradeBit), 0, 31, path.Child("masqueradeBit"))...)
	errs = append(errs, positive(n.SyncPeriod.Duration, path.Child("syncPeriod"))...)
	errs = append(errs, notNegative(int64(n.MinSyncPeriod.Duration), path.Child("minSyncPeriod"))...)
	if n.MinSyncPeriod.Duration > n.SyncPeriod.Duration {
		errs = append(errs, field.Invalid(path.Child("syncPeriod"), n.SyncPeriod.Duration.String(),
			"must not be less than minSyncPeriod "+n.MinSyncPeriod.Duration.String()))
	}
	return errs
}

func validateConntrack(ct kubeproxyconfig.KubeProxyConntrackConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, notNegative(int64(*ct.MaxPerCore), path.Child("maxPerCore"))...)
	errs = append(errs, notNegative(int64(*ct.Min), path.Child("min"))...)
	errs = append(errs, notNegative(int64(ct.TCPEstablishedTimeout.Duration), path.Child("tcpEstablishedTimeout"))...)
	errs = append(errs, notNegative(int64(ct.TCPCloseWaitTimeout.Duration), path.Child("tcpCloseWaitTimeout"))...)
	errs = append(errs, notNegative(int64(ct.UDPTimeout.Duration), path.Child("udpTimeout"))...)
	errs = append(errs, notNegative(int64(ct.UDPStreamTimeout.Duration), path.Child("udpStreamTimeout"))...)
	return errs
}

// validateBind checks an IP:port; empty means disabled.
func validateBind(s string, path *field.Path) field.ErrorList {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return field.ErrorList{field.Invalid(path, s, "must be IP:port")}
	}
	var errs field.ErrorList
	if netutils.ParseIPSloppy(host) == nil {
		errs = append(errs, field.Invalid(path, host, "must be an IP address"))
	}
	if p, err := strconv.Atoi(port); err != nil || p < 1 || p > 65535 {
		errs = append(errs, field.Invalid(path, port, "must be a port from 1 to 65535"))
	}
	return errs
}

// validateNodePorts takes CIDRs and keywords in any mix, as v1.37 does (v1.36
// refuses the keyword primary beside CIDRs).
func validateNodePorts(list []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range list {
		switch s {
		case keywordPrimary, keywordLocalhost, keywordAll:
			continue
		}
		if _, ok := parsePrefix(s); !ok {
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a CIDR or one of primary, localhost, all"))
		}
	}
	return errs
}

// validateDetectLocal checks what the chosen mode needs.
func validateDetectLocal(k *kubeproxyconfig.KubeProxyConfiguration, root *field.Path) field.ErrorList {
	section := root.Child("detectLocal")
	switch LocalMode(k.DetectLocalMode) {
	case LocalByBridge:
		return validateInterface(k.DetectLocal.BridgeInterface, section.Child("bridgeInterface"))
	case LocalByPrefix:
		return validateInterface(k.DetectLocal.InterfaceNamePrefix, section.Child("interfaceNamePrefix"))
	case LocalByClusterCIDR, "":
		return validateClusterCIDR(k.ClusterCIDR, root.Child("clusterCIDR"))
	case LocalByNodeCIDR:
		return nil
	}
	return field.ErrorList{field.NotSupported(root.Child("detectLocalMode"), string(k.DetectLocalMode), localModes())}
}

// validateClusterCIDR wants one CIDR, or one of each family.
func validateClusterCIDR(list string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	families := map[bool]int{}
	for _, s := range splitCIDRs(list) {
		p, ok := parsePrefix(s)
		if !ok {
			errs = append(errs, field.Invalid(path, s, "must be a CIDR, such as 10.244.0.0/16 or fd00:10:244::/56"))
			continue
		}
		families[p.Addr().Is6()]++
	}
	if families[false] > 1 || families[true] > 1 {
		errs = append(errs, field.Invalid(path, list, "must be one CIDR, or one per family"))
	}
	return errs
}

// splitCIDRs splits a comma list; the empty string is no CIDR.
func splitCIDRs(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func validateInterface(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "detectLocalMode needs it")}
	}
	if len(name) > ifNameMax {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("names of interfaces have at most %d bytes", ifNameMax))}
	}
	return nil
}

func between(v, low, high int, path *field.Path) field.ErrorList {
	if v >= low && v <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("must be from %d to %d", low, high))}
}

func positive(d time.Duration, path *field.Path) field.ErrorList {
	if d > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d.String(), "must be greater than 0")}
}

func notNegative(v int64, path *field.Path) field.ErrorList {
	if v >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, v, "must not be negative")}
}
