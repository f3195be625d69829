// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// Options are the flags of the command: kube-proxy's, by the same names and with the same defaults, and --manifests and
// --nftproxy-config.
type Options struct {
	// ConfigFile is --config. When set, all flags are ignored but those in flagsBesideConfig and those of logging.
	ConfigFile string
	// OwnFile is --nftproxy-config: a file with the NFTProxyConfiguration.
	OwnFile string
	// WriteConfigTo, Cleanup and InitOnly choose another run than serving.
	WriteConfigTo     string
	Cleanup, InitOnly bool

	// kube is what the flags write to, defaulted first.
	kube *kubeproxyconfig.KubeProxyConfiguration

	manifests, master                 string
	hostnameOverride, metricsOverride string
	healthzPort, metricsPort          int32
}

// flagsBesideConfig are the flags that count although --config is given.
var flagsBesideConfig = []string{
	"config", "write-config-to", "cleanup", "init-only", "version", "help",
	"master", "hostname-override", "metrics-bind-address-override", "manifests", "nftproxy-config",
}

// Reasons for flags and keys that have no effect.
const (
	reasonIPVS     = "there is no IPVS mode"
	reasonWindows  = "it is for Windows only"
	reasonCadvisor = "cadvisor is not part of nftproxy"
	reasonResync   = "objects are watched, and a periodic resync has nothing to deliver"
	reasonBit      = "nftables mode reads nftables.masqueradeBit of the configuration file"
)

// flagsWithoutEffect are kube-proxy's flags that are accepted, warned about and otherwise ignored, with the reason that
// the warning gives. Those that have a key in the configuration file are still written by --write-config-to.
var flagsWithoutEffect = map[string]string{
	"config-sync-period":           reasonResync,
	"iptables-masquerade-bit":      reasonBit,
	"iptables-localhost-nodeports": "list localhost in --nodeport-addresses instead",
	"ipvs-sync-period":             reasonIPVS, "ipvs-min-sync-period": reasonIPVS, "ipvs-scheduler": reasonIPVS,
	"ipvs-exclude-cidrs": reasonIPVS, "ipvs-strict-arp": reasonIPVS, "ipvs-tcp-timeout": reasonIPVS,
	"ipvs-tcpfin-timeout": reasonIPVS, "ipvs-udp-timeout": reasonIPVS,
	"boot-id-file": reasonCadvisor, "machine-id-file": reasonCadvisor,
}

// NewOptions returns the options with kube-proxy's defaults.
func NewOptions() *Options {
	o := &Options{kube: &kubeproxyconfig.KubeProxyConfiguration{}, healthzPort: healthzPort, metricsPort: metricsPort}
	setDefaults(o.kube)
	return o
}

// AddFlags registers every flag on fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	k, ct, client := o.kube, &o.kube.Conntrack, &o.kube.ClientConnection

	// What to run, and with which files.
	fs.StringVar(&o.ConfigFile, "config", "", "File with a KubeProxyConfiguration, optionally followed by an NFTProxyConfiguration in a second YAML document. With it, all flags are ignored but --hostname-override, --metrics-bind-address-override, --master, --manifests, --nftproxy-config, logging flags and those that choose what to run.")
	fs.StringVar(&o.OwnFile, "nftproxy-config", "", "File with an NFTProxyConfiguration, if it is not part of --config.")
	fs.StringVar(&o.manifests, "manifests", "", "Directory of manifests (Services, EndpointSlices, Node, ServiceCIDRs as YAML or JSON) that replaces the API server and is watched.")
	fs.StringVar(&o.WriteConfigTo, "write-config-to", "", "Write the configuration with all defaults to this file and exit.")
	fs.BoolVar(&o.Cleanup, "cleanup", false, "Remove everything that nftproxy and kube-proxy made on this node and exit.")
	fs.BoolVar(&o.InitOnly, "init-only", false, "Do what needs full privileges (sysctls) and exit; nftproxy then runs with CAP_NET_ADMIN alone.")
	fs.Var(cliflag.NewMapStringBool(&k.FeatureGates), "feature-gates", "Feature gates as NAME=BOOL,...; docs/compatibility.md lists those that have an effect.")
	fs.Int32Var(k.OOMScoreAdj, "oom-score-adj", *k.OOMScoreAdj, "oom_score_adj of the process, -1000 to 1000.")

	// The HTTP servers.
	fs.StringVar(&k.HealthzBindAddress, "healthz-bind-address", k.HealthzBindAddress, "IP address and port of /healthz and /livez; empty disables them.")
	fs.StringVar(&k.MetricsBindAddress, "metrics-bind-address", k.MetricsBindAddress, "IP address and port of /metrics and the debug endpoints; empty disables them.")
	fs.StringVar(&o.metricsOverride, "metrics-bind-address-override", "", "IP address and port in place of the configuration file's metricsBindAddress, for manifests that serve metrics on the node's address.")
	fs.BoolVar(&k.BindAddressHardFail, "bind-address-hard-fail", false, "Exit if one of the two addresses cannot be bound, instead of retrying every 5 seconds.")
	fs.BoolVar(&k.EnableProfiling, "profiling", false, "Serve /debug/pprof and /debug/flags/v on the metrics address.")
	fs.StringVar(&k.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "Release, as MAJOR.MINOR, whose hidden metrics are shown.")
	fs.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "Port of the health check server; 0 disables it.")
	fs.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "Port of the metrics server; 0 disables it.")
	_ = fs.MarkDeprecated("healthz-port", "use --healthz-bind-address")
	_ = fs.MarkDeprecated("metrics-port", "use --metrics-bind-address")

	// The API server and the Node object.
	fs.StringVar(&client.Kubeconfig, "kubeconfig", "", "Path of a kubeconfig; without it and --master the in-cluster credentials are used.")
	fs.StringVar(&o.master, "master", "", "URL of the API server; overrides the kubeconfig's.")
	fs.StringVar(&client.ContentType, "kube-api-content-type", client.ContentType, "Content type of requests to the API server.")
	fs.Int32Var(&client.Burst, "kube-api-burst", client.Burst, "Requests to the API server above the rate.")
	fs.Float32Var(&client.QPS, "kube-api-qps", client.QPS, "Requests per second to the API server.")
	fs.StringVar(&o.hostnameOverride, "hostname-override", "", "Name of the Node object, if it is not the host name.")
	fs.StringVar(&k.BindAddress, "bind-address", k.BindAddress, "Overrides the node's primary address. Nothing is bound to it.")

	// Traffic.
	fs.StringVar((*string)(&k.Mode), "proxy-mode", "", "nftables or empty; there is no other mode.")
	fs.BoolVar(&k.NFTables.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to ClusterIPs.")
	fs.StringVar((*string)(&k.DetectLocalMode), "detect-local-mode", "", "How traffic of local pods is detected: "+strings.Join(localModes(), ", ")+".")
	fs.StringVar(&k.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "Bridge for --detect-local-mode=BridgeInterface.")
	fs.StringVar(&k.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "Prefix for --detect-local-mode=InterfaceNamePrefix.")
	fs.StringVar(&k.ClusterCIDR, "cluster-cidr", "", "Range of the pods' addresses for --detect-local-mode=ClusterCIDR, one per family, comma separated.")
	fs.StringSliceVar(&k.NodePortAddresses, "nodeport-addresses", nil, "Where NodePorts are served: CIDRs and the keywords primary (default), localhost and all.")
	// kube-proxy's nftables mode takes its periods from the flags named for iptables.
	fs.DurationVar(&k.NFTables.SyncPeriod.Duration, "iptables-sync-period", k.NFTables.SyncPeriod.Duration, "Longest wait for the retry of a failed sync; twice this without success is unhealthy.")
	fs.DurationVar(&k.NFTables.MinSyncPeriod.Duration, "iptables-min-sync-period", 0, "Shortest time between two syncs (kube-proxy: 1s).")

	// The sysctls of conntrack.
	fs.Int32Var(ct.MaxPerCore, "conntrack-max-per-core", *ct.MaxPerCore, "Conntrack entries per CPU; 0 leaves the limit alone.")
	fs.Int32Var(ct.Min, "conntrack-min", *ct.Min, "Least number of conntrack entries, unless --conntrack-max-per-core is 0.")
	fs.DurationVar(&ct.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", ct.TCPEstablishedTimeout.Duration, "Timeout of idle established TCP connections; 0 leaves it alone.")
	fs.DurationVar(&ct.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", ct.TCPCloseWaitTimeout.Duration, "Timeout of TCP connections in CLOSE_WAIT; 0 leaves it alone.")
	fs.BoolVar(&ct.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Set nf_conntrack_tcp_be_liberal to 1.")
	fs.DurationVar(&ct.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Timeout of unanswered UDP flows; 0 leaves it alone.")
	fs.DurationVar(&ct.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Timeout of answered UDP flows; 0 leaves it alone.")

	// Flags without effect.
	ignored := func(name string) string { return "Accepted and ignored: " + flagsWithoutEffect[name] + "." }
	fs.DurationVar(&k.ConfigSyncPeriod.Duration, "config-sync-period", k.ConfigSyncPeriod.Duration, ignored("config-sync-period"))
	fs.StringVar(&k.IPVS.Scheduler, "ipvs-scheduler", "", ignored("ipvs-scheduler"))
	fs.StringSliceVar(&k.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, ignored("ipvs-exclude-cidrs"))
	fs.BoolVar(&k.IPVS.StrictARP, "ipvs-strict-arp", false, ignored("ipvs-strict-arp"))
	fs.DurationVar(&k.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, ignored("ipvs-tcp-timeout"))
	fs.DurationVar(&k.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, ignored("ipvs-tcpfin-timeout"))
	fs.DurationVar(&k.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, ignored("ipvs-udp-timeout"))
	fs.Duration("ipvs-sync-period", defaultSyncPeriod, ignored("ipvs-sync-period"))
	fs.Duration("ipvs-min-sync-period", time.Second, ignored("ipvs-min-sync-period"))
	fs.Int32("iptables-masquerade-bit", defaultMasqueradeBit, ignored("iptables-masquerade-bit"))
	fs.Bool("iptables-localhost-nodeports", true, ignored("iptables-localhost-nodeports"))
	fs.String("boot-id-file", "/proc/sys/kernel/random/boot_id", ignored("boot-id-file"))
	fs.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", ignored("machine-id-file"))
	logsapi.AddFlags(&k.Logging, fs)
}

// flagWarnings names the flags that were given and have no effect, sorted.
func (o *Options) flagWarnings(fs *pflag.FlagSet) []string {
	var logging pflag.FlagSet
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), &logging)
	var out []string
	fs.Visit(func(f *pflag.Flag) {
		reason, ignored := flagsWithoutEffect[f.Name]
		switch {
		case ignored:
			out = append(out, fmt.Sprintf("flag --%s has no effect: %s", f.Name, reason))
		case o.ConfigFile != "" && !slices.Contains(flagsBesideConfig, f.Name) && logging.Lookup(f.Name) == nil:
			out = append(out, fmt.Sprintf("flag --%s is ignored because --config is given", f.Name))
		}
	})
	slices.Sort(out)
	return out
}

// parseAddr reads an address as kube-proxy does (leading zeros allowed), with IPv4-mapped addresses taken for IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return a.Unmap(), ok
}

// parsePrefix reads a CIDR as kube-proxy does; host bits are cut off.
func parsePrefix(s string) (netip.Prefix, bool) {
	ip, ipnet, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, _ := netip.AddrFromSlice(ip)
	bits, _ := ipnet.Mask.Size()
	if addr.Is4In6() && len(ipnet.Mask) == net.IPv4len {
		addr = addr.Unmap()
	}
	p, err := addr.Prefix(bits)
	return p, err == nil
}

// withPort adds the port to a bare address. Anything else is left to validation.
func withPort(addr string, port int32) string {
	if _, _, err := net.SplitHostPort(addr); err == nil || netutils.ParseIPSloppy(addr) == nil {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(int(port)))
}
