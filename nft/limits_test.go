// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// crowd is n Services in 10.x.0.0/16, one endpoint each.
func crowd(n int, x byte, affinity time.Duration) []*Service {
	var out []*Service
	for i := range n {
		out = append(out, &Service{
			Name: fmt.Sprintf("default/crowd-%d-%d:http", x, i), Proto: TCP, Served: true, Affinity: affinity,
			Frontends: []Frontend{{Kind: ClusterIP, Addr: netip.AddrFrom4([4]byte{10, x, byte(i >> 8), byte(i)}), Port: 80}},
			Cluster:   []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:80")},
		})
	}
	return out
}

func programCrowd(t *testing.T, k *kernel.Conn, want []*Service, node []Element) {
	t.Helper()
	c := read(t, k, IPv4)
	table := NewTable(c)
	for _, s := range want {
		table.Number(s)
	}
	for _, b := range table.Reconcile(c, Config{}, want, node) {
		if err := k.Commit(b); err != nil {
			t.Fatalf("%d operations, %d elements: %v", len(b.Ops), b.Elements(), err)
		}
	}
}

// More programs than the 16 bits of a list's length can tell.
func TestManyStickyServices(t *testing.T) {
	k := newNamespace(t).open(t)
	const n = 1400
	programCrowd(t, k, crowd(n, 96, time.Hour), nil)
	c := read(t, k, IPv4)
	if want := n + 1 + len(AllPolicies()); len(c.Verdicts) != want { // and the draw of one endpoint
		t.Errorf("%d verdicts, want %d", len(c.Verdicts), want)
	}
	table := NewTable(c)
	services := crowd(n, 96, time.Hour)
	for _, s := range services {
		table.Number(s)
	}
	if b := table.Reconcile(c, Config{}, services, nil); len(b) != 0 {
		t.Fatalf("%d transactions of a second comparison", len(b))
	}
	var gone []Update
	for _, s := range services[:n/2] {
		gone = append(gone, Update{Prev: s})
	}
	batches, _ := table.Plan(gone, nil)
	if err := k.CommitAll(batches, nil); err != nil {
		t.Fatal(err)
	}
	table.Committed()
	sweeps := 0
	for b := table.Sweep(); b != nil; b = table.Sweep() {
		if n := len(b.Ops) / 3; n > ViewsAtOnce {
			t.Errorf("one transaction deletes %d sticky views", n)
		}
		if err := k.Commit(b); err != nil {
			t.Fatal(err)
		}
		table.Swept()
		sweeps++
	}
	if c := read(t, k, IPv4); sweeps < n/2/ViewsAtOnce || len(c.Verdicts) != n/2+1+len(AllPolicies()) {
		t.Errorf("%d transactions, %d verdicts left", sweeps, len(c.Verdicts))
	}
	programCrowd(t, k, nil, nil)
	if c := read(t, k, IPv4); len(c.Verdicts) != 1+len(AllPolicies()) || len(c.Elements) != 0 {
		t.Errorf("left behind: %d verdicts, %d elements", len(c.Verdicts), len(c.Elements))
	}
}

// A table of another version is replaced in one transaction, however large that is.
func TestReplacesLargeTable(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.nft(t, "table ip nftproxy {\n map services {\n type ipv4_addr : classid\n }\n}\n", "-f", "-")
	const services = 50000
	programCrowd(t, k, append(crowd(services, 96, 0), crowd(services, 97, 0)...), nil)
	if c := read(t, k, IPv4); len(c.Elements) != 2*3*services {
		t.Fatalf("%d elements", len(c.Elements))
	}
}

// Ranges that change in the midst of a large change overlap with those that they replace.
func TestStageKeepsRangesTogether(t *testing.T) {
	k := newNamespace(t).open(t)
	balanced := func(x byte, sources ...string) []*Service {
		var prefixes []netip.Prefix
		for _, s := range sources {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		lb := &Service{Name: "default/lb:http", Proto: TCP, Served: true, Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:80")},
			Frontends: []Frontend{{Kind: External, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80, Restricted: true, Sources: MergePrefixes(prefixes)}}}
		return append(crowd(ChunkSize, x, 0), lb)
	}
	pods := func(p string) []Element { return RangeElements(Pods, IPv4, []netip.Prefix{netip.MustParsePrefix(p)}) }
	for _, step := range []struct {
		services []*Service
		pods     []Element
	}{
		{balanced(96, "10.0.0.0/8", "192.0.2.0/24"), pods("10.244.0.0/16")},
		{balanced(97, "10.0.0.0/16", "192.0.2.0/25"), pods("10.244.0.0/14")},
		{balanced(98, "10.0.0.0/9"), pods("10.244.0.0/17")},
		{balanced(99, "0.0.0.0/1", "192.0.2.0/24"), pods("10.0.0.0/8")},
	} {
		programCrowd(t, k, step.services, step.pods)
		if d := DiffElements(read(t, k, IPv4).Elements, WantedElements(step.services, step.pods)); d.Len() != 0 {
			t.Fatalf("kernel differs: %d deleted, %d added", len(d.Delete), len(d.Add))
		}
	}
}

// A load that takes several transactions never leads a packet past a rule that is about its Service: ranges come with the
// rules, so that what is not programmed yet is dropped, and a ClusterIP, without which it would not be masqueraded but with
// which alone it is refused, comes with its program.
func TestLoadRefusesNothing(t *testing.T) {
	services := crowd(ChunkSize, 96, 0)
	node := RangeElements(ServiceCIDRs, IPv4, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})
	batches := NewTable(NewContent(IPv4)).Reconcile(NewContent(IPv4), Config{}, services, node)
	if e := findAdded(batches[0], func(e Element) bool { return e.Set == ServiceCIDRs }); e == nil {
		t.Error("the ranges come after the rules")
	}
	served, addresses := map[string]bool{}, map[string]bool{}
	for i, b := range batches {
		findAdded(b, func(e Element) bool {
			switch e.Set {
			case Services:
				served[e.Key[:4]] = true
			case ClusterIPs:
				addresses[e.Key] = true
			}
			return false
		})
		alone := 0
		for a := range addresses {
			if !served[a] {
				alone++
			}
		}
		for a := range served {
			if !addresses[a] {
				t.Fatalf("transaction %d: %x is served and not known as a ClusterIP", i, a)
			}
		}
		if alone > 1 { // one is where the transaction ends
			t.Fatalf("transaction %d: %d ClusterIPs are refused", i, alone)
		}
	}
	if len(served) != len(services) || len(batches) < 4 {
		t.Fatalf("%d of %d served, %d transactions", len(served), len(services), len(batches))
	}
}

// findAdded returns the first added element that satisfies ok, nil if there is none.
func findAdded(b *Batch, ok func(Element) bool) *Element {
	for i := range b.Ops {
		for j := range b.Ops[i].Elements {
			if e := &b.Ops[i].Elements[j]; b.Ops[i].Kind == AddElements && ok(*e) {
				return e
			}
		}
	}
	return nil
}

// Nothing but flags can switch a table off, and a chain make it deadly.
func TestDormantTableAndDroppingChainAreRepaired(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		program(t, k, f, Config{}, sample(f), nil)
		n.nft(t, "", "chain", f.String(), TableName, "filter-forward", "{ policy drop; }")
		n.nft(t, "", "add", "table", f.String(), TableName, "{ flags dormant; }")
		s, err := k.Snapshot(f)
		if err != nil {
			t.Fatal(err)
		}
		if d := s.Differences(Config{}, nil); len(d) != 2 {
			t.Errorf("%s: differences %v", f, d)
		}
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 2 {
			t.Errorf("%s: %d transactions", f, b)
		}
		text := n.nft(t, "", "list", "table", f.String(), TableName)
		if strings.Contains(text, "dormant") || strings.Contains(text, "policy drop") {
			t.Errorf("not repaired:\n%s", text)
		}
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}

// A map of verdicts that this version does not know keeps chains in use, of its own and, which is worse, of ours.
func TestForeignVerdictMapGoes(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		program(t, k, f, Config{}, sample(f), nil)
		n.nft(t, `table `+f.String()+` nftproxy {
	map old-programs {
		type classid : verdict
		elements = { 1:1 : goto old-chain, 1:2 : goto affinity-1 }
	}
	chain old-callee {
	}
	chain old-chain {
		jump old-callee
	}
	chain old-policy {
		meta priority vmap @old-programs
	}
	chain old-run {
		meta priority vmap { 1:1 : goto old-policy }
	}
}
`, "-f", "-")
		program(t, k, f, Config{}, nil, nil)
		if text := n.nft(t, "", "list", "table", f.String(), TableName); strings.Contains(text, "old-") {
			t.Errorf("left behind:\n%s", text)
		}
		if _, b := program(t, k, f, Config{}, nil, nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}

// A map of clients that is declared otherwise, as another version may have done, cannot be written to by our rules.
func TestForeignAffinityMapIsReplaced(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		n.nft(t, "table "+f.String()+" nftproxy {\n map affinity-1 {\n type mark : mark\n }\n}\n", "-f", "-")
		program(t, k, f, Config{}, sample(f), nil)
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}
