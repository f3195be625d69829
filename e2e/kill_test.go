// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// newRand returns a source of randomness whose seed is printed, and can be set by NFTPROXY_SEED.
func newRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("NFTPROXY_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("NFTPROXY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// kills is how often the proxy is killed; NFTPROXY_KILLS sets another number.
func kills() int {
	if n, err := strconv.Atoi(os.Getenv("NFTPROXY_KILLS")); err == nil {
		return n
	}
	return 200
}

// state is which pods serve each Service, by the Service's index.
type state map[int][]*lab.Pod

// text is how the state looks in the kernel's tables: sorted, so that slots do not matter.
func (s state) text(f lab.Family) []string {
	var out []string
	for i, pods := range s {
		var eps []string
		for _, p := range pods {
			eps = append(eps, at(p.IP(f), 8080).String())
		}
		slices.Sort(eps)
		out = append(out, fmt.Sprintf("default/svc-%d:tcp-80 %s %v", i, at(lab.ClusterIP(f, i), 80), eps))
	}
	slices.Sort(out)
	return out
}

// programmed is the same of what a node's kernel holds.
func (c *cluster) programmed(n *lab.Node, f nft.Family) []string {
	_, ports := inspect.Collect(c.snapshot(n, f), nil)
	var out []string
	for _, p := range ports {
		for _, fe := range p.Frontends {
			eps := slices.Sorted(slices.Values(p.Endpoints.Cluster))
			address := fe.Address + ":"
			if f == nft.IPv6 {
				address = "[" + fe.Address + "]:"
			}
			out = append(out, fmt.Sprintf("%s %s%d %v", p.Name, address, fe.Port, eps))
		}
		out = append(out, p.Problems...)
	}
	slices.Sort(out)
	return out
}

// equals waits until a node's tables hold the state and nothing else.
func (c *cluster) equals(n *lab.Node, s state) {
	c.t.Helper()
	deadline := time.Now().Add(lab.HangLimit)
	for {
		same := true
		for i, f := range nft.Families() {
			same = same && slices.Equal(c.programmed(n, f), s.text(lab.Families()[i]))
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s has\n%v\nwant\n%v", n.Name, c.programmed(n, nft.IPv4), s.text(lab.IPv4))
		}
		time.Sleep(5 * time.Millisecond) // between polls
	}
}

// A proxy that is killed in the midst of a sync, again and again, ends with the tables that the objects ask for,
// and connections through it never notice.
func TestKillAtRandomPoints(t *testing.T) {
	r := newRand(t)
	c := fromManifests(t, lab.Options{Nodes: 1, PodsPerNode: 4})
	pods := c.pods()
	c.serve(8080, pods, lab.TCP)
	const services = 40
	want := state{}
	change := func(i int) {
		svc := lab.NewService(fmt.Sprintf("svc-%d", i), i, lab.Port(lab.TCP, 80, 8080))
		chosen := []*lab.Pod{}
		for _, p := range pods {
			if i == 2 || r.IntN(2) == 0 { // Service 2 keeps all its endpoints
				chosen = append(chosen, p)
			}
		}
		want[i] = chosen
		if i != 2 && r.IntN(5) == 0 && len(want) > 10 {
			delete(want, i)
			if err := c.Delete(t.Context(), lab.Objects(svc, lab.NewSlices(svc))...); err != nil {
				t.Fatal(err)
			}
			return
		}
		c.apply(svc, lab.NewSlices(svc, endpoints(chosen...)...))
	}
	for i := 2; i < services; i++ {
		change(i)
	}
	proxy := c.start()[0]
	conns := []*lab.Conn{}
	for _, f := range lab.Families() {
		for range 10 {
			conn, err := lab.Probe{From: c.Client(1).Host, Proto: lab.TCP, To: at(lab.ClusterIP(f, 2), 80)}.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
		}
	}
	spec := proxy.Spec
	spec.NoWait = true
	for k := range kills() {
		for range 1 + r.IntN(8) {
			change(2 + r.IntN(services-2))
		}
		// A start takes some 30 ms up to the end of its first sync, a change a few: all phases are hit.
		time.Sleep(time.Duration(r.IntN(40_000)) * time.Microsecond)
		if err := proxy.Kill(); err != nil {
			t.Fatal(err)
		}
		proxy = lab.Must(lab.StartProxy(c.Node(1), spec))(t)
		if k%10 != 9 {
			continue
		}
		c.equals(c.Node(1), want)
		for i, conn := range conns {
			if p := conn.Ping(lab.DefaultTimeout); p.Verdict != lab.Answered {
				t.Fatalf("after %d kills: connection %d: %s", k+1, i, p)
			}
		}
	}
	c.equals(c.Node(1), want)
}
