// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Explain returns what happens to a packet. r is the table of the packet's family; other, that of the other family, is only
// for hints and may be nil.
func Explain(r, other *inspect.Ruleset, p Packet, node Node) *Explanation {
	d := NewDescriber(r)
	d.start(p)
	out := &Explanation{APIVersion: inspect.APIVersion, Kind: Kind, Steps: []Step{}, Request: PacketDoc{
		Family: r.Family.String(), Protocol: p.Proto.String(), From: p.From.Addr().String(), To: p.To.String(),
		Origin: d.origin(), Sender: d.sender(), IIF: p.IIF,
	}}
	if !r.Exists {
		out.Warnings = append(out.Warnings, fmt.Sprintf("there is no table %s %s: nftproxy did not run here, or the table was removed", r.Family, nft.TableName))
	} else if t := r.Table(); !t.AsWritten {
		out.Warnings = append(out.Warnings, fmt.Sprintf("the table is not as this version writes it (%s); what follows is what the rules that are there do", t.Differences[0]))
	}
	if node.Route != nil && p.IIF == "" {
		if _, ok := node.Route(p.To.Addr()); !ok {
			out.Outcome = Unroutable
			out.Summary = fmt.Sprintf("the node has no route to %s, so a process here cannot even send the packet (network is unreachable)", p.To.Addr())
			out.Hints = []string{"a default route is enough; or let nftproxy make one for the Service CIDRs (docs/routing.md)"}
			return out
		}
	}
	branches := d.paths(p, node)
	out.Warnings = append(out.Warnings, slices.Sorted(maps.Keys(d.warnings))...)
	slices.SortStableFunc(branches, func(a, b branch) int { return cmp.Compare(b.weight, a.weight) })
	out.Steps = d.steps(&branches[0])
	if d.port != nil {
		out.Service = d.port.Name
	}
	d.outcome(out, branches)
	out.Summary = d.summary(out, &branches[0])
	d.hint(out, other)
	return out
}

// outcome makes candidates of the branches, of which those that end equally are one, and the outcome of all.
func (d *Describer) outcome(out *Explanation, branches []branch) {
	outcomes := map[Outcome]bool{}
	index := map[Candidate]int{} // without share
	for i := range branches {
		b := &branches[i]
		c := d.candidate(b)
		outcomes[c.Outcome] = true
		if !b.state.dnat {
			continue
		}
		at, ok := index[c]
		if !ok {
			at = len(out.Candidates)
			index[c] = at
			out.Candidates = append(out.Candidates, c)
		}
		out.Candidates[at].Share += b.weight
	}
	slices.SortFunc(out.Candidates, func(a, b Candidate) int {
		x, _ := netip.ParseAddrPort(a.Endpoint)
		y, _ := netip.ParseAddrPort(b.Endpoint)
		return cmp.Or(cmp.Compare(b.Share, a.Share), x.Compare(y))
	})
	out.Outcome = Mixed
	if len(outcomes) == 1 {
		out.Outcome = slices.Collect(maps.Keys(outcomes))[0]
	}
}

// candidate is the end of a branch, without its share.
func (d *Describer) candidate(b *branch) Candidate {
	c := Candidate{Endpoint: b.state.to.String(), OnNode: d.node.isLocal(b.state.to.Addr()), Masqueraded: b.state.masquerade, Outcome: Untouched}
	steps := b.steps()
	switch {
	case b.verdict == drop:
		c.Outcome = Dropped
	case b.verdict == reject:
		c.Outcome = Refused
	case b.state.dnat:
		c.Outcome = Delivered
		if d.node.Route != nil {
			if _, ok := d.node.Route(b.state.to.Addr()); !ok {
				c.Outcome = Unroutable
			}
		}
	case slices.ContainsFunc(steps, func(s *step) bool { return s.has(nft.Steered, nft.HandedOver) }):
		c.Outcome = Steered
	}
	for _, s := range steps {
		switch {
		case s.action.masquerade && s.has(nft.Hairpin):
			c.Why = "the endpoint reaches itself"
		case s.action.target == markChain:
			c.Why = d.markReason(s)
		}
	}
	if marked := b.state.mark&(1<<d.Config.MasqueradeBit) != 0; marked && !c.Masqueraded && c.OnNode {
		c.Why = "marked for masquerade, but packets to this node itself keep their source"
	}
	return c
}

// summary is the answer in one sentence.
func (d *Describer) summary(out *Explanation, b *branch) string {
	what, last, endpoints := d.addressed(), "", fmt.Sprintf("one of %d endpoints", len(out.Candidates))
	if len(out.Steps) > 0 {
		last = out.Steps[len(out.Steps)-1].Text
	}
	if len(out.Candidates) == 1 {
		endpoints = out.Candidates[0].Endpoint
	}
	switch out.Outcome {
	case Refused:
		how := "with an ICMP port unreachable"
		if b.reset {
			how = "with a TCP reset"
		}
		return fmt.Sprintf("%s: refused %s; %s", what, how, last)
	case Dropped:
		return fmt.Sprintf("%s: dropped; %s", what, last)
	case Untouched:
		return fmt.Sprintf("%s: no rule of nftproxy applies to it", what)
	case Unroutable:
		return fmt.Sprintf("%s: goes to %s, but the node has no route there", what, endpoints)
	case Steered:
		return fmt.Sprintf("%s: left to the balancer behind the device, which chooses the endpoint", what)
	case Mixed:
		return fmt.Sprintf("%s: what happens depends on the endpoint drawn", what)
	}
	return fmt.Sprintf("%s: goes to %s; %s", what, endpoints, sources(out.Candidates))
}

// sources says what the endpoints see as the source.
func sources(c []Candidate) string {
	masqueraded := 0
	for i := range c {
		if c[i].Masqueraded {
			masqueraded++
		}
	}
	see := "it sees"
	if len(c) > 1 {
		see = "they see"
	}
	switch masqueraded {
	case 0:
		return see + " the client's own address"
	case len(c):
		return see + " an address of this node, because " + c[0].Why
	case 1:
		return "1 of them sees an address of this node, the others the client's own"
	}
	return fmt.Sprintf("%d of them see an address of this node, the others the client's own", masqueraded)
}
