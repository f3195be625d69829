// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// efforts are how many connections a cell is observed with, how long one may take, and after how many drops it is over, at
// the first look and the next ones. Of 4 endpoints one escapes 20 connections in 1 of 80 cases, 100 in 1 of 10^12.
var efforts = []struct {
	connections int
	timeout     time.Duration
	drops       int
}{{20, 400 * time.Millisecond, 2}, {60, 400 * time.Millisecond, 8}, {200, time.Second, 16}}

// reach sends connections and records who answered and whom it saw.
func reach(s *side, c *cell, effort int) outcome {
	e := efforts[effort]
	p := lab.Probe{From: s.host(c.from), Proto: c.proto, To: c.target(), Timeout: e.timeout}
	seen := sightings{}
	for range e.connections {
		p.Source = s.fresh(c)
		r := p.Send()
		seen.add(s, r)
		if seen["dropped"] == e.drops || seen.steady(r.Verdict, e.connections) {
			break
		}
	}
	return seen.outcome()
}

// sightings counts what became of connections: "backend as source", or a verdict.
type sightings map[string]int

func (s sightings) add(of *side, r lab.Result) { s[of.describe(r)]++ }

// steady reports that a refusal needs no further connections: there is no choice in it.
func (s sightings) steady(v lab.Verdict, of int) bool {
	return v != lab.Answered && v != lab.Dropped && len(s) == 1 && s[string(v)] >= of/4
}

// outcome is the set, sorted, with sources named once where all saw the same kind.
func (s sightings) outcome() outcome {
	names, sources := map[string]bool{}, map[string]bool{}
	var all []string
	for what := range s {
		name, source, answered := strings.Cut(what, " as ")
		names[name] = true
		if answered {
			sources[source] = true
		}
		all = append(all, what)
	}
	o := outcome{names: joined(names)}
	slices.Sort(all)
	o.text = strings.Join(all, ", ")
	if len(sources) == 1 && len(all) == len(names) {
		for source := range sources {
			o.text = strings.ReplaceAll(o.text, " as "+source, "") + " as " + source
		}
	}
	return o
}

// mixed reports drops beside answers, of which the sample may hold too few.
func (o outcome) mixed() bool { return strings.Contains(o.names, "dropped") && o.names != "dropped" }

func joined(set map[string]bool) string {
	var all []string
	for name := range set {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// describe names the backend and the kind of source it saw.
func (s *side) describe(r lab.Result) string {
	switch r.Verdict {
	case lab.Answered:
		return r.Backend + " as " + s.kindOf(r)
	case lab.Failed, lab.Broken:
		return fmt.Sprintf("%s: %v", r.Verdict, r.Err)
	}
	return string(r.Verdict)
}

func (s *side) kindOf(r lab.Result) string {
	a := r.Source.Addr()
	if a == r.Local.Addr() {
		return "own"
	}
	for _, n := range s.net.Nodes {
		switch f := lab.FamilyOf(a); a {
		case n.IP(f):
			return n.Name + "/eth0"
		case lab.PodGateway(f, n.Index):
			return n.Name + "/pods0"
		}
	}
	return a.String()
}

// workers is how many cells of a side are observed at once. Most of the time of a cell that is dropped is waiting.
const workers = 48

// judge observes cells on both sides, again where they differ or disappoint, and files the verdict.
func judge(ours, theirs *side, cells []*cell) {
	for effort := range efforts {
		var wg sync.WaitGroup
		for _, s := range []*side{ours, theirs} {
			wg.Go(func() { s.observe(cells, effort) })
		}
		wg.Wait()
		cells = slices.DeleteFunc(slices.Clone(cells), func(c *cell) bool {
			c.file()
			return !c.bad && (effort > 0 || !c.ours.mixed())
		})
	}
}

// file decides what the outcomes mean.
func (c *cell) file() {
	c.reason = reasonFor(c)
	c.bad = c.ours != c.theirs && c.reason == "" || !c.asWanted()
}

// asWanted reports whether both do as expected; of a difference with a reason only ours counts.
func (c *cell) asWanted() bool {
	return c.want == "" || c.ours.names == c.want && (c.theirs.names == c.want || c.reason != "")
}

// observe fills in one side of the cells.
func (s *side) observe(cells []*cell, effort int) {
	slots := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for _, c := range cells {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if o := c.ask(s, c, effort); s.kind == lab.NFTProxy {
				c.ours = o
			} else {
				c.theirs = o
			}
		})
	}
	wg.Wait()
}

// sourceAddrs are further addresses of client-1, so that it counts as many clients.
func sourceAddrs(f lab.Family) (out []netip.Addr) {
	first := lab.NodeCIDR(f).Addr().AsSlice()
	for i := range 10 {
		first[len(first)-1] = byte(0x70 + i)
		a, _ := netip.AddrFromSlice(first)
		out = append(out, a)
	}
	return out
}
