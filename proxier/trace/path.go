// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
)

// teller makes a Path of what was seen of a packet.
type teller struct {
	facts Facts
	seen  *Seen
	first *nft.TracePacket // as the client sent it
	path  *Path
	steps []told
	took  []explain.Place // rules of ours, in order
	to    netip.AddrPort  // what the destination became
	nat   bool            // chains of nat saw it: it is the first packet of its connection
}

// told is a step and what was seen of it.
type told struct {
	Step
	event *nft.TraceEvent
	rule  nft.TracedRule
	took  int // index of took, -1 for rules that are not ours
}

// Tell puts what was seen of a packet into words.
func Tell(s *Seen, facts Facts) *Path {
	t := &teller{facts: facts, seen: s, path: &Path{APIVersion: APIVersion, Kind: Kind, Time: s.At, Steps: []Step{}}}
	t.packets()
	t.walk()
	t.narrate()
	t.judge()
	for i := range t.steps {
		t.path.Steps = append(t.path.Steps, t.steps[i].Step)
	}
	return t.path
}

// packets finds out what was sent and what became of its destination.
func (t *teller) packets() {
	for i := range t.seen.Events {
		p := t.seen.Events[i].Packet
		switch {
		case p == nil || !p.Dst.IsValid():
			continue
		case t.first == nil:
			t.first = p
		case p.Dst != t.first.Dst:
			t.to = p.Dst
		}
		if p.OIF != 0 {
			t.path.OIF = t.facts.Interface(p.OIF)
		}
	}
	if t.first == nil {
		t.first = &nft.TracePacket{}
	}
	t.path.Packet = Packet{
		Family: t.first.Family.String(), Protocol: t.first.Proto.String(), From: address(t.first.Src), To: address(t.first.Dst),
	}
	if t.first.Proto.String() == "proto" {
		t.path.Packet.Protocol = fmt.Sprintf("protocol %d", uint8(t.first.Proto))
	}
	if t.first.IIF != 0 {
		t.path.Packet.IIF = t.facts.Interface(t.first.IIF)
	}
	if t.to.IsValid() {
		t.path.Endpoint = address(t.to)
	}
}

// address leaves out a port that there is not.
func address(a netip.AddrPort) string {
	if a.Port() == 0 && a.IsValid() {
		return a.Addr().String()
	}
	return a.String()
}

// walk makes steps of the messages. The hook is that of the base chain in which the packet is.
func (t *teller) walk() {
	var hook nft.Hook
	for i := range t.seen.Events {
		e := &t.seen.Events[i]
		if h, ok := t.facts.Hook(e.Table, e.Chain); ok {
			hook, t.nat = h, t.nat || h.Type == nat
		}
		if nft.IsTraceTable(e.Table.Name) || e.Type == nft.TraceReturn {
			continue
		}
		s := told{event: e, took: -1}
		s.Hook, s.Priority, s.Table, s.Chain, s.Handle = hookName(hook.Num), hook.Priority, e.Table.String(), e.Chain, e.Handle
		s.Policy, s.Verdict, s.Ours = e.Type == nft.TracePolicy, verdict(e), e.Table.IsOurs()
		if e.Type == nft.TraceRule {
			s.rule, s.Rule = t.facts.Rule(e.Table, e.Chain, e.Handle)
			s.Comment = s.rule.Comment
			if s.Ours && s.Rule > 0 {
				s.took = len(t.took)
				t.took = append(t.took, explain.Place{Chain: e.Chain, Rule: s.Rule - 1})
			}
		}
		t.steps = append(t.steps, s)
	}
	if t.seen.Incomplete {
		t.path.Warnings = append(t.path.Warnings, "messages of the kernel were lost, so that steps may be missing")
	}
}

// hookName is nft's name of NF_INET_*; families beyond IP have the same for the hooks that they share.
func hookName(num uint32) string {
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	return names[min(int(num), len(names)-1)]
}

func verdict(e *nft.TraceEvent) string {
	switch e.Verdict & 0xff { // a queue's number and an errno are above
	case nft.VerdictDrop:
		return "drop"
	case nft.VerdictAccept:
		return "accept"
	case nft.VerdictStolen:
		return "stolen"
	case nft.VerdictQueue:
		return "queue"
	}
	switch e.Verdict {
	case nft.VerdictJump:
		return "jump " + e.Target
	case nft.VerdictGoto:
		return "goto " + e.Target
	case nft.VerdictReturn:
		return "return"
	}
	return "continue"
}

// narrate adds the words for the rules of ours.
func (t *teller) narrate() {
	w := t.facts.Words(t.first.Family)
	if w == nil || !t.first.Dst.IsValid() {
		return
	}
	p := explain.Packet{Proto: t.first.Proto, To: t.first.Dst, From: t.first.Src, IIF: t.path.Packet.IIF}
	account := w.Narrate(p, t.facts.Node(t.first.Family), t.took, t.to)
	t.path.Service = account.Service
	for i := range t.steps {
		s := &t.steps[i]
		if s.took < 0 {
			t.path.Masqueraded = t.path.Masqueraded || s.rule.Masquerades
			continue
		}
		words := account.Steps[s.took]
		s.Set, s.Element, s.Text = words.Set, words.Element, words.Text
		t.path.Masqueraded = t.path.Masqueraded || account.Masqueraded[s.took]
	}
	gone := slices.ContainsFunc(t.steps, func(s told) bool { return s.Ours && s.Type() == nft.TraceRule && s.Rule == 0 })
	if gone {
		t.path.Warnings = append(t.path.Warnings, "rules of nftproxy were replaced meanwhile, so that words are missing")
	}
}

// Type is that of the message.
func (s *told) Type() nft.TraceType { return s.event.Type }
