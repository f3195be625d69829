// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/routing"
)

// TestLenient: fields that do not exist, or twice, are a warning that names
// them, and the rest counts.
func TestLenient(t *testing.T) {
	for _, text := range []string{"nosuchfield: 1\n", "mode: nftables\nmode: nftables\n", "nftables: {nosuchfield: 1}\n"} {
		c, err := load(t, files{"c": kubeHead + text + "oomScoreAdj: 5\n"}, "--config=c")
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if c.OOMScoreAdj != 5 {
			t.Errorf("%q: the rest of the file does not count", text)
		}
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "nosuchfield") && !strings.Contains(c.Warnings[0], "mode") {
			t.Errorf("%q: warnings %q", text, c.Warnings)
		}
	}
}

// TestWrongFiles: what is refused, and what the error says.
func TestWrongFiles(t *testing.T) {
	for _, c := range []struct {
		name string
		f    files
		args []string
		want string
	}{
		{"no such file", files{}, []string{"--config=c"}, "not exist"},
		{"empty file", files{"c": "# nothing\n---\n"}, []string{"--config=c"}, "neither"},
		{"no kind", files{"c": "mode: nftables"}, []string{"--config=c"}, `kind ""`},
		{"another kind", files{"c": "apiVersion: v1\nkind: Pod"}, []string{"--config=c"}, "Pod"},
		{"another version", files{"c": "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration"}, []string{"--config=c"}, "v1"},
		{"not YAML", files{"c": "a: b: c"}, []string{"--config=c"}, "document 1"},
		{"wrong type", files{"c": kubeHead + "oomScoreAdj: x"}, []string{"--config=c"}, "oomScoreAdj"},
		{"two of kube-proxy's", files{"c": kubeHead + "---\n" + kubeHead}, []string{"--config=c"}, "second KubeProxyConfiguration"},
		{"two of ours", files{"c": kubeHead + "---\n" + ownHead + "---\n" + ownHead}, []string{"--config=c"}, "second NFTProxyConfiguration"},
		{"two of ours in two files", files{"c": kubeHead + "---\n" + ownHead, "o": ownHead}, []string{"--config=c", "--nftproxy-config=o"}, "second NFTProxyConfiguration"},
		{"only ours in --config", files{"c": ownHead}, []string{"--config=c"}, "--nftproxy-config"},
		{"own kind misspelt", files{"c": "apiVersion: nftproxy.io/v1alpha1\nkind: Foo"}, []string{"--config=c"}, "NFTProxyConfiguration of"},
		{"unknown field of ours", files{"o": ownHead + "strictSourceRange: false"}, []string{"--nftproxy-config=o"}, `unknown field "strictSourceRange" (did you mean "strictSourceRanges"?)`},
		{"in another section", files{"o": ownHead + "tcp: true"}, []string{"--nftproxy-config=o"}, `did you mean "staleFlows.tcp"`},
		{"written otherwise", files{"o": ownHead + "MaxElements: 5"}, []string{"--nftproxy-config=o"}, `did you mean "maxElements"`},
		{"twice", files{"o": ownHead + "maxElements: 5\nmaxElements: 6"}, []string{"--nftproxy-config=o"}, `"maxElements" already set`},
		{"wrong type of ours", files{"o": ownHead + "maxElements: many"}, []string{"--nftproxy-config=o"}, "maxElements: must be of type int, is a JSON string"},
		{"external IPs", files{"o": ownHead + "externalIPs: {allow: [10.0.0.0]}"}, []string{"--nftproxy-config=o"}, "externalIPs.allow[0]"},
		{"all and more", files{"o": ownHead + "externalIPs: {allow: [10.0.0.0/8, all]}"}, []string{"--nftproxy-config=o"}, "must be alone"},
		{"unknown routing field", files{"o": ownHead + "routing: {steering: {enable: true}}"}, []string{"--nftproxy-config=o"}, `"routing.steering.enable" (did you mean "routing.steering.enabled"?)`},
		{"affinity", files{"o": ownHead + "affinityMapSize: 16777217"}, []string{"--nftproxy-config=o"}, "1 to 16777216"},
		{"window", files{"o": ownHead + "batchWindow: 2s"}, []string{"--nftproxy-config=o"}, "batchWindow"},
		{"reset", files{"o": ownHead + "staleFlows: {reset: true}"}, []string{"--nftproxy-config=o"}, "staleFlows.tcp"},
		{"steering", files{"o": ownHead + "routing: {steering: {enabled: true, device: x, priority: 40000}}"}, []string{"--nftproxy-config=o"}, "40000"},
	} {
		_, err := load(t, c.f, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// ownText sets every setting of ours to something else than its default.
const ownText = ownHead + `manifests: /m
strictSourceRanges: false
localhostNodePorts: true
affinityMapSize: 1000
maxServiceElements: 5000
maxElements: 0
countConnections: true
batchWindow: 5ms
externalIPs: {allow: [192.0.2.0/24, 2001:db8::/32]}
staleFlows: {tcp: true, sctp: false, reset: true}
routing:
  masqueradeSubnets: [169.254.170.0/29]
  steering: {enabled: true, device: gw0, gateways: [{addr: 10.244.0.1}], mark: 0x10, priority: 31, table: 8}
`

func TestOwnSettings(t *testing.T) {
	want := *newOwn()
	want.Manifests, want.StrictSourceRanges, want.LocalhostNodePorts, want.CountConnections = "/m", false, true, true
	want.AffinityMapSize, want.MaxServiceElements, want.MaxElements, want.BatchWindow.Duration = 1000, 5000, 0, 5*time.Millisecond
	want.ExternalIPs.Allow = []string{"192.0.2.0/24", "2001:db8::/32"}
	want.StaleFlows = StaleFlows{TCP: true, Reset: true}
	for name, args := range map[string][]string{
		"after kube-proxy's": {"--config=both"}, "before kube-proxy's": {"--config=reverse"},
		"in a file of its own": {"--nftproxy-config=own"}, "beside --config": {"--config=kube", "--nftproxy-config=own"},
	} {
		c := mustLoad(t, files{
			"both": kubeHead + "---\n" + ownText, "reverse": ownText + "---\n" + kubeHead, "own": ownText, "kube": kubeHead,
		}, args...)
		got := c.Own
		got.Routing = routing.Config{}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if c.Manifests != "/m" || !c.NodePorts.Localhost || !c.NodePorts.Primary {
			t.Errorf("%s: manifests %q, node ports %+v", name, c.Manifests, c.NodePorts)
		}
		s := c.Own.Routing.Steering
		if !s.Enabled || s.Device != "gw0" || s.Mark != 16 || s.Priority != 31 || s.Table != 8 || len(s.Gateways) != 1 {
			t.Errorf("%s: steering %+v", name, s)
		}
	}
	if c := mustLoad(t, files{"own": ownText}, "--nftproxy-config=own", "--manifests=/flag"); c.Manifests != "/flag" {
		t.Errorf("--manifests does not win: %q", c.Manifests)
	}
}

// TestKubeProxyReadsOurFile: the strict decoder of kube-proxy reads the first
// document of a shared file and does not choke on ours.
func TestKubeProxyReadsOurFile(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubeproxyconfig.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	obj, _, err := decoder.Decode([]byte(kubeHead+"mode: nftables\n---\n"+ownText), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if kube, ok := obj.(*kubeproxyconfig.KubeProxyConfiguration); !ok || kube.Mode != "nftables" {
		t.Errorf("decoded %+v", obj)
	}
}

// TestWriteAndReadBack: what --write-config-to writes loads to the same Config,
// without warnings.
func TestWriteAndReadBack(t *testing.T) {
	for name, f := range map[string]files{
		"defaults": {"c": kubeHead},
		"kubeadm":  {"c": kubeadmDefault},
		"settings": {"c": kubeHead + "nftables: {masqueradeBit: 3, minSyncPeriod: 2s}\nnodePortAddresses: [localhost, 10.0.0.0/8]\n" +
			"hostnameOverride: Node-2\nclusterCIDR: 10.0.0.0/8\nconntrack: {udpTimeout: 3s}\nlogging: {verbosity: 3}\n---\n" + ownText},
	} {
		before := mustLoad(t, f, "--config=c")
		var text strings.Builder
		if err := before.Write(&text); err != nil {
			t.Fatal(err)
		}
		after := mustLoad(t, files{"c": text.String()}, "--config=c")
		if d := diffConfig(before, after); d != "" {
			t.Errorf("%s (-before +after):\n%s", name, d)
		}
		if d := cmp.Diff(before.External, after.External); d != "" {
			t.Errorf("%s, document (-before +after):\n%s", name, d)
		}
		if len(after.Warnings) > 0 {
			t.Errorf("%s: warnings %q", name, after.Warnings)
		}
	}
}

// TestKeyWarnings: keys that mean nothing here are named when they are set.
func TestKeyWarnings(t *testing.T) {
	c := mustLoad(t, files{"c": kubeHead + `mode: nftables
portRange: 1-2
iptables: {masqueradeBit: 1, localhostNodePorts: false}
ipvs: {scheduler: rr, tcpTimeout: 5s}
winkernel: {enableDSR: true}
windowsRunAsService: true
`}, "--config=c", "--ipvs-scheduler=rr")
	want := []string{
		"KubeProxyConfiguration: iptables.localhostNodePorts has no effect: list localhost in nodePortAddresses instead",
		"KubeProxyConfiguration: iptables.masqueradeBit has no effect: set the key of the nftables section instead",
		"KubeProxyConfiguration: ipvs.scheduler has no effect: there is no IPVS mode",
		"KubeProxyConfiguration: ipvs.tcpTimeout has no effect: there is no IPVS mode",
		"KubeProxyConfiguration: portRange has no effect: kube-proxy ignores it too",
		"KubeProxyConfiguration: windowsRunAsService has no effect: it is for Windows only",
		"KubeProxyConfiguration: winkernel.enableDSR has no effect: it is for Windows only",
		"flag --ipvs-scheduler has no effect: there is no IPVS mode",
	}
	less := cmp.Transformer("sort", func(s []string) map[string]int {
		out := map[string]int{}
		for _, x := range s {
			out[x]++
		}
		return out
	})
	if d := cmp.Diff(want, c.Warnings, less); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// FuzzDecode: no file makes the decoder panic, and what it accepts has at least
// one document.
func FuzzDecode(f *testing.F) {
	// Small seeds: the fuzzer minimizes each new input for up to a minute, and a long one for all of it.
	for _, seed := range []string{kubeHead + "mode: x", ownHead + "maxElements: 1", "---\n---\n", "a: [b", "a: 1\na: 2"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var docs documents
		err := docs.decodeFile("f", data)
		if err == nil && docs.kube == nil && docs.own == nil {
			t.Errorf("%q: accepted without a document", data)
		}
	})
}
