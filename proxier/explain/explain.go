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

// Explain tells what happens to a packet. s is the table of the packet's family; other, that of the other family,
// is only for hints and may be nil.
func Explain(s, other *nft.Snapshot, p Packet, node Node) *Explanation {
	n := newNarrator(s, p)
	out := &Explanation{APIVersion: APIVersion, Kind: Kind, Request: n.request(), Steps: []Step{}}
	n.warnAboutTable(out)
	if node.Route != nil && p.IIF == "" {
		if _, ok := node.Route(p.To.Addr()); !ok {
			out.Outcome = Unroutable
			out.Summary = fmt.Sprintf("the node has no route to %s, so a process here cannot even send the packet (network is unreachable)", p.To.Addr())
			out.Hints = []string{"a default route is enough; or let nftproxy make one for the Service CIDRs (docs/routing.md)"}
			return out
		}
	}
	j := newJourney(s, node)
	ways := j.travel(p)
	out.Warnings = append(out.Warnings, slices.Sorted(maps.Keys(j.warnings))...)
	n.tell(out, ways, node)
	n.hint(out, other, node)
	return out
}

func (n *narrator) request() Request {
	r := Request{
		Family: n.snapshot.Family.String(), Protocol: n.packet.Proto.String(),
		To: n.packet.To.String(), From: n.packet.From.Addr().String(), IIF: n.packet.IIF, Origin: n.origin(),
	}
	return r
}

// origin tells what kind of sender a packet comes from.
func (n *narrator) origin() string {
	pods := n.config.Pods
	switch {
	case n.packet.IIF == "":
		return fromHost
	case pods.CIDRs && n.tables.find(nft.Pods, string(n.packet.From.Addr().AsSlice())) != nil:
		return fromPod
	case pods.Interface != "" && (pods.Interface == n.packet.IIF || pods.Prefix && len(n.packet.IIF) >= len(pods.Interface) && n.packet.IIF[:len(pods.Interface)] == pods.Interface):
		return fromPod
	}
	return fromOutside
}

func (n *narrator) warnAboutTable(out *Explanation) {
	if !n.snapshot.Exists {
		out.Warnings = append(out.Warnings, fmt.Sprintf("there is no table %s %s: nftproxy did not run here, or somebody removed it", n.snapshot.Family, nft.TableName))
		return
	}
	if d := n.snapshot.Differences(n.config); len(d) > 0 {
		out.Warnings = append(out.Warnings, fmt.Sprintf("the table is not as this version writes it (%s); what follows is what the rules that are there do", d[0]))
	}
}

// tell turns the ways into candidates, steps and a summary.
func (n *narrator) tell(out *Explanation, ways []branch, node Node) {
	slices.SortStableFunc(ways, func(a, b branch) int { return cmp.Compare(b.weight, a.weight) })
	outcomes := map[Outcome]bool{}
	index := map[Candidate]int{} // without share
	for i := range ways {
		c := n.candidate(&ways[i], node)
		outcomes[c.Outcome] = true
		if !ways[i].state.dnat {
			continue
		}
		share := c.Share
		c.Share = 0
		at, ok := index[c]
		if !ok {
			at = len(out.Candidates)
			index[c] = at
			out.Candidates = append(out.Candidates, c)
		}
		out.Candidates[at].Share += share
	}
	slices.SortFunc(out.Candidates, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), compareEndpoints(a.Endpoint, b.Endpoint))
	})
	out.Outcome = Mixed
	if len(outcomes) == 1 {
		out.Outcome = slices.Collect(maps.Keys(outcomes))[0]
	}
	out.Steps = n.steps(&ways[0])
	if n.port != nil {
		out.Service = n.port.Name
	}
	out.Summary = n.summary(out, &ways[0])
}

func compareEndpoints(a, b string) int {
	x, _ := netip.ParseAddrPort(a)
	y, _ := netip.ParseAddrPort(b)
	return x.Compare(y)
}

// candidate is where a way leads.
func (n *narrator) candidate(b *branch, node Node) Candidate {
	c := Candidate{
		Endpoint: b.state.to.String(), Share: b.weight, OnNode: node.isLocal(b.state.to.Addr()),
		Masqueraded: b.state.masquerade, Outcome: outcomeOf(b),
	}
	if c.Outcome == Delivered && node.Route != nil {
		if _, ok := node.Route(b.state.to.Addr()); !ok {
			c.Outcome = Unroutable
		}
	}
	marked := b.state.mark&(1<<n.config.MasqueradeBit) != 0
	for _, s := range b.steps() {
		switch {
		case s.action.masquerade && s.found(nft.Hairpin.String()) != nil:
			c.Why = "the endpoint reaches itself"
		case s.action.target == markChain:
			c.Why = n.markReason(s)
		}
	}
	if !c.Masqueraded && marked && c.OnNode {
		c.Why = "marked for masquerade, but what this node itself takes in keeps its source"
	}
	return c
}

func outcomeOf(b *branch) Outcome {
	switch {
	case b.verdict == drop:
		return Dropped
	case b.verdict == reject:
		return Refused
	case b.state.dnat:
		return Delivered
	case slices.ContainsFunc(b.steps(), func(s *step) bool { return s.has(nft.Steered) }):
		return Steered
	}
	return Untouched
}

// summary is the answer in one sentence.
func (n *narrator) summary(out *Explanation, b *branch) string {
	what := n.addressed()
	last := ""
	if len(out.Steps) > 0 {
		last = out.Steps[len(out.Steps)-1].Text
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
		return fmt.Sprintf("%s: no rule of nftproxy concerns it", what)
	case Unroutable:
		return fmt.Sprintf("%s: goes to %s, but the node has no route there", what, among(out.Candidates))
	case Steered:
		return fmt.Sprintf("%s: left to the balancer behind the pod gateway, which chooses the endpoint", what)
	case Mixed:
		return fmt.Sprintf("%s: what happens depends on the endpoint drawn", what)
	}
	return fmt.Sprintf("%s: goes to %s; %s", what, among(out.Candidates), sources(out.Candidates))
}

func among(c []Candidate) string {
	if len(c) == 1 {
		return c[0].Endpoint
	}
	return fmt.Sprintf("one of %d endpoints", len(c))
}

// sources says what the endpoints see as the source.
func sources(c []Candidate) string {
	masqueraded := 0
	for i := range c {
		if c[i].Masqueraded {
			masqueraded++
		}
	}
	who := "it sees"
	if len(c) > 1 {
		who = "they see"
	}
	switch masqueraded {
	case 0:
		return who + " the client's own address"
	case len(c):
		return who + " an address of this node, because " + c[0].Why
	case 1:
		return "1 of them sees an address of this node, the others the client's own"
	}
	return fmt.Sprintf("%d of them see an address of this node, the others the client's own", masqueraded)
}

// addressed names what the packet is addressed to.
func (n *narrator) addressed() string {
	to := fmt.Sprintf("%s %s", n.packet.Proto, n.packet.To)
	if n.port == nil {
		return to
	}
	return fmt.Sprintf("%s is %s of Service %s", to, article(n.frontend.Kind), n.port.Name)
}

func article(kind string) string {
	switch kind {
	case "External":
		return "an external address"
	case "NodePort":
		return "a NodePort"
	}
	return "the " + kind
}

// lookups find Service ports by what is addressed.
type lookups struct {
	ports  []inspect.ServicePort
	fronts map[address]entry
}

type address struct {
	addr  string // empty for a NodePort
	proto string
	port  uint16
}

type entry struct {
	port     *inspect.ServicePort
	frontend *inspect.Frontend
}

func newLookups(s *nft.Snapshot) *lookups {
	_, ports := inspect.Collect(s, nil)
	l := &lookups{ports, map[address]entry{}}
	for i := range ports {
		for j := range ports[i].Frontends {
			f := &ports[i].Frontends[j]
			l.fronts[address{f.Address, ports[i].Protocol, f.Port}] = entry{&ports[i], f}
		}
	}
	return l
}
