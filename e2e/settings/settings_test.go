// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package settings holds our reading of flags and configuration files against
// real kube-proxy's: what it accepts, what it refuses, and what it makes of it.
package settings

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/proxier/config"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"

// kubeProxy runs real kube-proxy until it has written its configuration, and
// returns that, or nil and its output if it refuses. It does nothing to the
// node: the configuration is written before the first rule is looked at.
func kubeProxy(t *testing.T, args ...string) (*kubeproxyconfig.KubeProxyConfiguration, string) {
	t.Helper()
	binary, err := lab.Peer("kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "written.yaml")
	out, err := exec.Command(binary, append(args, "--write-config-to="+to)...).CombinedOutput()
	if err != nil {
		return nil, string(out)
	}
	return read(t, to), ""
}

// ours does the same with our own code.
func ours(t *testing.T, args ...string) (*kubeproxyconfig.KubeProxyConfiguration, string) {
	t.Helper()
	o, fs := config.NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	to := filepath.Join(t.TempDir(), "written.yaml")
	if err := fs.Parse(append(args, "--write-config-to="+to)); err != nil {
		return nil, err.Error()
	}
	c, err := o.Load(fs, config.Machine{Hostname: os.Hostname, ReadFile: os.ReadFile})
	if err != nil {
		return nil, err.Error()
	}
	var text bytes.Buffer
	if err := c.Write(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return read(t, to), ""
}

// read reads the first document of a file.
func read(t *testing.T, path string) *kubeproxyconfig.KubeProxyConfiguration {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	k := &kubeproxyconfig.KubeProxyConfiguration{}
	if err := yaml.UnmarshalStrict([]byte(first), k); err != nil {
		t.Fatal(err)
	}
	return k
}

// level takes out the differences that docs/compatibility.md explains: the
// least period, and sections of other modes, which kube-proxy writes in part.
func level(k *kubeproxyconfig.KubeProxyConfiguration) *kubeproxyconfig.KubeProxyConfiguration {
	k = k.DeepCopy()
	if k.NFTables.MinSyncPeriod.Duration == 0 {
		k.NFTables.MinSyncPeriod = metav1.Duration{Duration: time.Second}
	}
	k.IPTables.SyncPeriod, k.IPTables.MinSyncPeriod = metav1.Duration{}, metav1.Duration{}
	k.IPVS.SyncPeriod, k.IPVS.MinSyncPeriod = metav1.Duration{}, metav1.Duration{}
	return k
}

// check compares what both make of a command line. differs says why the two
// are not alike, where they are not: then kube-proxy must refuse and we not.
func check(t *testing.T, what, differs string, args ...string) {
	t.Helper()
	theirs, theirWord := kubeProxy(t, args...)
	mine, myWord := ours(t, args...)
	switch {
	case differs != "":
		if theirs != nil || mine == nil {
			t.Errorf("%s: want it refused by kube-proxy only (%s), but accepted: kube-proxy %v, we %v\n%s", what, differs, theirs != nil, mine != nil, myWord)
		}
	case (theirs == nil) != (mine == nil):
		t.Errorf("%s: accepted by kube-proxy %v, by us %v\nkube-proxy: %s\nwe: %s", what, theirs != nil, mine != nil, theirWord, myWord)
	case theirs != nil:
		if d := cmp.Diff(level(theirs), level(mine)); d != "" {
			t.Errorf("%s: (-kube-proxy +ours):\n%s", what, d)
		}
	}
}

// TestFilesLikeKubeProxy: each of these in a file of its own.
func TestFilesLikeKubeProxy(t *testing.T) {
	for _, c := range []struct{ text, differs string }{
		{text: ""},
		{text: "bindAddress: 192.0.2.1"},
		{text: "bindAddress: fd00::1"},
		{text: "bindAddress: '::'"},
		{text: "bindAddress: 010.0.0.1"}, // leading zeros are decimal
		{text: "bindAddress: x"},
		{text: "bindAddress: ''\nhealthzBindAddress: ''\nmetricsBindAddress: ''"},
		{text: "healthzBindAddress: 127.0.0.1\nmetricsBindAddress: '::1'"},
		{text: "healthzBindAddress: '[::1]:99'"},
		{text: "healthzBindAddress: '[::1]'"},
		{text: "healthzBindAddress: localhost:99"},
		{text: "healthzBindAddress: 127.0.0.1:0"},
		{text: "metricsBindAddress: 127.0.0.1:65536"},
		{text: "nftables: {masqueradeBit: 0, masqueradeAll: true, syncPeriod: 5s, minSyncPeriod: 5s}"},
		{text: "nftables: {masqueradeBit: 32}"},
		{text: "nftables: {masqueradeBit: -1}"},
		{text: "nftables: {syncPeriod: 5s, minSyncPeriod: 6s}"},
		{text: "nftables: {syncPeriod: -5s}"},
		{text: "nftables: {minSyncPeriod: -1ns}"},
		{text: "nftables: {syncPeriod: 5}"},
		{text: "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true, udpTimeout: 1s, udpStreamTimeout: 2s}"},
		{text: "conntrack: {maxPerCore: -1}"},
		{text: "conntrack: {min: -1}"},
		{text: "conntrack: {tcpEstablishedTimeout: -1s}"},
		{text: "conntrack: {udpStreamTimeout: -1s}"},
		{text: "oomScoreAdj: -1000"},
		{text: "oomScoreAdj: 1001"},
		{text: "configSyncPeriod: -1s"},
		{text: "clusterCIDR: 10.0.0.0/8"},
		{text: "clusterCIDR: 10.0.0.0/8,fd00::/8"},
		{text: "clusterCIDR: 10.0.0.0/8,11.0.0.0/8"},
		{text: "clusterCIDR: 10.0.0.0/8,fd00::/8,11.0.0.0/8"},
		{text: "clusterCIDR: 10.0.0.0/8, fd00::/8"},
		{text: "clusterCIDR: 10.0.0.0"},
		{text: "clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR"},
		{text: "detectLocalMode: BridgeInterface"},
		{text: "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}"},
		{text: "detectLocalMode: InterfaceNamePrefix"},
		{text: "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}"},
		{text: "detectLocalMode: clustercidr"},
		{text: "nodePortAddresses: [primary]"},
		{text: "nodePortAddresses: [10.0.0.0/8, fd00::/8, 127.0.0.0/8]"},
		{text: "nodePortAddresses: [10.0.0.0]"},
		{text: "nodePortAddresses: [10.0.0.0/33]"},
		{text: "nodePortAddresses: ['']"},
		{text: "nodePortAddresses: [primary, 10.0.0.0/8]", differs: "as v1.37"},
		{text: "nodePortAddresses: [localhost, all]", differs: "as v1.37"},
		{text: "clientConnection: {kubeconfig: /x, acceptContentTypes: a, contentType: b, qps: 1.5, burst: 7}"},
		{text: "clientConnection: {burst: -1}"},
		{text: "hostnameOverride: Some-Node"},
		{text: "showHiddenMetricsForVersion: '1.2'", differs: "any version is accepted"},
		{text: "showHiddenMetricsForVersion: one"},
		{text: "featureGates: {NoSuchGate: true}", differs: "gates are tolerated"},
		{text: "logging: {format: json, verbosity: 4, flushFrequency: 3s}"},
		{text: "logging: {format: nonsense}"},
		{text: "logging: {vmodule: [{filePattern: a, verbosity: 2}]}"},
		{text: "logging: {options: {text: {splitStream: true}}}"}, // behind an alpha gate
		{text: "enableProfiling: true\nbindAddressHardFail: true\nportRange: 1-2"},
		{text: "iptables: {masqueradeBit: 3, localhostNodePorts: false}"},
		{text: "ipvs: {scheduler: rr, strictARP: true, excludeCIDRs: [10.0.0.0/8], tcpTimeout: 1s}"},
		{text: "winkernel: {networkName: x, enableDSR: true}\nwindowsRunAsService: true"},
		{text: "nosuchfield: 1"},
		{text: "oomScoreAdj: 1\noomScoreAdj: 2"},
		{text: "oomScoreAdj: many"},
		{text: "---\nthe: second document is not kube-proxy's"},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if c.text == "---\nthe: second document is not kube-proxy's" {
			c.text = "---\napiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\nlocalhostNodePorts: true"
		}
		if err := os.WriteFile(path, []byte(head+c.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run("", func(t *testing.T) {
			t.Parallel() // each starts a process that mostly starts
			check(t, c.text, c.differs, "--config="+path)
		})
	}
}

// TestFlagsLikeKubeProxy: each of these on a command line of its own.
func TestFlagsLikeKubeProxy(t *testing.T) {
	for _, c := range []struct{ flags, differs string }{
		{flags: ""},
		{flags: "--masquerade-all --cluster-cidr=10.0.0.0/8 --nodeport-addresses=10.0.0.0/8,fd00::/8"},
		{flags: "--bind-address=fd00::1"},
		{flags: "--bind-address=x"},
		{flags: "--healthz-bind-address=127.0.0.1:1 --metrics-bind-address=[::1]:2 --profiling"},
		{flags: "--healthz-bind-address=127.0.0.1:65536"},
		{flags: "--iptables-sync-period=7s --iptables-min-sync-period=3s"},
		{flags: "--iptables-sync-period=0s"},
		{flags: "--iptables-min-sync-period=31s"},
		{flags: "--conntrack-max-per-core=1 --conntrack-min=2 --conntrack-tcp-timeout-established=3s --conntrack-tcp-timeout-close-wait=4s"},
		{flags: "--conntrack-udp-timeout=1s --conntrack-udp-timeout-stream=2s --conntrack-tcp-be-liberal"},
		{flags: "--conntrack-min=-1"},
		{flags: "--oom-score-adj=5"},
		{flags: "--oom-score-adj=-1001"},
		{flags: "--detect-local-mode=BridgeInterface --pod-bridge-interface=br0"},
		{flags: "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth"},
		{flags: "--detect-local-mode=Nonsense"},
		{flags: "--hostname-override=Node-X --kubeconfig=/k --kube-api-qps=2 --kube-api-burst=3 --kube-api-content-type=application/json"},
		{flags: "--config-sync-period=1m"},
		{flags: "--config-sync-period=0s"},
		{flags: "--ipvs-scheduler=rr --ipvs-strict-arp --ipvs-tcp-timeout=1s"},
		{flags: "--healthz-port=0 --metrics-port=0"}, // with --write-config-to they count for neither
		{flags: "-v=3 --vmodule=a=1 --logging-format=json"},
		{flags: "-v=3 --logging-format=json"},
		{flags: "--no-such-flag"},
		{flags: "--nodeport-addresses=nonsense"},
		{flags: "--feature-gates=LoggingAlphaOptions=true --log-text-split-stream"},
		{flags: "--log-text-split-stream"},
		{flags: "--feature-gates=NoSuchGate=true", differs: "gates are tolerated"},
	} {
		args := append([]string{"--proxy-mode=nftables"}, strings.Fields(c.flags)...)
		t.Run("", func(t *testing.T) {
			t.Parallel()
			check(t, c.flags, c.differs, args...)
		})
	}
}

// TestHelp: every flag that kube-proxy lists is accepted, with the same default.
func TestHelp(t *testing.T) {
	binary, err := lab.Peer("kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	o, fs := config.NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	listed := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`).FindAllStringSubmatch(string(out), -1)
	if len(listed) < 50 {
		t.Fatalf("kube-proxy lists %d flags only:\n%s", len(listed), out)
	}
	ofTheCommand := []string{"help", "version"}
	for _, m := range listed {
		if !slices.Contains(ofTheCommand, m[1]) && fs.Lookup(m[1]) == nil {
			t.Errorf("kube-proxy's flag --%s is not accepted", m[1])
		}
	}
}
