// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Text writes an explanation for people.
func Text(w io.Writer, e *Explanation) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, e.Stamp)
	sender := e.Request.Sender
	if e.Request.Origin != fromHost {
		sender += ", by " + inspect.Printable(e.Request.IIF)
	}
	fmt.Fprintf(out, "%s %s from %s, %s\n", e.Request.Protocol, e.Request.To, e.Request.From, sender)
	fmt.Fprintf(out, "%s: %s\n", e.Outcome, e.Summary)
	for _, warning := range e.Warnings {
		fmt.Fprintf(out, "warning: %s\n", warning)
	}
	if len(e.Steps) > 0 {
		fmt.Fprint(out, "\nsteps:\n")
	}
	for i, s := range e.Steps {
		fmt.Fprintf(out, "%3d. %s\n     %s, chain %s, rule %d", i+1, s.Text, s.Hook, s.Chain, s.Rule)
		if s.Set != "" {
			fmt.Fprintf(out, ", %s { %s }", s.Set, s.Element)
		}
		fmt.Fprintln(out)
	}
	writeCandidates(out, e.Candidates)
	if len(e.Hints) > 0 {
		fmt.Fprintln(out)
	}
	for _, h := range e.Hints {
		fmt.Fprintf(out, "hint: %s\n", h)
	}
	return out.Flush()
}

// writeCandidates lists the endpoints, of very many the first.
func writeCandidates(out *bufio.Writer, list []Candidate) {
	if len(list) > 0 {
		fmt.Fprint(out, "\nendpoints:\n")
	}
	const shown = 20
	same := !slices.ContainsFunc(list, func(c Candidate) bool { return c.Why != list[0].Why }) // the summary has it
	for i := range list {
		if i == shown {
			fmt.Fprintf(out, "  and %d more\n", len(list)-shown)
			return
		}
		c := &list[i]
		fmt.Fprintf(out, "  %-6s %s", percent(c.Share), c.Endpoint)
		if c.OnNode {
			fmt.Fprint(out, ", this node itself")
		}
		if c.Masqueraded {
			fmt.Fprint(out, ", sees an address of this node")
		} else {
			fmt.Fprint(out, ", sees the client's address")
		}
		if c.Why != "" && !(same && c.Masqueraded) {
			fmt.Fprint(out, ": "+c.Why)
		}
		if c.Outcome != Delivered {
			fmt.Fprintf(out, "; %s", c.Outcome)
		}
		fmt.Fprintln(out)
	}
}

// percent prints a probability with three digits.
func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 3, 64) + "%" }
