// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// builder makes a Path of the messages about a packet.
type builder struct {
	facts Facts
	seen  *Seen
	first *nft.TracePacket // as the client sent it
	path  *Path
	steps []traced
	took  []explain.Place // rules of ours, in order
	to    netip.AddrPort  // the translated destination
	nat   bool            // nat chains saw it: it is the first packet of its connection
}

// traced is a step and its message.
type traced struct {
	explain.Step
	event *nft.TraceEvent
	rule  nft.TracedRule
	took  int // index of took, -1 for rules that are not ours
}

// Describe returns the path of a packet.
func Describe(s *Seen, facts Facts) *Path {
	t := &builder{facts: facts, seen: s, path: &Path{
		APIVersion: inspect.APIVersion, Kind: Kind, Stamp: inspect.Stamp{Time: s.At}, Steps: []explain.Step{},
	}}
	t.packets()
	t.walk()
	t.describe()
	t.outcome()
	for i := range t.steps {
		t.path.Steps = append(t.path.Steps, t.steps[i].Step)
	}
	return t.path
}

// packets finds what was sent and its translated destination.
func (t *builder) packets() {
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
			t.path.OIF = inspect.Printable(t.facts.Interface(p.OIF))
		}
	}
	if t.first == nil {
		t.first = &nft.TracePacket{}
	}
	t.path.Packet = explain.PacketDoc{
		Family: t.first.Family.String(), Protocol: t.first.Proto.String(), From: address(t.first.Src), To: address(t.first.Dst),
	}
	if t.first.Proto.String() == "proto" {
		t.path.Packet.Protocol = fmt.Sprintf("protocol %d", uint8(t.first.Proto))
	}
	if t.first.IIF != 0 {
		t.path.Packet.IIF = inspect.Printable(t.facts.Interface(t.first.IIF))
	}
	if t.to.IsValid() {
		t.path.Endpoint = address(t.to)
	}
}

// address omits the port of protocols that have none.
func address(a netip.AddrPort) string {
	if a.Port() == 0 && a.IsValid() {
		return a.Addr().String()
	}
	return a.String()
}

// walk makes steps of the messages. The hook is that of the base chain that the packet is in.
func (t *builder) walk() {
	var hook nft.Hook
	for i := range t.seen.Events {
		e := &t.seen.Events[i]
		if h, ok := t.facts.Hook(e.Table, e.Chain); ok {
			hook, t.nat = h, t.nat || h.Type == nat
		}
		if nft.IsTraceTable(e.Table.Name) || e.Type == nft.TraceReturn {
			continue
		}
		priority := hook.Priority
		s := traced{event: e, took: -1, Step: explain.Step{
			Hook: explain.HookName(hook.Num), Priority: &priority, Table: inspect.Printable(e.Table.String()), Chain: inspect.Printable(e.Chain),
			Handle: e.Handle, Policy: e.Type == nft.TracePolicy, Verdict: verdict(e), Ours: e.Table.IsOurs(),
		}}
		if e.Type == nft.TraceRule {
			s.rule, s.Rule = t.facts.Rule(e.Table, e.Chain, e.Handle)
			s.Comment = inspect.Printable(s.rule.Comment)
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
		return "jump " + inspect.Printable(e.Target)
	case nft.VerdictGoto:
		return "goto " + inspect.Printable(e.Target)
	case nft.VerdictReturn:
		return "return"
	}
	return "continue"
}

// describe adds the texts of our own rules.
func (t *builder) describe() {
	d := t.facts.Describer(t.first.Family)
	if d == nil || !t.first.Dst.IsValid() {
		return
	}
	p := explain.Packet{Proto: t.first.Proto, To: t.first.Dst, From: t.first.Src, IIF: t.path.Packet.IIF}
	description := d.Describe(p, t.facts.Node(t.first.Family), t.took, t.to)
	t.path.Service = description.Service
	gone := false
	for i := range t.steps {
		s := &t.steps[i]
		gone = gone || s.Ours && s.event.Type == nft.TraceRule && s.Rule == 0
		if s.took < 0 {
			t.path.Masqueraded = t.path.Masqueraded || s.rule.Masquerades
			continue
		}
		text := description.Steps[s.took]
		s.Set, s.Element, s.Text = text.Set, text.Element, text.Text
		t.path.Masqueraded = t.path.Masqueraded || description.Masqueraded[s.took]
	}
	if gone {
		t.path.Warnings = append(t.path.Warnings, "rules of nftproxy were replaced meanwhile, so that texts are missing")
	}
}

// outcome finds what happened to the packet.
func (t *builder) outcome() {
	out := t.path
	if len(t.steps) == 0 {
		t.lost("prerouting")
		return
	}
	last := &t.steps[len(t.steps)-1]
	switch {
	case last.Verdict == "drop":
		t.dropped(last)
	case last.Verdict == "queue" || last.Verdict == "stolen":
		out.Outcome = explain.Queued
		out.Summary = fmt.Sprintf("handed to a program by %s; what happens to it there is not traced", last)
	case last.Hook == "postrouting", !t.nat && out.OIF != "" && (last.Hook == "forward" || last.Hook == "output"):
		// Our chain in postrouting is of nat, so that later packets of a connection are not seen there.
		out.Outcome, out.Summary = explain.Sent, t.delivered("sent")
		if out.OIF != "" {
			out.Summary += " by " + out.OIF
		}
		out.Summary += t.source()
	case last.Hook == "input":
		out.Outcome, out.Summary = explain.Received, t.delivered("given")+", a process of this node"+t.source()
	default:
		t.lost(last.Hook)
	}
}

// dropped names the rule that dropped the packet, with the reason where the rule is ours.
func (t *builder) dropped(last *traced) {
	t.path.Outcome = explain.Dropped
	if last.rule.Rejects {
		t.path.Outcome = explain.Refused
	}
	why := ""
	for i := range t.steps { // the last text
		if t.steps[i].Text != "" {
			why = t.steps[i].Text
		}
	}
	switch {
	case last.Ours && why != "":
		t.path.Summary = fmt.Sprintf("%s by nftproxy: %s", t.path.Outcome, why)
	case last.Ours:
		t.path.Summary = fmt.Sprintf("%s by %s", t.path.Outcome, last)
	default:
		t.path.Summary = fmt.Sprintf("%s by %s, which is not nftproxy's", t.path.Outcome, last)
	}
}

// delivered says where the packet went.
func (t *builder) delivered(verb string) string {
	ours := slices.ContainsFunc(t.steps, func(s traced) bool { // a rule of ours chose the destination
		return s.took >= 0 && s.Verdict == "accept" && (s.Hook == "prerouting" || s.Hook == "output")
	})
	switch {
	case t.to.IsValid() && ours:
		return fmt.Sprintf("%s to endpoint %s", verb, t.path.Endpoint)
	case t.to.IsValid():
		return fmt.Sprintf("%s to %s, which was chosen before this packet, or not by nftproxy", verb, t.path.Endpoint)
	}
	return fmt.Sprintf("%s untranslated to %s", verb, t.path.Packet.To)
}

func (t *builder) source() string {
	if t.path.Masqueraded {
		return "; masqueraded: the receiver sees an address of this node as the source"
	}
	return ""
}

// lost is the outcome of a packet that no later hook saw and no rule dropped; our own chains are in all hooks. Of a packet
// that a bridge forwards, the kernel traces the IP hooks only up to prerouting.
func (t *builder) lost(hook string) {
	to := t.path.Packet.To
	if t.to.IsValid() {
		to = t.path.Endpoint
	}
	iif := t.path.Packet.IIF
	if hook == "prerouting" && iif != "" && t.facts.BridgeNetfilter(iif, t.first.Family) {
		sysctl := map[nft.Family]string{nft.IPv4: "iptables", nft.IPv6: "ip6tables"}[t.first.Family]
		t.path.Outcome = explain.Bridged
		t.path.Summary = fmt.Sprintf("the trace ends after prerouting, on its way to %s: %s is a bridge and net.bridge.bridge-nf-call-%s is 1, "+
			"where the kernel does not trace further; nftproxy explain shows what the rules do", to, iif, sysctl)
		return
	}
	why := "the kernel could not send it"
	switch hook {
	case "prerouting":
		why = "there is no route to its destination, forwarding is off, or its source address is refused (rp_filter)"
	case "output":
		why = "there is no route to its destination"
	}
	t.path.Outcome = explain.Lost
	t.path.Summary = fmt.Sprintf("not seen after %s, on its way to %s, though no rule dropped it: %s", hook, to, why)
}

// String names a step so that nft finds it.
func (s *traced) String() string {
	if s.Policy {
		return fmt.Sprintf("the policy of table %s, chain %s", s.Table, s.Chain)
	}
	return fmt.Sprintf("table %s, chain %s, %s", s.Table, s.Chain, place(&s.Step))
}
