// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Text writes a path for the eye, with all steps if wide is set, and otherwise without those that only lead on.
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
		if !wide && s.leads() {
			continue
		}
		fmt.Fprintf(&out, "  %-11s  %s %s, %s: %s\n", s.Hook, s.Table, s.Chain, s.place(), s.words(wide))
	}
	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}

// words are what a step did.
func (s *Step) words(wide bool) string {
	if s.Text == "" {
		return s.Verdict
	}
	var b strings.Builder
	b.WriteString(s.Text)
	if s.Set != "" {
		fmt.Fprintf(&b, " (%s { %s })", s.Set, s.Element)
	}
	if wide {
		fmt.Fprintf(&b, "; %s", s.Verdict)
	}
	return b.String()
}

// JSON writes a path as one line.
func JSON(w io.Writer, p *Path) error { return json.NewEncoder(w).Encode(p) }
