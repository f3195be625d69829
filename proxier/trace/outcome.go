// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"strings"
)

// judge says what became of the packet.
func (t *teller) judge() {
	if len(t.steps) == 0 {
		t.path.Outcome, t.path.Summary = Lost, t.lost("prerouting")
		return
	}
	last := &t.steps[len(t.steps)-1]
	switch {
	case last.Verdict == "drop":
		t.dropped(last)
	case last.Verdict == "queue" || last.Verdict == "stolen":
		t.path.Outcome = Queued
		t.path.Summary = fmt.Sprintf("handed to a program by %s; what becomes of it there is not seen", last)
	case last.Hook == "postrouting", !t.nat && t.path.OIF != "" && (last.Hook == "forward" || last.Hook == "output"):
		// Our chain in postrouting is of nat, so that later packets of a connection are not seen there.
		t.path.Outcome, t.path.Summary = Sent, t.sent("sent")+t.by()+t.source()
	case last.Hook == "input":
		t.path.Outcome, t.path.Summary = Received, t.sent("given")+", a process of this node"+t.source()
	default:
		t.path.Outcome, t.path.Summary = Lost, t.lost(last.Hook)
	}
}

// dropped tells who dropped it, and says why where it was ours.
func (t *teller) dropped(last *told) {
	t.path.Outcome = Dropped
	if last.rule.Rejects {
		t.path.Outcome = Refused
	}
	how := string(t.path.Outcome)
	if why := t.lastWords(); last.Ours && why != "" {
		t.path.Summary = fmt.Sprintf("%s by nftproxy: %s", how, why)
		return
	}
	t.path.Summary = fmt.Sprintf("%s by %s, which is not nftproxy's", how, last)
	if last.Ours {
		t.path.Summary = fmt.Sprintf("%s by %s", how, last)
	}
}

// lastWords are those of the last rule that has some.
func (t *teller) lastWords() string {
	for i := len(t.steps) - 1; i >= 0; i-- {
		if t.steps[i].Text != "" {
			return t.steps[i].Text
		}
	}
	return ""
}

// sent says where to.
func (t *teller) sent(verb string) string {
	switch {
	case t.to.IsValid() && t.translated():
		return fmt.Sprintf("%s to endpoint %s", verb, t.path.Endpoint)
	case t.to.IsValid():
		return fmt.Sprintf("%s to %s, which was chosen before this packet or by others than nftproxy", verb, t.path.Endpoint)
	}
	return fmt.Sprintf("%s untranslated to %s", verb, t.path.Packet.To)
}

// translated tells whether a rule of ours chose the destination.
func (t *teller) translated() bool {
	for i := range t.steps {
		s := &t.steps[i]
		if s.Ours && s.took >= 0 && s.Verdict == "accept" && (s.Hook == "prerouting" || s.Hook == "output") {
			return true
		}
	}
	return false
}

func (t *teller) by() string {
	if t.path.OIF == "" {
		return ""
	}
	return " by " + t.path.OIF
}

func (t *teller) source() string {
	if t.path.Masqueraded {
		return "; masqueraded, so that an address of this node is seen as the source"
	}
	return ""
}

// lost says what it may be when no later hook sees a packet that no rule dropped. Our own chains are in all of them.
func (t *teller) lost(hook string) string {
	var why string
	switch hook {
	case "prerouting":
		why = "there is no route to its destination, forwarding is off, or its source address is refused (rp_filter)"
	case "output":
		why = "there is no route to its destination"
	default:
		why = "the kernel could not send it"
	}
	to := t.path.Packet.To
	if t.to.IsValid() {
		to = t.path.Endpoint
	}
	return fmt.Sprintf("not seen any more after %s, on its way to %s, though no rule dropped it: %s", hook, to, why)
}

// String names a step as nft would find it.
func (s *told) String() string {
	if s.Policy {
		return fmt.Sprintf("the policy of table %s, chain %s", s.Table, s.Chain)
	}
	return fmt.Sprintf("table %s, chain %s, %s", s.Table, s.Chain, s.place())
}

// place is the rule of a step.
func (s *Step) place() string {
	var b strings.Builder
	switch {
	case s.Policy:
		return "policy"
	case s.Rule > 0:
		fmt.Fprintf(&b, "rule %d", s.Rule)
	default:
		b.WriteString("a rule that is gone")
	}
	if !s.Ours {
		fmt.Fprintf(&b, ", handle %d", s.Handle)
	}
	if s.Comment != "" && !s.Ours {
		fmt.Fprintf(&b, " (%q)", s.Comment)
	}
	return b.String()
}

// leads tells steps that only lead on: of ours, rules without words; of others, base chains that let pass.
func (s *Step) leads() bool {
	if s.Ours {
		return s.Text == "" && s.Verdict != "drop"
	}
	return s.Policy && s.Verdict == "accept"
}
