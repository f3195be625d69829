// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/nftproxy/nftproxy/proxier/explain"
)

// Text writes a path for people. Unless wide is set it leaves out steps that only lead on: rules of ours without a text,
// and policies of others that accept.
func Text(w io.Writer, p *Path, wide bool) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s from %s", p.Packet.Protocol, p.Packet.To, p.Packet.From)
	if p.Packet.IIF != "" {
		fmt.Fprintf(&out, ", in by %s", p.Packet.IIF)
	} else {
		out.WriteString(", a process on this node")
	}
	if p.Service != "" {
		fmt.Fprintf(&out, ", for Service %s", p.Service)
	}
	fmt.Fprintf(&out, "\n%s\n", p.Summary)
	for _, warning := range p.Warnings {
		fmt.Fprintf(&out, "warning: %s\n", warning)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		leadsOn := s.Policy && s.Verdict == "accept"
		if s.Ours {
			leadsOn = s.Text == "" && s.Verdict != "drop"
		}
		if leadsOn && !wide {
			continue
		}
		fmt.Fprintf(&out, "  %-11s  %s %s, %s: ", s.Hook, s.Table, s.Chain, place(s))
		if s.Text == "" {
			fmt.Fprintln(&out, s.Verdict)
			continue
		}
		out.WriteString(s.Text)
		if s.Set != "" {
			fmt.Fprintf(&out, " (%s { %s })", s.Set, s.Element)
		}
		if wide {
			fmt.Fprintf(&out, "; %s", s.Verdict)
		}
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}

// place is the rule of a step.
func place(s *explain.Step) string {
	text := "a rule that is gone"
	switch {
	case s.Policy:
		return "policy"
	case s.Rule > 0:
		text = fmt.Sprintf("rule %d", s.Rule)
	}
	if s.Ours {
		return text
	}
	text += fmt.Sprintf(", handle %d", s.Handle)
	if s.Comment != "" {
		text += fmt.Sprintf(" (%q)", s.Comment)
	}
	return text
}

// JSON writes a path as one line.
func JSON(w io.Writer, p *Path) error { return json.NewEncoder(w).Encode(p) }
