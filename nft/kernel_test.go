// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

func addr(f Family, v4, v6 string) netip.Addr {
	if f == IPv4 {
		return netip.MustParseAddr(v4)
	}
	return netip.MustParseAddr(v6)
}

// sample is a set of Services with every kind of element.
func sample(f Family) []*Service {
	ep := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(addr(f, fmt.Sprintf("10.244.0.%d", i), fmt.Sprintf("fd00:244::%x", i)), 8080)
	}
	vip := func(i int) netip.Addr {
		return addr(f, fmt.Sprintf("10.96.0.%d", i), fmt.Sprintf("fd00:10:96::%x", i))
	}
	lb := func(i int) netip.Addr {
		return addr(f, fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("2001:db8::%x", i))
	}
	sources := MergePrefixes([]netip.Prefix{netip.PrefixFrom(addr(f, "10.0.0.0", "fd01::"), 8)})
	all := func(p uint16, i int, local bool) []Frontend {
		return []Frontend{
			{Kind: ClusterIP, Addr: vip(i), Port: 80},
			{Kind: External, Addr: lb(i), Port: 80, Local: local, Restricted: local, Sources: sources},
			{Kind: NodePort, Port: p, Local: local},
		}
	}
	three := []netip.AddrPort{ep(1), ep(2), ep(3)}
	return []*Service{
		{Name: "default/web:http", Proto: TCP, Frontends: all(30001, 1, false), Cluster: three, Local: three[:1], Hairpin: three[:1], Served: true, Counted: true},
		{Name: "default/local:http", Proto: TCP, Frontends: all(30002, 2, true), Cluster: three, Local: three[:1], Hairpin: three[:1], Served: true},
		{Name: "default/nolocal:http", Proto: SCTP, Frontends: all(30003, 3, true), Cluster: three[1:], Served: true},
		{Name: "default/none:http", Proto: UDP, Frontends: all(30004, 4, false)},
		{Name: "default/sticky:http", Proto: TCP, Frontends: all(30005, 5, true), Cluster: three, Local: three[:1], Served: true,
			Affinity: 3 * time.Hour, AffinityIDs: [2]uint32{1, 2}},
		{Name: "default/steered:http", Proto: TCP, Frontends: []Frontend{{Kind: ClusterIP, Addr: vip(6), Port: 80, Local: true, Steered: true}},
			Local: three[:1], Hairpin: three[:1], Served: true},
		{Name: "default/handed:http", Proto: TCP, Frontends: []Frontend{{Kind: ClusterIP, Addr: vip(8), Port: 80, HandedOver: true}}, Cluster: three, Served: true},
		{Name: "default/host:http", Proto: UDP, Frontends: []Frontend{{Kind: ClusterIP, Addr: vip(7), Port: 80, Local: true, HostEndpoint: three[1]}},
			Local: three[:2], Hairpin: three[:2], Served: true},
	}
}

func sampleNode(f Family) []Element {
	p := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112"), netip.MustParsePrefix("255.255.255.0/24")}
	out := RangeElements(Pods, f, p)
	out = append(out, RangeElements(ServiceCIDRs, f, cidrs)...)
	return append(out, AddrElements(NodePortAddresses, f, []netip.Addr{addr(f, "172.18.0.2", "fd00:18::2")})...)
}

func read(t testing.TB, k *kernel.Conn, f Family) *Content {
	t.Helper()
	c, err := k.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// program brings the kernel to the state and returns the number of batches that took.
func program(t testing.TB, k *kernel.Conn, f Family, cfg Config, want []*Service, node []Element) (*Table, int) {
	t.Helper()
	c := read(t, k, f)
	table := NewTable(c)
	batches := table.Reconcile(c, cfg, want, node)
	for _, b := range batches {
		if err := k.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	return table, len(batches)
}

func TestReconcileIsSilentOnceDone(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	cfg := Config{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}}
	for _, f := range Families() {
		if _, b := program(t, k, f, cfg, sample(f), sampleNode(f)); b == 0 {
			t.Errorf("%s: nothing was loaded", f)
		}
		if _, b := program(t, k, f, cfg, sample(f), sampleNode(f)); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
		want := WantedElements(sample(f), sampleNode(f))
		if d := DiffElements(read(t, k, f).Elements, want); d.Len() != 0 {
			t.Errorf("%s: kernel differs from what was wanted: %+v", f, d)
		}
		if _, b := program(t, k, f, cfg, nil, nil); b == 0 {
			t.Errorf("%s: nothing was unloaded", f)
		}
		if c := read(t, k, f); len(c.Elements) != 0 || c.Sets["affinity-1"].Flags != 0 {
			t.Errorf("%s: left behind: %v %v", f, c.Elements, c.Sets["affinity-1"])
		}
	}
}

// The host's nft must print our tables, and load what it printed.
func TestNFTPrintsAndLoads(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	cfgs := []Config{
		{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}},
		{MasqueradeBit: 31, MasqueradeAll: true, NodePortAll: true},
		{MasqueradeBit: 3, Connections: true},
		{NodePortAll: true, Connections: true, Pods: PodMatch{CIDRs: true}},
		{Pods: PodMatch{Interface: "cbr0"}},
		{Pods: PodMatch{Interface: "veth", Prefix: true}, NodePortAll: true},
	}
	cfgs = append(cfgs, externalConfigs()...)
	for _, cfg := range cfgs {
		for _, f := range Families() {
			program(t, k, f, inFamily(cfg, f), sample(f), sampleNode(f))
		}
		text := n.nft(t, "", "list", "ruleset")
		n.nft(t, "", "flush", "ruleset")
		n.nft(t, text, "-f", "-")
		if again := n.nft(t, "", "list", "ruleset"); again != text {
			t.Errorf("config %+v: loaded differently:\n%s\n--- was\n%s", cfg, again, text)
		}
		for _, f := range Families() {
			c := read(t, k, f)
			if d := DiffElements(c.Elements, WantedElements(sample(f), sampleNode(f))); d.Len() != 0 {
				t.Errorf("config %+v: nft loaded other elements than it printed: %+v", cfg, d)
			}
			if !c.Leads(NewProgram(KindCluster, 3)) || !c.Leads(NewProgram(KindAffinity, 1)) || !c.Leads(NewProgram(KindExternal, 0)) {
				t.Errorf("config %+v: nft loaded other programs than it printed: %v", cfg, c.Verdicts)
			}
			program(t, k, f, inFamily(cfg, f), sample(f), sampleNode(f)) // what nft wrote is replaced by what we write
			if d := DiffElements(read(t, k, f).Elements, WantedElements(sample(f), sampleNode(f))); d.Len() != 0 {
				t.Errorf("config %+v: after reload %+v", cfg, d)
			}
		}
	}
}

func TestChangesOneByOne(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		cfg := Config{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}}
		table, _ := program(t, k, f, cfg, nil, sampleNode(f))
		commit := func(prev, next *Service) int {
			batches, change := table.Plan([]Update{{prev, next}}, sampleNode(f))
			if err := k.CommitAll(batches, nil); err != nil {
				t.Fatal(err)
			}
			table.Committed()
			return change.Len()
		}
		var have []*Service
		for _, s := range sample(f) {
			commit(nil, s)
			have = append(have, s)
			if d := DiffElements(read(t, k, f).Elements, WantedElements(have, sampleNode(f))); d.Len() != 0 {
				t.Fatalf("%s after %s: %+v", f, s.Name, d)
			}
		}
		next := *have[0]
		next.Cluster = slices.Clone(next.Cluster)
		next.Cluster[1] = netip.AddrPortFrom(addr(f, "10.244.0.9", "fd00:244::9"), 8080)
		if n := commit(have[0], &next); n != 2*len(next.Frontends) {
			t.Errorf("%s: one endpoint replaced took %d elements, want 2 per frontend", f, n)
		}
		commit(&next, nil)
		for _, s := range have[1:] {
			commit(s, nil)
		}
		b := table.Sweep()
		if b == nil {
			t.Fatalf("%s: nothing to sweep after a sticky Service was deleted", f)
		}
		if err := k.Commit(b); err != nil {
			t.Fatal(err)
		}
		table.Swept()
		if c := read(t, k, f); len(c.Elements) != len(sampleNode(f)) {
			t.Errorf("%s: %d elements left, want the node's %d", f, len(c.Elements), len(sampleNode(f)))
		} else if _, ok := c.Sets["affinity-1"]; ok {
			t.Errorf("%s: client map left", f)
		}
	}
}
