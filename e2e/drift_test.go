// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// driftOf runs `nftproxy dump --diff` on the node of a proxy, with the proxy's own flags, whether it runs or not. It returns
// what was printed and the code that it ended with.
func driftOf(t *testing.T, node *lab.Node, flags []string, more ...string) (string, int) {
	t.Helper()
	bin := lab.Must(lab.NftproxyBinary())(t)
	out, err := node.Run(slices.Concat([]string{bin, "dump", "--diff"}, flags, more)...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, 0
	case errors.As(err, &exit):
		return out + err.Error(), exit.ExitCode()
	}
	t.Fatal(err)
	return "", 0
}

// inquire runs an inquiry of nftproxy on a host, to which exit codes 0 and 1 are answers.
func inquire(t *testing.T, h *lab.Host, argv ...string) string {
	t.Helper()
	out, err := h.Run(argv...)
	if err != nil && !isAnswer(err) {
		t.Fatal(err)
	}
	return out
}

func isAnswer(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 1
}

// flagsOf are those that a running proxy was started with.
func flagsOf(t *testing.T, p *lab.Proxy) []string {
	t.Helper()
	line := lab.Must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID())))(t)
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")[1:]
}

// inStep asserts that the kernel has what the source asks for.
func inStep(t *testing.T, p *lab.Proxy) {
	t.Helper()
	if out, code := driftOf(t, p.Node, flagsOf(t, p)); code != 0 {
		t.Errorf("%s: code %d, want no drift:\n%s", p.Node, code, out)
	}
}

// driftScene are Services of all policies and one that is sticky, after endpoints came and went so that slots are in
// another order than a new table would have.
func driftScene(c *cluster) {
	x := &explained{cluster: c, names: map[string]string{}}
	x.scenery()
	sticky := lab.WithNodePorts(lab.NewService("sticky", 30, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 53, 8080)), 31000)
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	c.apply(sticky, lab.NewSlices(sticky, endpoints(c.pods()...)...))
}

// shuffle lets the first endpoints of a Service go and come back, behind the others.
func shuffle(c *cluster) {
	svc := lab.NewService("shuffled", 31, lab.Port(lab.TCP, 80, 8080))
	c.apply(svc)
	for _, list := range [][]*lab.Pod{c.pods(), c.pods()[1:], c.pods()} {
		c.apply(lab.NewSlices(svc, endpoints(list...)...))
		c.awaitEndpoints("default/shuffled:tcp-80", len(list))
	}
}

// damage is something done to the tables behind the proxy's back, and what dump --diff then has to report.
type damage struct {
	do string // an nft command
	// service is who is named, empty where only the table is, with the given state. says is in the text.
	service string
	state   inspect.Change
	says    string
}

func damages(c *cluster) []damage {
	vip, vip6 := lab.ClusterIP(lab.IPv4, 20).String(), lab.ClusterIP(lab.IPv6, 20).String()
	balancer, sticky := nft.NewProgram(nft.KindCluster, 3).Chain(), stickyChain(c)
	return []damage{
		{"delete element ip nftproxy services { " + vip + " . tcp . 80 }",
			"default/everywhere:tcp-80", inspect.Different, "+ services tcp " + vip + ":80: cluster-3 # default/everywhere:tcp-80"},
		{"delete element ip6 nftproxy endpoints { " + vip6 + " . sctp . 80 . 0:1 }",
			"default/everywhere:sctp-80", inspect.Different, "+ endpoints sctp [" + vip6 + "]:80 cluster 1"},
		{"delete element ip nftproxy endpoints { " + vip + " . udp . 80 . none }; add element ip nftproxy endpoints { " + vip + " . udp . 80 . none : 192.0.2.9 . 99 }",
			"default/everywhere:udp-80", inspect.Different, "- endpoints udp " + vip + ":80 cluster 0: 192.0.2.9:99\n  + endpoints udp " + vip + ":80 cluster 0: "},
		{"add element ip nftproxy endpoints { " + vip + " . tcp . 80 . 0:3 : 192.0.2.9 . 99 }",
			"default/everywhere:tcp-80", inspect.Different, "- endpoints tcp " + vip + ":80 cluster 3: 192.0.2.9:99"},
		{`add element ip nftproxy services { 10.96.9.9 . tcp . 80 comment "other/stranger:http" : 100:3 }`,
			"other/stranger:http", inspect.Extra, "extra: the source does not have it (elements: 1)"},
		{"flush set ip6 nftproxy allowed-128", "default/fenced:tcp-80", inspect.Different, "+ allowed-128 tcp "},
		{"", "default/fenced:udp-80", inspect.Different, "+ allowed-128 udp "},
		{"", "default/fenced:sctp-80", inspect.Different, "+ allowed-128 sctp "},
		{"add element ip nftproxy nodeport-addresses { 192.0.2.1 }", "", "", "- nodeport-addresses 192.0.2.1"},
		{"flush chain ip nftproxy nat-postrouting", "", "", "chain nat-postrouting: rule 1 is missing ("},
		{"add rule ip nftproxy services counter drop", "", "", "is not of this configuration"},
		{"flush chain ip nftproxy " + balancer, "", "", "chain " + balancer + ": rule 1 is missing"},
		{"flush chain ip nftproxy " + sticky, "default/sticky:tcp-80", inspect.Different, "chain " + sticky + ": rule 1 is missing"},
	}
}

// stickyChain is the chain of the sticky Service's first port.
func stickyChain(c *cluster) string {
	for _, a := range c.snapshot(c.Node(1), nft.IPv4).Affinities() {
		if a.Owner == nft.AffinityOwner("default/sticky:tcp-80", nft.ClusterView) {
			return nft.NewProgram(nft.KindAffinity, a.ID).Chain()
		}
	}
	return ""
}

// What a proxy has programmed is what `dump --diff` wants; and every damage is reported, by the name of the Service.
func TestDrift(t *testing.T) {
	onEachSource(t, lab.Options{Clients: 2}, func(t *testing.T, c *cluster) {
		driftScene(c)
		proxies := c.start()
		shuffle(c)
		for _, p := range proxies {
			inStep(t, p)
		}
		if _, fromAPI := c.Source.(*lab.ControlPlane); fromAPI {
			return // the comparison is the same
		}
		p, flags := proxies[0], flagsOf(t, proxies[0])
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		reportsAll(t, p.Node, flags, damages(c))
		p = lab.Must(p.Restart())(t)
		inStep(t, p)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		lab.Must(lab.NFT(p.Node.Host, "flush", "ruleset"))(t)
		text, code := driftOf(t, p.Node, flags, "--settle=0")
		for _, f := range nft.Families() {
			if line := fmt.Sprintf("default/itself:tcp-80 tcp (%s): missing: the kernel has nothing of it", f); !strings.Contains(text, line) {
				t.Errorf("code %d, want 1 and %q:\n%s", code, line, text)
			}
		}
		if out, code := driftOf(t, p.Node, flags, "--service=default/nope"); code != 2 || !strings.Contains(out, "neither the source nor the kernel") {
			t.Errorf("a Service that nobody has: code %d, want 2:\n%s", code, out)
		}
		if out, code := driftOf(t, p.Node, []string{"--manifests=/nonexistent"}); code != 2 {
			t.Errorf("without a source: code %d, want 2:\n%s", code, out)
		}
	})
}

// reportsAll asserts that each of the damages is reported, and no other.
func reportsAll(t *testing.T, node *lab.Node, flags []string, all []damage) {
	t.Helper()
	want := map[string]inspect.Change{}
	for _, d := range all {
		if d.do != "" {
			lab.Must(lab.NFT(node.Host, d.do))(t)
		}
		if d.service != "" {
			want[d.service] = d.state
		}
	}
	text, code := driftOf(t, node, flags, "--settle=0")
	for _, d := range all {
		if code != 1 || !strings.Contains(text, d.says) {
			t.Errorf("%s: code %d, want 1 and %q:\n%s", d.do, code, d.says, text)
		}
	}
	out, _ := driftOf(t, node, flags, "--settle=0", "-o", "json")
	var drift inspect.Drift
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&drift); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := map[string]inspect.Change{}
	for _, s := range drift.ServicePorts {
		got[s.Name] = s.State
	}
	if !maps.Equal(got, want) || !drift.Drifted {
		t.Errorf("drifted: %v, Service ports: %v, want %v", drift.Drifted, got, want)
	}
}

// awaitEndpoints waits until each table of node 1 has n endpoints of a Service port.
func (c *cluster) awaitEndpoints(name string, n int) {
	c.t.Helper()
	for deadline := time.Now().Add(lab.HangLimit); ; time.Sleep(5 * time.Millisecond) { // between polls
		right := 0
		for _, f := range nft.Families() {
			_, ports := inspect.Collect(c.snapshot(c.Node(1), f), nil)
			for _, p := range ports {
				if p.Name == name && len(p.Endpoints.Cluster) == n {
					right++
				}
			}
		}
		if right == 2 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s has not %d endpoints", name, n)
		}
	}
}
