// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// many returns n Services of one ClusterIP with three endpoints each in both families, the first of which is served
// by a real pod.
func many(first, n int, pod *lab.Pod) []lab.Object {
	var out []lab.Object
	for i := first; i < first+n; i++ {
		svc := lab.NewService(fmt.Sprintf("svc-%d", i), i, lab.Port(lab.TCP, 80, 8080))
		slices := lab.NewSlices(svc, pod.Endpoint())
		for f, s := range slices {
			for e := range 2 {
				a := netip.AddrFrom4([4]byte{10, 245 + byte(e), byte(i >> 8), byte(i)})
				if f == 1 {
					a = netip.AddrFrom16([16]byte{0: 0xfd, 2: byte(e + 1), 14: byte(i >> 8), 15: byte(i)})
				}
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
			}
		}
		out = append(out, lab.Objects(svc, slices)...)
	}
	return out
}

// resident is a process's resident memory in MiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// size counts what a node's table holds.
func (c *cluster) size(n *lab.Node, f nft.Family) (chains, rules, sets, elements int) {
	s := c.snapshot(n, f)
	for _, ch := range s.Chains {
		rules += len(ch.Rules)
	}
	return len(s.Chains), rules, len(s.Sets), len(s.Elements)
}

// scales are the numbers of Services that are loaded from manifests; the API server's writes take most of the time of the
// other test, which therefore has fewer unless NFTPROXY_SCALE says how many.
var scales = []int{1, 1000, 10000}

func apiScale() int {
	if n, err := strconv.Atoi(os.Getenv("NFTPROXY_SCALE")); err == nil {
		return n
	}
	return 1000
}

// Chains, rules and sets do not depend on the number of Services, and neither does the cost of a change.
func TestScaleFromManifests(t *testing.T) {
	type size struct{ chains, rules, sets int }
	seen := map[size]int{}
	for _, n := range scales {
		c := fromManifests(t, lab.Options{Nodes: 1, PodsPerNode: 1})
		pod := c.Node(1).Pods[0]
		c.serve(8080, c.pods(), lab.TCP)
		if err := c.Source.(lab.ManifestDir).Write("services.yaml", many(2, n, pod)...); err != nil {
			t.Fatal(err)
		}
		s := c.measure(t, n, pod)
		seen[size{s.chains, s.rules, s.sets}] = n
		c.Close()
	}
	if len(seen) != 1 {
		t.Errorf("size of the ruleset depends on the number of Services: %v", seen)
	}
}

func TestScaleFromAPI(t *testing.T) {
	c := fromAPI(t, lab.Options{Nodes: 1, PodsPerNode: 1})
	pod := c.Node(1).Pods[0]
	c.serve(8080, c.pods(), lab.TCP)
	c.apply(lab.Objects(many(2, apiScale(), pod)))
	c.measure(t, apiScale(), pod)
}

type scaled struct{ chains, rules, sets, elements int }

// measure starts the proxy, waits for the last Service to answer, and logs what that took.
func (c *cluster) measure(t *testing.T, n int, pod *lab.Pod) scaled {
	t.Helper()
	last := lab.Probe{From: pod.Host, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv6, n+1), 80), Timeout: 50 * time.Millisecond}
	start := time.Now()
	spec := c.spec
	spec.NoWait = true
	proxy := lab.Must(lab.StartProxy(c.Node(1), spec))(t)
	// One endpoint in three is real.
	if r, ok := last.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == lab.Answered }); !ok {
		t.Fatalf("last Service: %s", r)
	}
	took := time.Since(start)
	if err := proxy.WaitReady(); err != nil {
		t.Fatal(err)
	}
	var s scaled
	s.chains, s.rules, s.sets, s.elements = c.size(c.Node(1), nft.IPv4)
	t.Logf("%d Services x 3 endpoints x 2 families: first answer of the last one after %s, %d MiB resident; IPv4: %d chains, %d rules, %d sets, %d elements",
		n, took.Round(time.Millisecond), resident(t, proxy.PID()), s.chains, s.rules, s.sets, s.elements)
	if want := 5 * n; s.elements < want {
		t.Errorf("%d elements, want at least %d", s.elements, want)
	}
	return s
}
