// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package config turns kube-proxy's command line and configuration file, and
// nftproxy's own settings, into one plain value.
//
// It reads KubeProxyConfiguration v1alpha1 as kube-proxy does (strictly, then
// leniently with a warning) and a document of its own kind beside it. Nothing
// here looks at the clock, the environment or the kernel; what the machine has
// to say (its host name) is passed in.
package config

import (
	"net/netip"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// Config is everything the proxy is told from outside, parsed, defaulted and
// validated. It is a value: nobody changes it once Load has returned it.
type Config struct {
	// NodeName is the name of our own Node object: the override, else the host
	// name, trimmed and in lower case (Node names are DNS labels).
	NodeName string
	// NodeIP overrides the node's primary address of its family; the zero Addr
	// means that the Node object's addresses are used.
	NodeIP netip.Addr
	// Client says how the API server is reached.
	Client Client
	// Manifests is a directory of manifest files that replaces the API server
	// as the source of objects; empty means the API server.
	Manifests string
	// ConfigSyncPeriod is the resync period of the sources.
	ConfigSyncPeriod time.Duration

	// MasqueradeBit (0 to 31) is the bit of the packet mark that asks for
	// masquerade. See Config.MasqueradeMark.
	MasqueradeBit int
	// MasqueradeAll masquerades every new connection to a ClusterIP.
	MasqueradeAll bool
	// DetectLocal says which traffic comes from pods of this node.
	DetectLocal DetectLocal
	// NodePorts says on which addresses of the node NodePorts are served.
	NodePorts NodePortAddresses

	// SyncPeriod is how long a failed sync waits for its retry at most, and
	// half the age at which an unapplied change makes the proxy unhealthy.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two transactions, 0 when nothing
	// was configured: the ruleset does not need a pause (kube-proxy: 1 s).
	MinSyncPeriod time.Duration

	// Healthz and Metrics are the two servers.
	Healthz, Metrics Bind
	// BindHardFail makes it fatal when one of them cannot listen.
	BindHardFail bool
	// Profiling serves /debug/pprof and /debug/flags/v on the metrics server.
	Profiling bool
	// ShowHiddenMetricsFor is a Kubernetes release ("1.36") whose hidden
	// metrics are shown; empty shows none.
	ShowHiddenMetricsFor string

	// Conntrack are the limits and timeouts written at start.
	Conntrack sysctl.Conntrack
	// OOMScoreAdj is the process's oom_score_adj; nil leaves it alone.
	OOMScoreAdj *int
	// FeatureGates are as given; nftproxy has none of its own and tolerates all.
	FeatureGates map[string]bool
	// Logging is applied by the command with component-base.
	Logging logsapi.LoggingConfiguration

	// Own are the settings that kube-proxy does not have.
	Own Own

	// External is the defaulted KubeProxyConfiguration, for /configz and
	// --write-config-to. Read only.
	External *kubeproxyconfig.KubeProxyConfiguration
	// OwnExternal is the defaulted document of our own settings. Read only.
	OwnExternal *NFTProxyConfiguration
	// Warnings are to be logged once logging is set up: settings without
	// meaning here, unknown fields that only the lenient decoder accepted.
	Warnings []string
}

// MasqueradeMark is the packet mark that asks for masquerade: one bit, in host
// byte order.
func (c *Config) MasqueradeMark() uint32 { return 1 << c.MasqueradeBit }

// UnhealthyAfter is the age of the oldest unapplied change from which on the
// proxy calls itself unhealthy; twice the sync period, as in kube-proxy.
func (c *Config) UnhealthyAfter() time.Duration { return 2 * c.SyncPeriod }

// Client is how the API server is reached. With neither Kubeconfig nor Master
// the in-cluster credentials are used.
type Client struct {
	Kubeconfig         string  // path; empty: none
	Master             string  // URL that overrides the kubeconfig's server
	ContentType        string  // of requests, default protobuf
	AcceptContentTypes string  // of answers; empty: chosen by the client
	QPS                float32 // steady rate of requests per second
	Burst              int     // requests above the rate
}

// LocalMode is how traffic of local pods is told from all other.
type LocalMode string

// The modes of kube-proxy's detectLocalMode.
const (
	// LocalByClusterCIDR takes every source address inside DetectLocal.CIDRs.
	LocalByClusterCIDR LocalMode = "ClusterCIDR"
	// LocalByNodeCIDR takes the node's own pod CIDRs (Node.spec.podCIDRs),
	// which the loop has to fetch.
	LocalByNodeCIDR LocalMode = "NodeCIDR"
	// LocalByBridge takes packets that arrive on DetectLocal.Interface.
	LocalByBridge LocalMode = "BridgeInterface"
	// LocalByPrefix takes packets that arrive on an interface whose name
	// begins with DetectLocal.Interface.
	LocalByPrefix LocalMode = "InterfaceNamePrefix"
)

// DetectLocal is the detector of local traffic.
type DetectLocal struct {
	Mode LocalMode
	// CIDRs, at most one per family, for LocalByClusterCIDR; a family without
	// one has no detector. Masked, never IPv4-mapped.
	CIDRs []netip.Prefix
	// Interface is the name (LocalByBridge) or prefix (LocalByPrefix) of the
	// interface, at most 15 bytes (IFNAMSIZ - 1).
	Interface string
}

// CIDR returns the detector's prefix of one family, and whether there is one.
func (d DetectLocal) CIDR(ipv6 bool) (netip.Prefix, bool) {
	for _, p := range d.CIDRs {
		if p.Addr().Is6() == ipv6 {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// NodePortAddresses says on which of the node's addresses NodePorts are served.
// The parts add up. The empty value does not occur: Primary is the default.
type NodePortAddresses struct {
	// Primary takes the node's primary address of each family. While that
	// address is unknown every non-loopback address of the family is taken
	// (kube-proxy: likewise).
	Primary bool
	// Localhost takes loopback addresses of both families.
	Localhost bool
	// All takes every non-loopback address of both families.
	All bool
	// CIDRs are further ranges. As in kube-proxy, ranges of one family only
	// leave the other family open unless a keyword covers it: see Family.
	CIDRs []netip.Prefix
}

// FamilyAddresses is NodePortAddresses seen from one family.
type FamilyAddresses struct {
	Primary, Localhost, All bool
	CIDRs                   []netip.Prefix
}

// Family narrows to one family. CIDRs of the other family only, without a
// keyword, mean all addresses of this one: kube-proxy puts 0.0.0.0/0 or ::/0
// there. A zero range counts as All.
func (n NodePortAddresses) Family(ipv6 bool) FamilyAddresses {
	f := FamilyAddresses{Primary: n.Primary, Localhost: n.Localhost, All: n.All}
	for _, p := range n.CIDRs {
		switch {
		case p.Addr().Is6() != ipv6:
		case p.Bits() == 0:
			f.All = true
		default:
			f.CIDRs = append(f.CIDRs, p)
		}
	}
	if !f.Primary && !f.Localhost && !f.All && len(f.CIDRs) == 0 {
		f.All = true
	}
	return f
}

// Bind is the address of one of our HTTP servers.
type Bind struct {
	// Addr is host:port as net.Listen takes it; empty disables the server.
	Addr string
}

// Enabled reports whether the server is wanted.
func (b Bind) Enabled() bool { return b.Addr != "" }
