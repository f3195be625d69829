// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io/fs"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	clientfeatures "k8s.io/client-go/features"

	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// files is a machine whose files are a map.
type files map[string]string

func (f files) machine() Machine {
	return Machine{
		Hostname: func() (string, error) { return " Node-1\n", nil },
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := f[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		},
	}
}

// load parses a command line and loads.
func load(t *testing.T, f files, args ...string) (*Config, error) {
	t.Helper()
	o, flags := NewOptions(), pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return o.Load(flags, f.machine())
}

// mustLoad fails the test on any error.
func mustLoad(t *testing.T, f files, args ...string) *Config {
	t.Helper()
	c, err := load(t, f, args...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const kubeHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
const ownHead = "apiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\n"

// defaults is the Config of an empty command line.
func defaults() *Config {
	own := newOwn()
	var c checks
	if c.own(own, nil); len(c.errs) > 0 {
		panic(c.errs)
	}
	return &Config{
		NodeName:      "node-1",
		Client:        Client{ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10},
		MasqueradeBit: 14,
		DetectLocal:   DetectLocal{Mode: LocalByClusterCIDR},
		NodePorts:     NodePortAddresses{Primary: true},
		SyncPeriod:    30 * time.Second,
		Healthz:       "0.0.0.0:10256",
		Metrics:       "127.0.0.1:10249",
		ExternalIPs:   ExternalIPs{All: true},
		Conntrack:     sysctl.Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour},
		OOMScoreAdj:   -999,
		Own:           *own,
	}
}

// diffConfig compares what decides the proxy's behaviour.
func diffConfig(want, got *Config) string {
	return cmp.Diff(want, got,
		cmpopts.IgnoreFields(Config{}, "External", "Gates", "Logging", "Warnings"),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

func TestDefaults(t *testing.T) {
	// A file with nothing in it and no file at all are the same; so are the
	// zeros and nulls of kubeadm's ConfigMap.
	for name, f := range map[string]files{
		"flags":   {},
		"file":    {"c": kubeHead},
		"kubeadm": {"c": kubeadmDefault},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			if f["c"] != "" {
				args = []string{"--config=c"}
			}
			c := mustLoad(t, f, args...)
			want := defaults()
			if name == "kubeadm" {
				want.Client.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
				want.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			}
			if d := diffConfig(want, c); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if len(c.Warnings) > 0 {
				t.Errorf("warnings: %q", c.Warnings)
			}
		})
	}
}

// kubeadmDefault has the keys that `kubeadm init` writes, with a pod CIDR.
const kubeadmDefault = kubeHead + `bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

// TestSettings sets one thing at a time, by flag and by key, and says what it
// changes in the Config.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string // by flags, unless empty
		file  string   // by file, unless empty
		want  func(*Config)
	}{
		{"masquerade all", []string{"--masquerade-all"}, "nftables: {masqueradeAll: true}",
			func(c *Config) { c.MasqueradeAll = true }},
		{"masquerade bit", nil, "nftables: {masqueradeBit: 3}", func(c *Config) { c.MasqueradeBit = 3 }},
		{"mode", []string{"--proxy-mode=nftables"}, "mode: nftables", func(*Config) {}},
		{"iptables section counts while the mode is empty", nil,
			"iptables: {masqueradeBit: 5, masqueradeAll: true, syncPeriod: 10s, minSyncPeriod: 2s}",
			func(c *Config) {
				c.MasqueradeBit, c.MasqueradeAll, c.SyncPeriod, c.MinSyncPeriod = 5, true, 10*time.Second, 2*time.Second
			}},
		{"iptables section does not count in nftables mode", nil,
			"mode: nftables\niptables: {masqueradeBit: 5, masqueradeAll: true, syncPeriod: 10s}", func(*Config) {}},
		{"nftables section wins", nil, "iptables: {masqueradeBit: 5}\nnftables: {masqueradeBit: 6}",
			func(c *Config) { c.MasqueradeBit = 6 }},
		{"periods", []string{"--iptables-sync-period=20s", "--iptables-min-sync-period=1s"},
			"nftables: {syncPeriod: 20s, minSyncPeriod: 1s}",
			func(c *Config) {
				c.SyncPeriod, c.MinSyncPeriod = 20*time.Second, time.Second
			}},
		{"cluster CIDRs", []string{"--cluster-cidr=10.244.1.2/16,fd00:1::/64"}, "clusterCIDR: 10.244.1.2/16,fd00:1::/64",
			func(c *Config) {
				c.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}
			}},
		{"node CIDR", []string{"--detect-local-mode=NodeCIDR", "--cluster-cidr=10.0.0.0/8"}, "detectLocalMode: NodeCIDR\nclusterCIDR: x",
			func(c *Config) { c.DetectLocal = DetectLocal{Mode: LocalByNodeCIDR} }},
		{"bridge", []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
			"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
			func(c *Config) { c.DetectLocal = DetectLocal{Mode: LocalByBridge, Interface: "cni0"} }},
		{"prefix", []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
			func(c *Config) { c.DetectLocal = DetectLocal{Mode: LocalByPrefix, Interface: "veth"} }},
		{"node ports", []string{"--nodeport-addresses=primary,10.0.0.1/8,localhost"}, "nodePortAddresses: [primary, 10.0.0.1/8, localhost]",
			func(c *Config) {
				c.NodePorts = NodePortAddresses{Primary: true, Localhost: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
			}},
		{"node ports on loopback ranges", []string{"--nodeport-addresses=127.0.0.1/32,::1/128"}, "nodePortAddresses: [127.0.0.0/8]",
			func(c *Config) { c.NodePorts = NodePortAddresses{Localhost: true} }},
		{"all node ports", []string{"--nodeport-addresses=all"}, "nodePortAddresses: [all]",
			func(c *Config) { c.NodePorts = NodePortAddresses{All: true} }},
		{"client", []string{"--kubeconfig=k", "--kube-api-qps=7", "--kube-api-burst=8", "--kube-api-content-type=application/json"},
			"clientConnection: {kubeconfig: k, qps: 7, burst: 8, contentType: application/json}",
			func(c *Config) { c.Client = Client{Kubeconfig: "k", QPS: 7, Burst: 8, ContentType: "application/json"} }},
		{"accept", nil, "clientConnection: {acceptContentTypes: application/json}",
			func(c *Config) { c.Client.AcceptContentTypes = "application/json" }},
		{"host name", []string{"--hostname-override= Worker.Example "}, "hostnameOverride: ' Worker.Example '",
			func(c *Config) { c.NodeName = "worker.example" }},
		{"node address", []string{"--bind-address=192.0.2.1"}, "bindAddress: 192.0.2.1",
			func(c *Config) { c.NodeIP = netip.MustParseAddr("192.0.2.1") }},
		{"IPv6 node address moves the servers, in a file", nil, "bindAddress: 2001:db8::1",
			func(c *Config) {
				c.NodeIP, c.Healthz, c.Metrics = netip.MustParseAddr("2001:db8::1"), "[::]:10256", "[::1]:10249"
			}},
		{"IPv6 node address, unspecified", nil, "bindAddress: '::'",
			func(c *Config) { c.Healthz, c.Metrics = "[::]:10256", "[::1]:10249" }},
		{"servers", []string{"--healthz-bind-address=127.0.0.1", "--metrics-bind-address=[::1]:99", "--bind-address-hard-fail", "--profiling"},
			"healthzBindAddress: 127.0.0.1\nmetricsBindAddress: '[::1]:99'\nbindAddressHardFail: true\nenableProfiling: true",
			func(c *Config) {
				c.Healthz, c.Metrics, c.BindHardFail, c.Profiling = "127.0.0.1:10256", "[::1]:99", true, true
			}},
		{"servers off", []string{"--healthz-bind-address=", "--metrics-port=0"}, "",
			func(c *Config) { c.Healthz, c.Metrics = "", "" }},
		{"deprecated port goes to an address without one", []string{"--healthz-bind-address=127.0.0.1", "--healthz-port=1"}, "",
			func(c *Config) { c.Healthz = "127.0.0.1:1" }},
		{"conntrack", []string{"--conntrack-max-per-core=1", "--conntrack-min=2", "--conntrack-tcp-timeout-established=3s",
			"--conntrack-tcp-timeout-close-wait=4s", "--conntrack-tcp-be-liberal", "--conntrack-udp-timeout=5s", "--conntrack-udp-timeout-stream=6s"},
			"conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: true, udpTimeout: 5s, udpStreamTimeout: 6s}",
			func(c *Config) {
				c.Conntrack = sysctl.Conntrack{MaxPerCore: 1, Min: 2, TCPEstablished: 3 * time.Second, TCPCloseWait: 4 * time.Second,
					TCPBeLiberal: true, UDP: 5 * time.Second, UDPStream: 6 * time.Second}
			}},
		{"oom score", []string{"--oom-score-adj=7"}, "oomScoreAdj: 7", func(c *Config) { c.OOMScoreAdj = 7 }},
		{"external IPs by gate", []string{"--feature-gates=AllowServiceExternalIPs=false"}, "featureGates: {AllowServiceExternalIPs: false}",
			func(c *Config) { c.ExternalIPs = ExternalIPs{} }},
		{"hidden metrics", []string{"--show-hidden-metrics-for-version=1.35"}, "showHiddenMetricsForVersion: '1.35'",
			func(c *Config) { c.ShowHiddenMetricsFor = "1.35" }},
	} {
		want := defaults()
		c.want(want)
		if len(c.flags) > 0 {
			t.Run(c.name+" by flags", func(t *testing.T) {
				if d := diffConfig(want, mustLoad(t, nil, c.flags...)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
		if c.file != "" {
			t.Run(c.name+" by file", func(t *testing.T) {
				if d := diffConfig(want, mustLoad(t, files{"c": kubeHead + c.file}, "--config=c")); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestPrecedence: with --config, flags are ignored but the named ones.
func TestPrecedence(t *testing.T) {
	f := files{"c": kubeHead + "hostnameOverride: from-file\nlogging: {verbosity: 1, vmodule: [{filePattern: a, verbosity: 1}]}"}
	c := mustLoad(t, f, "--config=c", "--hostname-override=from-flag", "--master=http://m", "--manifests=dir", "-v=5", "--vmodule=b=2",
		"--masquerade-all", "--kubeconfig=k", "--cluster-cidr=nonsense", "--metrics-bind-address-override=2001:db8::1")
	want := defaults()
	want.Metrics = "[2001:db8::1]:10249"
	want.NodeName, want.Client.Master, want.Manifests, want.Own.Manifests = "from-flag", "http://m", "dir", "dir"
	if d := diffConfig(want, c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c.Logging.Verbosity != 5 || len(c.Logging.VModule) != 2 || c.Logging.VModule[0].FilePattern != "b" {
		t.Errorf("logging: verbosity %d, vmodule %v", c.Logging.Verbosity, c.Logging.VModule)
	}
	wantWarnings := []string{
		"flag --cluster-cidr is ignored because --config is given",
		"flag --kubeconfig is ignored because --config is given",
		"flag --masquerade-all is ignored because --config is given",
	}
	if d := cmp.Diff(wantWarnings, c.Warnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

// TestRefused: what is wrong, and that the error names it and says what to do.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		file  string
		flags string
		want  []string
	}{
		{"mode: iptables", "--proxy-mode=iptables", []string{"mode", `"iptables"`, `"nftables"`, "leave the mode empty"}},
		{"mode: ipvs", "--proxy-mode=ipvs", []string{"run kube-proxy on this node"}},
		{"mode: NFTables", "", []string{"mode"}},
		{"nftables: {masqueradeBit: 32}", "", []string{"nftables.masqueradeBit", "0 to 31"}},
		{"nftables: {syncPeriod: -1s}", "--iptables-sync-period=0s", []string{"nftables.syncPeriod"}},
		{"nftables: {minSyncPeriod: 31s}", "--iptables-min-sync-period=31s", []string{"nftables.syncPeriod", "minSyncPeriod"}},
		{"oomScoreAdj: -1001", "--oom-score-adj=1001", []string{"oomScoreAdj", "-1000 to 1000"}},
		{"bindAddress: x", "--bind-address=x", []string{"x"}},
		{"healthzBindAddress: host:1", "--healthz-bind-address=host:1", []string{"host"}},
		{"metricsBindAddress: '1.2.3.4:0'", "--metrics-bind-address=1.2.3.4:65536", []string{"65"}},
		{"nodePortAddresses: [primary, 10.0.0.0]", "--nodeport-addresses=10.0.0.0", []string{"nodePortAddresses", "10.0.0.0", "CIDR"}},
		{"clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "--cluster-cidr=10.0.0.0/8,11.0.0.0/8", []string{"clusterCIDR", "one per family"}},
		{"clusterCIDR: 10.0.0.0/33", "--cluster-cidr=10.0.0.0", []string{"clusterCIDR"}},
		{"detectLocalMode: Foo", "--detect-local-mode=Foo", []string{"detectLocalMode", "BridgeInterface"}},
		{"detectLocalMode: BridgeInterface", "--detect-local-mode=BridgeInterface", []string{"detectLocal.bridgeInterface"}},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: sixteen-bytes-xx}", "", []string{"interfaceNamePrefix", "15"}},
		{"conntrack: {min: -1, udpTimeout: -1s}", "--conntrack-min=-1", []string{"conntrack.min"}},
		{"configSyncPeriod: -1s", "--config-sync-period=-1s", []string{"configSyncPeriod"}},
		{"featureGates: {AllowServiceExternalIP: false}", "--feature-gates=AllowServiceExternalIP=false", []string{"did you mean AllowServiceExternalIPs"}},
		{"featureGates: {PreferSameTrafficDistribution: false}", "--feature-gates=PreferSameTrafficDistribution=false", []string{"PreferSameTrafficDistribution", "locked"}},
		{"clientConnection: {burst: -1}", "--kube-api-burst=-1", []string{"burst"}},
		{"showHiddenMetricsForVersion: one", "--show-hidden-metrics-for-version=one", []string{"showHiddenMetricsForVersion"}},
		{"logging: {format: nonsense}", "--logging-format=nonsense", []string{"logging"}},
		{"hostnameOverride: ' '", "--hostname-override= ", []string{"name of the node"}},
		{"nftables: 5", "", []string{"KubeProxyConfiguration"}},
	} {
		run := func(how string, err error) {
			if err == nil {
				t.Errorf("%s: accepted", how)
				return
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: error %q does not say %q", how, err, part)
				}
			}
		}
		_, err := load(t, files{"c": kubeHead + c.file}, "--config=c")
		run(c.file, err)
		if c.flags != "" {
			_, err := load(t, nil, c.flags)
			run(c.flags, err)
		}
	}
}

// TestAllFaultsAtOnce: the error names every wrong setting of both documents, one per line.
func TestAllFaultsAtOnce(t *testing.T) {
	_, err := load(t, files{"c": kubeHead + "mode: x\noomScoreAdj: 5000\n---\n" + ownHead + "affinityMapSize: 0\nnosuch: 1"}, "--config=c")
	if err == nil {
		t.Fatal("accepted")
	}
	for i, line := range strings.Split(err.Error(), "\n") {
		for _, part := range []string{`NFTProxyConfiguration: unknown field "nosuch"`, "KubeProxyConfiguration.mode: ", "KubeProxyConfiguration.oomScoreAdj: ", "NFTProxyConfiguration.affinityMapSize: "}[i : i+1] {
			if !strings.HasPrefix(line, part) {
				t.Errorf("line %d of the error is %q, want it to begin with %q", i, line, part)
			}
		}
	}
}

func TestFamily(t *testing.T) {
	cidr := netip.MustParsePrefix
	for _, c := range []struct {
		list   []string
		v4, v6 NodePortAddresses
	}{
		{[]string{"primary"}, NodePortAddresses{Primary: true}, NodePortAddresses{Primary: true}},
		{[]string{"10.0.0.0/8"}, NodePortAddresses{CIDRs: []netip.Prefix{cidr("10.0.0.0/8")}}, NodePortAddresses{All: true}},
		{[]string{"fd00::/8"}, NodePortAddresses{All: true}, NodePortAddresses{CIDRs: []netip.Prefix{cidr("fd00::/8")}}},
		{[]string{"0.0.0.0/0", "fd00::/8"}, NodePortAddresses{All: true}, NodePortAddresses{CIDRs: []netip.Prefix{cidr("fd00::/8")}}},
		{[]string{"localhost"}, NodePortAddresses{Localhost: true}, NodePortAddresses{Localhost: true}},
		{[]string{"localhost", "10.0.0.0/8"}, NodePortAddresses{Localhost: true, CIDRs: []netip.Prefix{cidr("10.0.0.0/8")}}, NodePortAddresses{Localhost: true}},
		{[]string{"all"}, NodePortAddresses{All: true}, NodePortAddresses{All: true}},
	} {
		var check checks
		n := check.nodePorts(c.list, nil)
		if got := n.Family(false); !reflect.DeepEqual(got, c.v4) {
			t.Errorf("%v IPv4: %+v, want %+v", c.list, got, c.v4)
		}
		if got := n.Family(true); !reflect.DeepEqual(got, c.v6) {
			t.Errorf("%v IPv6: %+v, want %+v", c.list, got, c.v6)
		}
	}
}

// TestGates: each kind of gate, and what it switches.
func TestGates(t *testing.T) {
	c := mustLoad(t, nil, "--feature-gates=ComponentStatusz=false,WatchListClient=false,NFTablesNetlink=false,NodeSwap=true,MultiCIDRServiceAllocator=true")
	if c.Gates.Statusz() || !c.Gates.Flagz() || c.Gates.client["WatchListClient"] || len(c.Gates.client) != 1 {
		t.Errorf("gates: %v, of client-go %v", c.Gates, c.Gates.client)
	}
	client := clientOverride{clientfeatures.FeatureGates(), c.Gates.client}
	if client.Enabled(clientfeatures.WatchListClient) || !client.Enabled(clientfeatures.AtomicFIFO) {
		t.Error("client-go's gates are not as set")
	}
	want := []string{
		"feature gate NFTablesNetlink has no effect: nftproxy uses nothing but netlink",
		"feature gate NodeSwap has no effect: kube-proxy does not read it",
	}
	if d := cmp.Diff(want, c.Warnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
	if !mustLoad(t, nil, "--feature-gates=AllAlpha=true").Gates.Enabled("LoggingAlphaOptions") {
		t.Error("AllAlpha does not switch LoggingAlphaOptions on")
	}
}

func TestExternalIPsAllow(t *testing.T) {
	for _, c := range []struct {
		own     string
		in, out []string
	}{
		{"", []string{"192.0.2.1", "2001:db8::1"}, nil},
		{"externalIPs: {allow: [192.0.2.0/24, 2001:db8::/64]}", []string{"192.0.2.1", "2001:db8::1"}, []string{"192.0.3.1", "2001:db8:1::1"}},
		{"externalIPs: {allow: [none]}", nil, []string{"192.0.2.1", "2001:db8::1"}},
		{"externalIPs: {allow: []}", nil, []string{"192.0.2.1"}},
	} {
		e := mustLoad(t, files{"o": ownHead + c.own}, "--nftproxy-config=o").ExternalIPs
		for _, a := range c.in {
			if !e.Allow(netip.MustParseAddr(a)) {
				t.Errorf("%q refuses %s", c.own, a)
			}
		}
		for _, a := range c.out {
			if e.Allow(netip.MustParseAddr(a)) {
				t.Errorf("%q allows %s", c.own, a)
			}
		}
	}
}
