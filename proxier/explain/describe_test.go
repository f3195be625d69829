// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Describe recognizes every path that Explain finds by its places and its destination, and has the same text for it.
func TestDescribeKnowsEveryPath(t *testing.T) {
	for _, f := range nft.Families() {
		s := nft.Model(f, config(), services(f), nodeElements(f))
		describer := NewDescriber(inspect.Read(s))
		nobody := node(f)
		nobody.Client = nil
		for _, c := range scenarios() {
			p := c.packet(f)
			for _, w := range newEvaluator(inspect.Read(s)).paths(p, nobody) {
				to := netip.AddrPort{}
				if w.state.dnat {
					to = w.state.to
				}
				took := w.places()
				got := describer.Describe(p, nobody, took, to)
				d := NewDescriber(inspect.Read(s))
				d.start(p)
				want := map[Place]Step{}
				for _, step := range d.steps(&w) {
					want[Place{step.Chain, step.Rule - 1}] = step
				}
				if !got.Foreseen {
					t.Errorf("%s %s from %s: %v is not foreseen", f, c.to, c.from, took)
				}
				for i, place := range took {
					if got.Steps[i] != want[place] {
						t.Errorf("%s %s from %s: %v:\n%+v, want\n%+v", f, c.to, c.from, place, got.Steps[i], want[place])
					}
				}
			}
		}
	}
}

// A path that ends before the destination is seen names no endpoint, since it is unknown which one was drawn.
func TestDescribeOfHalfAPath(t *testing.T) {
	for _, f := range nft.Families() {
		s := nft.Model(f, config(), services(f), nodeElements(f))
		p := Packet{Proto: nft.TCP, To: ap(f, "10.96.0.1:80"), From: ap(f, "10.244.0.9:40000"), IIF: "eth0"}
		var took []Place
		for _, w := range newEvaluator(inspect.Read(s)).paths(p, node(f)) {
			took = w.places()
			for i, place := range took {
				if place.Chain == "cluster-3" {
					took = took[:i+1]
					break
				}
			}
			break
		}
		got := NewDescriber(inspect.Read(s)).Describe(p, node(f), took, netip.AddrPort{})
		last := got.Steps[len(took)-1]
		if !got.Foreseen || last.Text == "" || last.Element != "" || got.Service != "default/web:http" {
			t.Errorf("%s: %+v", f, got)
		}
		// The path of another's rules has no text, and is no reason to fail.
		if got := NewDescriber(inspect.Read(s)).Describe(p, node(f), []Place{{"strange", 3}}, netip.AddrPort{}); got.Foreseen || got.Steps[0] != (Step{}) {
			t.Errorf("%s: %+v", f, got)
		}
	}
}
