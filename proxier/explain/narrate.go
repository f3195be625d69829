// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// Place is a rule of a chain, counted from 0.
type Place struct {
	Chain string
	Rule  int
}

// Account is the way that a packet took, in words.
type Account struct {
	// Service is "namespace/service:port" of what is addressed, and Addressed names that; of no Service it is empty.
	Service, Addressed string
	// Steps has the words for each of the places, none where there is nothing to tell; Rule counts from 1.
	Steps []Step
	// Masqueraded has, for each of the places, whether the rule chose the source.
	Masqueraded []bool
	// Foreseen says that the way is one that Explain knows.
	Foreseen bool
}

// Words has what it takes to put ways through a table into words, so that the table is looked through only once. Not safe
// for concurrent use.
type Words struct {
	narrator *narrator // without a packet
	journey  *journey  // without a node
}

// NewWords returns the Words of a family's table.
func NewWords(s *nft.Snapshot) *Words {
	return &Words{newNarrator(s, Packet{}), newJourney(s, Node{})}
}

// ways are those that Explain foresees.
func (w *Words) ways(p Packet, node Node) []branch {
	j := *w.journey
	j.node, j.warnings = node, map[string]bool{}
	return j.travel(p)
}

// Narrate puts the way that the first packet of a connection took into words: took are the rules that matched it, in order,
// until it left the table's chains or somebody else dropped it. to is what its destination became, not valid if that is
// not known.
func (w *Words) Narrate(p Packet, node Node, took []Place, to netip.AddrPort) *Account {
	n := *w.narrator
	n.packet, n.port, n.frontend = p, nil, nil
	stranger := node
	stranger.Client = nil // who is remembered now may not have been then
	ways := w.ways(p, stranger)
	if node.Client != nil {
		ways = append(ways, w.ways(p, node)...)
	}
	best, most, others := 0, -1, false
	for i := range ways {
		switch score := fit(&ways[i], took, to); {
		case score > most:
			best, most, others = i, score, false
		case score == most && ways[i].state.to != ways[best].state.to:
			others = true
		}
	}
	return n.account(&ways[best], took, others)
}

// fit is the larger the better a way goes with what was seen.
func fit(b *branch, took []Place, to netip.AddrPort) int {
	way := b.places()
	score := 4 * common(way, took)
	if to.IsValid() && b.state.to == to {
		score += 2
	}
	if len(way) == len(took) {
		score++
	}
	return score
}

// common is how many places two ways have in common at their beginning.
func common(a, b []Place) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i
}

// places are the rules that matched, the only ones that the kernel tells of.
func (b *branch) places() (out []Place) {
	for _, s := range b.steps() {
		if s.action.verdict != mismatch {
			out = append(out, Place{s.chain, s.rule})
		}
	}
	return out
}

// account tells of a way what was seen of it. others says that it is one of several with different endpoints.
func (n *narrator) account(b *branch, took []Place, others bool) *Account {
	words := map[Place]Step{}
	for _, s := range n.steps(b) {
		words[Place{s.Chain, s.Rule - 1}] = s
	}
	did := map[Place]action{}
	for _, s := range b.steps() {
		did[Place{s.chain, s.rule}] = s.action
	}
	out := &Account{
		Foreseen: common(b.places(), took) == len(took), Steps: make([]Step, len(took)), Masqueraded: make([]bool, len(took)),
	}
	for i, p := range took {
		step := words[p]
		if others && did[p].drew > 0 {
			step.Set, step.Element = "", "" // which one was drawn is not known
		}
		out.Steps[i], out.Masqueraded[i] = step, did[p].masquerade
	}
	n.addressee()
	if n.port != nil {
		out.Service, out.Addressed = n.port.Name, n.addressed()
	}
	return out
}

// addressee finds the Service by the packet alone, where no rule did.
func (n *narrator) addressee() {
	d := nft.Decoded{Addr: n.packet.To.Addr(), Proto: n.packet.Proto, Port: n.packet.To.Port()}
	n.meet(&d)
}
