// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestFreshRemains: a change right after another one does not hide that flows from before the rules may exist.
func TestFreshRemains(t *testing.T) {
	s, dns := NewState(Scope{}), front(UDP, "10.96.0.10:53")
	s.started = true
	s.Update([]Change{{Frontend: dns, Endpoints: eps("10.244.0.1:53", "10.244.0.2:53")}}, time.Time{})
	s.Update([]Change{{Frontend: dns, Endpoints: eps("10.244.0.1:53")}}, time.Time{})
	if d, _ := s.Due(time.Time{}); !d.Fresh {
		t.Error("untranslated flows are hidden")
	}
}

// finish makes all passes and returns their number.
func finish(s *State) (passes int) {
	for now := time.Unix(0, 0); !s.Idle(); passes++ {
		d, next := s.Due(now)
		if d.Empty() {
			now = next
			continue
		}
		s.Done(d, true, now, now)
	}
	return passes
}

// TestFormerForgotten: the endpoints of removed frontends are kept until their last check, and those of frontends that
// were removed before the first check of everything until its end.
func TestFormerForgotten(t *testing.T) {
	dns, two := front(UDP, "10.96.0.10:53"), eps("10.244.0.1:53", "10.244.0.2:53")
	stale := flow(UDP, "10.1.0.1:1000", "10.96.0.10:53", "10.244.0.2:53")
	for _, early := range []bool{false, true} {
		s, now := NewState(Scope{}), time.Unix(0, 0)
		s.Update([]Change{{Frontend: dns, Endpoints: two}}, now)
		if !early {
			s.CheckAll(now)
			finish(s)
		}
		s.Update([]Change{{Frontend: dns, Removed: true}}, now)
		if s.CheckAll(now); s.Reason(&stale) != FrontendGone {
			t.Errorf("removed early %v: %v", early, s.Reason(&stale))
		}
		finish(s)
		if n := len(s.former) + len(s.checks) + len(s.offers); n != 0 || s.Reason(&stale) != Keep {
			t.Errorf("removed early %v: %d entries are kept: %+v", early, n, s)
		}
	}
}

// due has the frontends checked.
func due(fresh bool, fronts ...Frontend) Due {
	d := Due{checks: map[Frontend]*check{}, Fresh: fresh}
	for _, f := range fronts {
		d.checks[f] = &check{}
	}
	return d
}

// census counts flows of one kind each.
func census(kinds map[Query]int) *Census {
	var c Census
	for q, n := range kinds {
		f := Flow{Proto: q.Proto, Src: ap("10.0.0.1:1"), Dst: ap("10.0.0.2:2"), ReplySrc: ap("10.0.0.2:2")}
		if q.Family == 10 {
			f.Src = ap("[fd00::1]:1")
		}
		if q.DNAT {
			f.ReplySrc = ap("10.0.0.3:3")
		}
		for range n {
			c.Add(&f)
		}
	}
	return &c
}

// TestQueries checks what the kernel is asked for: a small table by the narrowest filters, a large one by filters of
// which enough entries match.
func TestQueries(t *testing.T) {
	dns, dns2, dns6 := front(UDP, "10.96.0.10:53"), front(UDP, "10.96.0.12:53"), front(UDP, "[fd00:96::1]:53")
	node, web := front(UDP, "0.0.0.0:30053"), front(TCP, "10.96.0.11:80")
	all := Caps{Tuple: true, Status: true}
	const large = maxSparse + 1
	udp, mixed := census(map[Query]int{{Family: 2, Proto: UDP, DNAT: true}: large}), census(map[Query]int{
		{Family: 2, Proto: UDP, DNAT: true}: large / 10, {Family: 2, Proto: UDP}: large / 10, {Family: 2, Proto: TCP}: large * 7 / 10,
		{Family: 10, Proto: UDP, DNAT: true}: large / 100, {Family: 10, Proto: TCP}: large / 10})
	for name, c := range map[string]struct {
		due     Due
		caps    Caps
		entries int
		census  *Census
		want    []Query
	}{
		"one":          {due(false, dns), all, 1, &Census{}, []Query{{Family: 2, Proto: UDP, Port: 53, Dst: dns.Addr}}},
		"same port":    {due(false, dns, dns2), all, 1, &Census{}, []Query{{Family: 2, Proto: UDP, Port: 53}}},
		"two ports":    {due(false, dns, node), all, 1, &Census{}, []Query{{Family: 2, Proto: UDP}}},
		"NodePort":     {due(false, node), all, 1, &Census{}, []Query{{Family: 2, Proto: UDP, Port: 30053}}},
		"two families": {due(false, dns6, dns), all, 1, &Census{}, []Query{{Family: 2, Proto: UDP, Port: 53, Dst: dns.Addr}, {Family: 10, Proto: UDP, Port: 53}}},
		"many kinds":   {due(false, dns6, dns, web), all, 1, &Census{}, []Query{{DNAT: true}}},
		"old kernel":   {due(false, dns), Caps{}, 1, &Census{}, []Query{{Family: 2}}},

		"large, nothing known":         {due(false, dns), all, large, &Census{}, []Query{{}}},
		"large, all match":             {due(false, dns), all, large, udp, []Query{{Family: 2, Proto: UDP, DNAT: true}}},
		"large, translated UDP":        {due(false, dns), all, large, mixed, []Query{{Family: 2, Proto: UDP, DNAT: true}}},
		"large, UDP without status":    {due(false, dns), Caps{Tuple: true}, large, mixed, []Query{{Family: 2, Proto: UDP}}},
		"large, UDP, new":              {due(true, dns), all, large, mixed, []Query{{Family: 2, Proto: UDP}}},
		"large, no tuple filter":       {due(false, dns), Caps{Status: true}, large, mixed, []Query{{Family: 2, DNAT: true}}},
		"large, too few IPv6":          {due(false, dns6), all, large, mixed, []Query{{DNAT: true}}},
		"large, IPv6, new":             {due(true, dns6), all, large, mixed, []Query{{Family: 10}}},
		"large, two families":          {due(false, dns6, dns), all, large, mixed, []Query{{DNAT: true}}},
		"large, two families, new":     {due(true, dns6, dns), all, large, mixed, []Query{{}}},
		"large, two protocols":         {due(false, web, dns), all, large, mixed, []Query{{Family: 2, DNAT: true}}},
		"large, two protocols, new":    {due(true, web, dns), all, large, mixed, []Query{{Family: 2}}},
		"everything, in a small table": {Due{Full: true}, all, 1, mixed, []Query{{}}},
	} {
		if got := c.due.Queries(c.caps, c.entries, c.census); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestCensusReplace: a filtered dump replaces the counts of what matches its filter, and no others.
func TestCensusReplace(t *testing.T) {
	had := map[Query]int{{Family: 2, Proto: UDP, DNAT: true}: 3, {Family: 2, Proto: TCP}: 5, {Family: 10, Proto: UDP}: 7}
	c := census(had)
	c.Replace(Query{Family: 2, Proto: UDP}, census(map[Query]int{{Family: 2, Proto: UDP, DNAT: true}: 1}))
	if udp, all := c.count(Query{Family: 2, Proto: UDP}), c.count(Query{}); udp != 1 || all != 13 {
		t.Errorf("%d of %d are UDP in IPv4, want 1 of 13", udp, all)
	}
	c.Replace(Query{Family: 2, Proto: UDP, Port: 53}, &Census{})
	if all := c.count(Query{}); all != 13 {
		t.Errorf("a dump of one port changed the count to %d", all)
	}
}

// TestUpdateCost: a change costs the change, whatever the number of frontends.
func TestUpdateCost(t *testing.T) {
	s := NewState(Scope{})
	one, two := eps("10.244.0.1:53"), eps("10.244.0.1:53", "10.244.0.2:53")
	var all []Change
	for i := range 30_000 {
		all = append(all, Change{Frontend: Frontend{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53, UDP}, Endpoints: two})
	}
	s.Update(all, time.Time{})
	change := []Change{{Frontend: all[7].Frontend, Endpoints: one}}
	if n := testing.AllocsPerRun(100, func() { s.Update(change, time.Time{}) }); n != 0 {
		t.Errorf("%v allocations per update", n)
	}
	f := flow(UDP, "10.1.0.1:1000", "10.96.0.10:53", "10.244.0.2:53")
	if n := testing.AllocsPerRun(100, func() { s.Reason(&f) }); n != 0 {
		t.Errorf("%v allocations per decision", n)
	}
}
