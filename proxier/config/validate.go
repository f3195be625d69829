// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// modeNFTables is the only proxy mode there is.
const modeNFTables = "nftables"

// ifNameMax is IFNAMSIZ - 1: the longest name of an interface.
const ifNameMax = 15

var majorMinor = regexp.MustCompile(`^\d+\.\d+$`)

// checks parses settings and collects what is wrong with them.
type checks struct{ errs field.ErrorList }

// that records an error unless ok.
func (c *checks) that(ok bool, path *field.Path, value any, must string) {
	if !ok {
		c.errs = append(c.errs, field.Invalid(path, value, must))
	}
}

func (c *checks) between(v, low, high int, path *field.Path) {
	c.that(v >= low && v <= high, path, v, "must be from "+strconv.Itoa(low)+" to "+strconv.Itoa(high))
}

// kube checks a defaulted KubeProxyConfiguration by kube-proxy's rules for nftables mode. Sections of other modes are
// ignored.
func (c *checks) kube(k *kubeproxyconfig.KubeProxyConfiguration, root *field.Path) {
	c.that(k.Mode == "" || k.Mode == modeNFTables, root.Child("mode"), string(k.Mode),
		`nftproxy has the mode "nftables" only: set it, or leave the mode empty; `+
			"settings for another mode (iptables, ipvs) do not carry over; to keep that mode, run kube-proxy on this node")
	n, nftables := k.NFTables, root.Child("nftables")
	c.between(int(*n.MasqueradeBit), 0, 31, nftables.Child("masqueradeBit"))
	c.that(n.SyncPeriod.Duration > 0, nftables.Child("syncPeriod"), n.SyncPeriod.Duration.String(), "must be greater than 0")
	c.that(n.MinSyncPeriod.Duration >= 0, nftables.Child("minSyncPeriod"), n.MinSyncPeriod.Duration.String(), "must not be negative")
	c.that(n.MinSyncPeriod.Duration <= n.SyncPeriod.Duration, nftables.Child("syncPeriod"), n.SyncPeriod.Duration.String(),
		"must not be less than minSyncPeriod "+n.MinSyncPeriod.Duration.String())
	ct := k.Conntrack
	for _, v := range []struct {
		key   string
		value int64
	}{
		{"maxPerCore", int64(*ct.MaxPerCore)}, {"min", int64(*ct.Min)},
		{"tcpEstablishedTimeout", int64(ct.TCPEstablishedTimeout.Duration)}, {"tcpCloseWaitTimeout", int64(ct.TCPCloseWaitTimeout.Duration)},
		{"udpTimeout", int64(ct.UDPTimeout.Duration)}, {"udpStreamTimeout", int64(ct.UDPStreamTimeout.Duration)},
	} {
		c.that(v.value >= 0, root.Child("conntrack", v.key), v.value, "must not be negative")
	}
	c.between(int(*k.OOMScoreAdj), -1000, 1000, root.Child("oomScoreAdj"))
	c.that(k.ClientConnection.Burst >= 0, root.Child("clientConnection", "burst"), k.ClientConnection.Burst, "must not be negative")
	c.that(k.ConfigSyncPeriod.Duration > 0, root.Child("configSyncPeriod"), k.ConfigSyncPeriod.Duration.String(), "must be greater than 0")
	_, ok := parseAddr(k.BindAddress)
	c.that(ok, root.Child("bindAddress"), k.BindAddress, "must be an IP address")
	c.bind(k.HealthzBindAddress, root.Child("healthzBindAddress"))
	c.bind(k.MetricsBindAddress, root.Child("metricsBindAddress"))
	v := k.ShowHiddenMetricsForVersion
	c.that(v == "" || majorMinor.MatchString(v), root.Child("showHiddenMetricsForVersion"), v, "must be MAJOR.MINOR")
}

// bind checks an IP:port; empty means disabled.
func (c *checks) bind(s string, path *field.Path) {
	if s == "" {
		return
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		c.that(false, path, s, "must be IP:port")
		return
	}
	c.that(netutils.ParseIPSloppy(host) != nil, path, host, "must be an IP address")
	_, err = netutils.ParsePort(port, false)
	c.that(err == nil, path, port, "must be a port from 1 to 65535")
}

// nodePorts parses nodePortAddresses: CIDRs and keywords in any mix, as v1.37 takes them (v1.36 refuses the keyword
// primary beside CIDRs). A range inside the loopback networks (127.0.0.0/8 and longer, ::1/128) means localhost.
func (c *checks) nodePorts(list []string, path *field.Path) NodePortAddresses {
	var n NodePortAddresses
	for i, s := range list {
		p, ok := parsePrefix(s)
		switch {
		case s == keywordPrimary:
			n.Primary = true
		case s == keywordLocalhost, p.Addr().IsLoopback() && p.Bits() >= 8 && (p.Addr().Is4() || p.Bits() == 128):
			n.Localhost = true
		case s == keywordAll:
			n.All = true
		case !ok:
			c.that(false, path.Index(i), s, "must be a CIDR or one of primary, localhost, all")
		case !slices.Contains(n.CIDRs, p):
			n.CIDRs = append(n.CIDRs, p)
		}
	}
	return n
}

// externalIPs parses externalIPs.allow: CIDRs, or one of the keywords alone. An empty list allows nothing.
func (c *checks) externalIPs(list []string, path *field.Path) ExternalIPs {
	var e ExternalIPs
	for i, s := range list {
		if s == keywordAll || s == keywordNone {
			e.All = s == keywordAll
			c.that(len(list) == 1, path.Index(i), s, "must be alone in the list")
			continue
		}
		p, ok := parsePrefix(s)
		c.that(ok, path.Index(i), s, "must be a CIDR, or all or none alone")
		e.CIDRs = append(e.CIDRs, p)
	}
	return e
}

// detectLocal parses the detector and checks what the chosen mode needs.
func (c *checks) detectLocal(k *kubeproxyconfig.KubeProxyConfiguration, root *field.Path) DetectLocal {
	d := DetectLocal{Mode: LocalMode(k.DetectLocalMode)}
	orValue(&d.Mode, LocalByClusterCIDR)
	key := ""
	switch d.Mode {
	case LocalByClusterCIDR:
		d.CIDRs = c.clusterCIDR(k.ClusterCIDR, root.Child("clusterCIDR"))
		return d
	case LocalByNodeCIDR:
		return d
	case LocalByBridge:
		d.Interface, key = k.DetectLocal.BridgeInterface, "bridgeInterface"
	case LocalByPrefix:
		d.Interface, key = k.DetectLocal.InterfaceNamePrefix, "interfaceNamePrefix"
	default:
		c.errs = append(c.errs, field.NotSupported(root.Child("detectLocalMode"), string(d.Mode), localModes()))
		return d
	}
	path := root.Child("detectLocal", key)
	if d.Interface == "" {
		c.errs = append(c.errs, field.Required(path, "detectLocalMode "+string(d.Mode)+" needs it"))
	}
	c.that(len(d.Interface) <= ifNameMax, path, d.Interface, "names of interfaces have at most "+strconv.Itoa(ifNameMax)+" bytes")
	return d
}

// clusterCIDR parses one CIDR, or one of each family, comma separated.
func (c *checks) clusterCIDR(list string, path *field.Path) (out []netip.Prefix) {
	if list == "" {
		return nil
	}
	count := map[bool]int{} // by being IPv6
	for _, s := range strings.Split(list, ",") {
		p, ok := parsePrefix(s)
		c.that(ok, path, s, "must be a CIDR, such as 10.244.0.0/16 or fd00:10:244::/56")
		out = append(out, p)
		count[p.Addr().Is6()]++
	}
	c.that(count[false] <= 1 && count[true] <= 1, path, list, "must be one CIDR, or one per family")
	return out
}
