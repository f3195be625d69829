// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

// Options are the flags of the command: kube-proxy's, by the same names and
// with the same defaults, and three of our own (--manifests,
// --nftproxy-config, --version is the command's).
type Options struct {
	// ConfigFile is --config. When set, all flags are ignored but those named
	// in flagsBesideConfig.
	ConfigFile string
	// OwnFile is --nftproxy-config: a file with the NFTProxyConfiguration.
	OwnFile string
	// WriteConfigTo, Cleanup and InitOnly choose another run than serving.
	WriteConfigTo     string
	Cleanup, InitOnly bool

	// kube is what the flags write to, defaulted first.
	kube *kubeproxyconfig.KubeProxyConfiguration

	manifests        string
	master           string
	hostnameOverride string
	healthzPort      int32
	metricsPort      int32
	masqueradeAll    bool
	proxyMode        string
	detectLocalMode  string
	iptables, ipvs   periods
	ignored          ignoredFlags
}

// periods are the two flags by which older releases set the sync periods.
type periods struct{ sync, min time.Duration }

// ignoredFlags are the targets of flags that mean nothing here.
type ignoredFlags struct {
	masqueradeBit             int32
	localhostNodePorts        bool
	bootIDFile, machineIDFile string
}

// flagsBesideConfig are the flags that count although --config is given:
// kube-proxy's, and ours. Logging flags count too.
var flagsBesideConfig = map[string]bool{
	"config": true, "write-config-to": true, "cleanup": true, "init-only": true, "version": true,
	"master": true, "hostname-override": true, "manifests": true, "nftproxy-config": true, "help": true,
}

// flagsWithoutMeaning are kube-proxy's flags that are accepted, warned about and
// otherwise ignored, with the reason that the warning gives.
var flagsWithoutMeaning = map[string]string{
	"iptables-masquerade-bit":      "nftables mode takes nftables.masqueradeBit of the configuration file",
	"iptables-localhost-nodeports": "list localhost in --nodeport-addresses instead",
	"ipvs-sync-period":             reasonIPVS, "ipvs-min-sync-period": reasonIPVS, "ipvs-scheduler": reasonIPVS,
	"ipvs-exclude-cidrs": reasonIPVS, "ipvs-strict-arp": reasonIPVS, "ipvs-tcp-timeout": reasonIPVS,
	"ipvs-tcpfin-timeout": reasonIPVS, "ipvs-udp-timeout": reasonIPVS,
	"boot-id-file": reasonCadvisor, "machine-id-file": reasonCadvisor,
}

const (
	reasonIPVS     = "there is no IPVS mode"
	reasonCadvisor = "cadvisor is not part of nftproxy"
)

// NewOptions returns the options with kube-proxy's defaults.
func NewOptions() *Options {
	o := &Options{
		kube:        &kubeproxyconfig.KubeProxyConfiguration{},
		healthzPort: healthzPort, metricsPort: metricsPort,
	}
	setDefaults(o.kube)
	// As flags show them: minSyncPeriod stays unset unless the flag is given.
	o.iptables = periods{sync: defaultSyncPeriod, min: time.Second}
	o.ipvs = periods{sync: defaultSyncPeriod, min: time.Second}
	o.ignored = ignoredFlags{masqueradeBit: defaultMasqueradeBit, localhostNodePorts: true}
	return o
}

// AddFlags registers every flag on fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.addRunFlags(fs)
	o.addServerFlags(fs)
	o.addClientFlags(fs)
	o.addTrafficFlags(fs)
	o.addConntrackFlags(fs)
	o.addSyncFlags(fs)
	o.addIgnoredFlags(fs)
	logsapi.AddFlags(&o.kube.Logging, fs)
}

// addRunFlags: what to run with.
func (o *Options) addRunFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, "config", "", "File with a KubeProxyConfiguration, optionally followed by an NFTProxyConfiguration in a second YAML document. With it, all flags are ignored but --hostname-override, --master, --manifests, --nftproxy-config, logging flags and those that choose what to run.")
	fs.StringVar(&o.OwnFile, "nftproxy-config", "", "File with an NFTProxyConfiguration, when it is not part of --config.")
	fs.StringVar(&o.manifests, "manifests", "", "Directory of manifests (Services, EndpointSlices, Node, ServiceCIDRs as YAML or JSON) that is watched in place of an API server.")
	fs.StringVar(&o.WriteConfigTo, "write-config-to", "", "Write the configuration with all defaults to this file and exit.")
	fs.BoolVar(&o.Cleanup, "cleanup", false, "Remove everything that nftproxy and kube-proxy made on this node and exit.")
	fs.BoolVar(&o.InitOnly, "init-only", false, "Do what needs full privileges (sysctls) and exit; nftproxy then runs with CAP_NET_ADMIN alone.")
	fs.Var(cliflag.NewMapStringBool(&o.kube.FeatureGates), "feature-gates", "Feature gates of kube-proxy as NAME=BOOL,...; only those of logging have an effect, all are accepted.")
	fs.Int32Var(o.kube.OOMScoreAdj, "oom-score-adj", *o.kube.OOMScoreAdj, "oom_score_adj of the process, -1000 to 1000.")
}

// addServerFlags: the HTTP servers.
func (o *Options) addServerFlags(fs *pflag.FlagSet) {
	fs.Var(&bindFlag{&o.kube.HealthzBindAddress}, "healthz-bind-address", "IP address and port of /healthz and /livez; empty disables them.")
	fs.Var(&bindFlag{&o.kube.MetricsBindAddress}, "metrics-bind-address", "IP address and port of /metrics and the debug endpoints; empty disables them.")
	fs.BoolVar(&o.kube.BindAddressHardFail, "bind-address-hard-fail", false, "Exit when one of the two addresses cannot be bound, rather than to try again every 5 seconds.")
	fs.BoolVar(&o.kube.EnableProfiling, "profiling", false, "Serve /debug/pprof and /debug/flags/v on the metrics address.")
	fs.StringVar(&o.kube.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "Release, as MAJOR.MINOR, whose hidden metrics are shown.")
	fs.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "Port of the health check server; 0 disables it.")
	fs.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "Port of the metrics server; 0 disables it.")
	_ = fs.MarkDeprecated("healthz-port", "use --healthz-bind-address")
	_ = fs.MarkDeprecated("metrics-port", "use --metrics-bind-address")
}

// addClientFlags: the API server and the own Node.
func (o *Options) addClientFlags(fs *pflag.FlagSet) {
	c := &o.kube.ClientConnection
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "Path of a kubeconfig; without it and --master the in-cluster credentials are used.")
	fs.StringVar(&o.master, "master", "", "URL of the API server; overrides the kubeconfig's.")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "Content type of requests to the API server.")
	fs.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "Requests to the API server above the rate.")
	fs.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "Requests per second to the API server.")
	fs.DurationVar(&o.kube.ConfigSyncPeriod.Duration, "config-sync-period", o.kube.ConfigSyncPeriod.Duration, "Resync period of objects from the API server.")
	fs.StringVar(&o.hostnameOverride, "hostname-override", "", "Name of our Node object, when it is not the host name.")
	fs.Var(&ipFlag{&o.kube.BindAddress}, "bind-address", "Overrides the node's primary address. Nothing is bound to it.")
}

// addTrafficFlags: what happens to packets.
func (o *Options) addTrafficFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.proxyMode, "proxy-mode", "", "nftables or empty; there is no other mode.")
	fs.BoolVar(&o.masqueradeAll, "masquerade-all", false, "Masquerade all traffic to ClusterIPs.")
	fs.StringVar(&o.detectLocalMode, "detect-local-mode", "", "How traffic of local pods is told: "+strings.Join(localModes(), ", ")+".")
	fs.StringVar(&o.kube.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "Bridge for --detect-local-mode=BridgeInterface.")
	fs.StringVar(&o.kube.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "Prefix for --detect-local-mode=InterfaceNamePrefix.")
	fs.StringVar(&o.kube.ClusterCIDR, "cluster-cidr", "", "Range of the pods' addresses for --detect-local-mode=ClusterCIDR, one per family, comma separated.")
	fs.StringSliceVar(&o.kube.NodePortAddresses, "nodeport-addresses", nil, "Where NodePorts are served: CIDRs and the keywords primary (default), localhost and all.")
}

// addConntrackFlags: sysctls of conntrack.
func (o *Options) addConntrackFlags(fs *pflag.FlagSet) {
	ct := &o.kube.Conntrack
	fs.Int32Var(ct.MaxPerCore, "conntrack-max-per-core", *ct.MaxPerCore, "Conntrack entries per CPU; 0 leaves the limit alone.")
	fs.Int32Var(ct.Min, "conntrack-min", *ct.Min, "Least number of conntrack entries, unless --conntrack-max-per-core is 0.")
	fs.DurationVar(&ct.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", ct.TCPEstablishedTimeout.Duration, "Timeout of idle established TCP connections; 0 leaves it alone.")
	fs.DurationVar(&ct.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", ct.TCPCloseWaitTimeout.Duration, "Timeout of TCP connections in CLOSE_WAIT; 0 leaves it alone.")
	fs.BoolVar(&ct.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Set nf_conntrack_tcp_be_liberal to 1.")
	fs.DurationVar(&ct.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Timeout of unanswered UDP flows; 0 leaves it alone.")
	fs.DurationVar(&ct.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Timeout of answered UDP flows; 0 leaves it alone.")
}

// addSyncFlags: the periods, which kube-proxy's nftables mode takes from the
// flags named for iptables.
func (o *Options) addSyncFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.iptables.sync, "iptables-sync-period", o.iptables.sync, "Longest wait for the retry of a failed sync; twice this without success is unhealthy.")
	fs.DurationVar(&o.iptables.min, "iptables-min-sync-period", o.iptables.min, "Least time between two syncs. Unless given there is none.")
}

// addIgnoredFlags: flags without meaning here, accepted with a warning.
func (o *Options) addIgnoredFlags(fs *pflag.FlagSet) {
	const none = "Accepted and ignored: "
	fs.Int32Var(&o.ignored.masqueradeBit, "iptables-masquerade-bit", o.ignored.masqueradeBit, none+flagsWithoutMeaning["iptables-masquerade-bit"]+".")
	fs.BoolVar(&o.ignored.localhostNodePorts, "iptables-localhost-nodeports", true, none+flagsWithoutMeaning["iptables-localhost-nodeports"]+".")
	fs.DurationVar(&o.ipvs.sync, "ipvs-sync-period", o.ipvs.sync, none+reasonIPVS+".")
	fs.DurationVar(&o.ipvs.min, "ipvs-min-sync-period", o.ipvs.min, none+reasonIPVS+".")
	fs.StringVar(&o.kube.IPVS.Scheduler, "ipvs-scheduler", "", none+reasonIPVS+".")
	fs.StringSliceVar(&o.kube.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, none+reasonIPVS+".")
	fs.BoolVar(&o.kube.IPVS.StrictARP, "ipvs-strict-arp", false, none+reasonIPVS+".")
	fs.DurationVar(&o.kube.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, none+reasonIPVS+".")
	fs.DurationVar(&o.kube.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, none+reasonIPVS+".")
	fs.DurationVar(&o.kube.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, none+reasonIPVS+".")
	fs.StringVar(&o.ignored.bootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id", none+reasonCadvisor+".")
	fs.StringVar(&o.ignored.machineIDFile, "machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", none+reasonCadvisor+".")
}
