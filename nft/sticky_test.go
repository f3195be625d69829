// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	. "github.com/nftproxy/nftproxy/nft"
)

// cost is what a transaction sends.
type cost struct{ operations, elements int }

// Law 2 for sticky Services: what a change sends does not depend on how many others there are, and but for a Service that
// comes or goes it is elements only.
func TestStickyChangesCostTheChange(t *testing.T) {
	var first map[string]cost
	for _, n := range []int{1, 300} {
		k := newNamespace(t).open(t)
		services := stickies(n+1, 3)
		c := read(t, k, IPv4)
		table := NewTable(c)
		for _, s := range services[:n] {
			table.Number(s)
		}
		for _, b := range table.Reconcile(c, Config{}, services[:n], nil) {
			if err := k.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		table.Committed()
		commit := func(prev, next *Service) cost {
			batches, change := table.Plan([]Update{{prev, next}}, nil)
			ops := 0
			for _, b := range batches {
				ops += len(b.Ops)
			}
			if err := k.CommitAll(batches, nil); err != nil {
				t.Fatal(err)
			}
			table.Committed()
			if sweep := table.Sweep(); sweep != nil {
				ops += len(sweep.Ops)
				if err := k.Commit(sweep); err != nil {
					t.Fatal(err)
				}
				table.Swept()
			}
			return cost{ops, change.Len()}
		}
		s, extra := services[n/2], services[n]
		commit(s, grown(s)) // makes the draw of four
		commit(grown(s), s)
		got := map[string]cost{
			"replace": commit(s, replaced(s, 1, 7)), "back": commit(replaced(s, 1, 7), s),
			"grow": commit(s, grown(s)), "shrink": commit(grown(s), s),
			"add": commit(nil, extra), "remove": commit(extra, nil),
		}
		if first == nil {
			first = got
		}
		if d := cmp.Diff(first, got, cmp.AllowUnexported(cost{})); d != "" {
			t.Errorf("beside %d sticky Services:\n%s", n, d)
		}
		for what, most := range map[string]cost{
			"replace": {2, 4}, // the endpoint's id in its slot, and the endpoint by its id: two maps, each less one and more one
			"grow":    {2, 4}, // the same more, and another draw instead of one
			"shrink":  {2, 4},
		} {
			if got[what] != most {
				t.Errorf("%s: %+v, want %+v", what, got[what], most)
			}
		}
		if d := DiffElements(read(t, k, IPv4).Elements, WantedElements(services[:n], nil)); d.Len() != 0 {
			t.Errorf("ends with other elements: %+v", d)
		}
	}
}

// The kernel looks at all rules that name a map when an element is added to it: no map but that of the clients may be named
// by the rules of a single view.
func TestStickyRulesNameTheirClientsOnly(t *testing.T) {
	named := func(services []*Service) map[string]int {
		out := map[string]int{}
		for _, rules := range Model(IPv4, Config{}, services, nil).Rules {
			for _, r := range rules {
				for _, e := range r.Exprs {
					if l, ok := e.(*expr.Lookup); ok && !IsAffinityMap(l.SetName) {
						out[l.SetName]++
					}
				}
			}
		}
		return out
	}
	services := stickies(50, 3)
	table := NewTable(&Content{Family: IPv4})
	for _, s := range services {
		table.Number(s)
	}
	if d := cmp.Diff(named(services[:1]), named(services)); d != "" {
		t.Errorf("how often maps are named beside 1 and 50 sticky Services:\n%s", d)
	}
}

// The first load makes the views in parts, and nothing leads to one before all of them are there.
func TestStickyViewsAreLoadedInParts(t *testing.T) {
	const n = 2*ViewsAtOnce + 1
	services := stickies(n, 2)
	table := NewTable(&Content{Family: IPv4})
	for _, s := range services {
		table.Number(s)
	}
	made := 0
	for i, b := range table.Reconcile(&Content{Family: IPv4}, Config{}, services, nil) {
		maps := 0
		for _, op := range b.Ops {
			switch {
			case op.Kind == AddSet && IsAffinityMap(op.Name):
				maps++
			case op.Kind == AddElements && slices.ContainsFunc(op.Elements, func(e Element) bool { return e.Set == Services }) && made < n:
				t.Errorf("transaction %d leads to views of which %d of %d are made", i, made, n)
			}
		}
		if made += maps; maps > ViewsAtOnce {
			t.Errorf("transaction %d makes %d views", i, maps)
		}
	}
	if made != n {
		t.Errorf("%d views made, want %d", made, n)
	}
}

// stickyBefore is the Service of testdata/sticky-before.nft.
func stickyBefore() *Service {
	ep := netip.MustParseAddrPort
	return &Service{
		Name: "default/sticky:http", Proto: TCP, Served: true, Affinity: 3 * time.Hour, AffinitySize: 1000,
		Frontends: []Frontend{{Kind: ClusterIP, Addr: netip.MustParseAddr("10.96.0.5"), Port: 80}, {Kind: NodePort, Port: 30005, Local: true}},
		Cluster:   []netip.AddrPort{ep("10.244.0.1:8080"), ep("10.244.1.1:8080"), ep("10.244.1.2:8080")},
		Local:     []netip.AddrPort{ep("10.244.0.1:8080")},
	}
}

// A table of the version whose sticky views had draws of their own is taken over, with its clients and without a gap: the rules
// change when what they need is there.
func TestStickyViewsOfBefore(t *testing.T) {
	text, err := os.ReadFile("testdata/sticky-before.nft")
	if err != nil {
		t.Fatal(err)
	}
	n := newNamespace(t)
	k := n.open(t)
	n.nft(t, string(text), "-f", "-")
	n.nft(t, "add element ip nftproxy affinity-1 { 10.244.0.9 timeout 3h : 1234:5678 }\n", "-f", "-")
	s, c := stickyBefore(), read(t, k, IPv4)
	table := NewTable(c)
	table.Number(s)
	NewSlotRecovery(c).Adopt(s)
	if s.AffinityIDs != [2]uint32{1, 2} {
		t.Fatalf("numbers %v are not those of before", s.AffinityIDs)
	}
	for i, b := range table.Reconcile(c, Config{MasqueradeBit: 14}, []*Service{s}, nil) {
		if err := k.Commit(b); err != nil {
			t.Fatal(err)
		}
		now := snapshot(t, k, IPv4)
		draws := slices.DeleteFunc(slices.Clone(now.Elements), func(e Element) bool { return e.Set != StickyDraws })
		if len(now.Rules["affinity-1"]) == 8 /* 3 before */ && len(draws) != 3 {
			t.Errorf("after transaction %d the rules are new and the draws %v", i, draws)
		}
	}
	now := snapshot(t, k, IPv4)
	if d := now.Differences(Config{MasqueradeBit: 14}, nil); len(d) != 0 {
		t.Errorf("differences %q", d)
	}
	text2 := n.nft(t, "", "list", "table", "ip", TableName)
	if !strings.Contains(text2, "10.244.0.9 timeout 3h") || strings.Contains(text2, "-hit") {
		t.Errorf("clients forgotten, or chains left:\n%s", text2)
	}
	if batches := NewTable(now.Content).Reconcile(now.Content, Config{MasqueradeBit: 14}, []*Service{s}, nil); len(batches) != 0 {
		t.Errorf("%d transactions although nothing changed", len(batches))
	}
}
