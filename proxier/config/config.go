// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package config turns kube-proxy's command line and configuration file, and nftproxy's own settings, into one
// validated value.
//
// In come parsed flags and files: KubeProxyConfiguration v1alpha1, decoded as kube-proxy does it (strictly, then
// leniently with a warning), and a document of nftproxy's own kind, decoded strictly. Out comes a Config, or an error
// with one line per wrong setting. Watcher reports that a file has changed.
//
// Load never looks at the clock, the environment or the kernel: the host name and the files are read through Machine.
// Defaults and validation are our own, because those of kube-proxy are in k8s.io/kubernetes, which cannot be imported.
package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// Config is the whole configuration: parsed, defaulted and validated. It is a value that does not change after Load has
// returned it.
type Config struct {
	// NodeName is the name of the proxy's own Node object: the override, else the host name, trimmed and in lower case
	// (Node names are DNS subdomains).
	NodeName string
	// NodeIP overrides the node's primary address of its family; the zero Addr means that the Node object's addresses
	// are used.
	NodeIP netip.Addr
	// Client is how the API server is reached.
	Client Client
	// Manifests is a directory of manifest files that replaces the API server as the source of objects; empty means the
	// API server.
	Manifests string

	// MasqueradeBit (0 to 31) is the bit of the packet mark that requests masquerading.
	MasqueradeBit int
	// MasqueradeAll masquerades every new connection to a ClusterIP.
	MasqueradeAll bool
	// DetectLocal is the detector of traffic from pods.
	DetectLocal DetectLocal
	// NodePorts are the addresses of the node on which NodePorts are served.
	NodePorts NodePortAddresses
	// ExternalIPs are the addresses that Services may have in spec.externalIPs.
	ExternalIPs ExternalIPs

	// SyncPeriod is the longest wait for the retry of a failed sync, and half the age at which an unapplied change
	// makes the proxy unhealthy.
	SyncPeriod time.Duration
	// MinSyncPeriod is the shortest time between two transactions, 0 when nothing was configured: the ruleset does not
	// need a pause (kube-proxy: 1 s).
	MinSyncPeriod time.Duration

	// Healthz and Metrics are the addresses of the two HTTP servers as net.Listen takes them (host:port); empty
	// disables the server.
	Healthz, Metrics string
	// BindHardFail makes it fatal when one of them cannot listen.
	BindHardFail bool
	// Profiling serves /debug/pprof and /debug/flags/v on the metrics server.
	Profiling bool
	// ShowHiddenMetricsFor is a Kubernetes release ("1.36") whose hidden metrics are shown; empty shows none.
	ShowHiddenMetricsFor string

	// Conntrack are the limits and timeouts written at start.
	Conntrack sysctl.Conntrack
	// OOMScoreAdj is the process's oom_score_adj, -1000 to 1000.
	OOMScoreAdj int
	// Gates are the feature gates that have an effect.
	Gates Gates
	// Logging is applied by the command with component-base.
	Logging logsapi.LoggingConfiguration

	// Own are the settings that kube-proxy does not have.
	Own Own

	// External is the defaulted KubeProxyConfiguration, for /configz and
	// --write-config-to. Read only.
	External *kubeproxyconfig.KubeProxyConfiguration
	// Warnings are to be logged once logging is set up: settings without effect, and unknown fields that only the
	// lenient decoder accepted.
	Warnings []string
}

// UnhealthyAfter is the age of the oldest unapplied change at which the proxy becomes unhealthy: twice the sync period,
// as in kube-proxy.
func (c *Config) UnhealthyAfter() time.Duration { return 2 * c.SyncPeriod }

// Client is how the API server is reached. With neither Kubeconfig nor Master the in-cluster credentials are used.
type Client struct {
	Kubeconfig         string  // path; empty: none
	Master             string  // URL that overrides the kubeconfig's server
	ContentType        string  // of requests, default protobuf
	AcceptContentTypes string  // of answers; empty: chosen by the client
	QPS                float32 // steady rate of requests per second
	Burst              int     // requests above the rate
}

// REST returns the client configuration. userAgent names the program to the API server ("nftproxy/v0.1.0"). It reads
// files and opens no connection.
func (c Client) REST(userAgent string) (*rest.Config, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	cfg.AcceptContentTypes, cfg.ContentType = c.AcceptContentTypes, c.ContentType
	cfg.QPS, cfg.Burst = c.QPS, c.Burst
	cfg.UserAgent = userAgent
	return cfg, nil
}

func (c Client) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
}

// LocalMode is how traffic of local pods is distinguished from all other.
type LocalMode string

// The modes of kube-proxy's detectLocalMode.
const (
	// LocalByClusterCIDR matches every source address inside DetectLocal.CIDRs: the pods of the whole cluster.
	LocalByClusterCIDR LocalMode = "ClusterCIDR"
	// LocalByNodeCIDR matches the node's own pod CIDRs (Node.spec.podCIDRs).
	LocalByNodeCIDR LocalMode = "NodeCIDR"
	// LocalByBridge matches packets that arrive on DetectLocal.Interface.
	LocalByBridge LocalMode = "BridgeInterface"
	// LocalByPrefix matches packets that arrive on an interface whose name begins with DetectLocal.Interface.
	LocalByPrefix LocalMode = "InterfaceNamePrefix"
)

// DetectLocal is the detector of local traffic.
type DetectLocal struct {
	Mode LocalMode
	// CIDRs, at most one per family, for LocalByClusterCIDR; a family without one has no detector. Masked, never
	// IPv4-mapped.
	CIDRs []netip.Prefix
	// Interface is the name (LocalByBridge) or prefix (LocalByPrefix) of the interface, at most 15 bytes (IFNAMSIZ -
	// 1).
	Interface string
}

// CIDR returns the detector's prefix of one family, and whether there is one.
func (d DetectLocal) CIDR(ipv6 bool) (netip.Prefix, bool) {
	i := slices.IndexFunc(d.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return d.CIDRs[i], true
}

// NodePortAddresses are the addresses of the node on which NodePorts are served. The parts add up. The empty value does
// not occur: Primary is the default.
type NodePortAddresses struct {
	// Primary is the node's primary address of each family.
	Primary bool
	// Localhost is the loopback addresses of both families.
	Localhost bool
	// All is every non-loopback address of both families.
	All bool
	// CIDRs are further ranges. As in kube-proxy, ranges of one family only leave the other family open unless a
	// keyword covers it: see Family.
	CIDRs []netip.Prefix
}

// Family narrows to one family. CIDRs of the other family only, without a keyword, mean all addresses of this one:
// kube-proxy puts 0.0.0.0/0 or ::/0 there. A range of length 0 counts as All.
func (n NodePortAddresses) Family(ipv6 bool) NodePortAddresses {
	f := NodePortAddresses{Primary: n.Primary, Localhost: n.Localhost, All: n.All}
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

// ExternalIPs are the addresses that Services may have in spec.externalIPs: a user who may write that field can
// otherwise take over the traffic of any address (CVE-2020-8554). The zero value allows none.
type ExternalIPs struct {
	All   bool           // every address
	CIDRs []netip.Prefix // else those in one of these ranges
}

// Allow reports whether an address may be served as an external IP.
func (e ExternalIPs) Allow(a netip.Addr) bool {
	return e.All || slices.ContainsFunc(e.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}
