// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"slices"
	"strings"
)

// Severity says what a [Problem] means for the modes that are switched on.
type Severity uint8

// The severities, the lightest first.
const (
	// Note: everything works, but an operator should know.
	Note Severity = iota
	// Waiting: something is not there yet; what needs it is left out until it appears.
	Waiting
	// Conflict: something of others is in the way, or the configuration contradicts itself or the node.
	Conflict
)

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"note", "waiting", "conflict"}[s] }

// Problem is one line for the operator: what is wrong, and what to change.
type Problem struct {
	Severity Severity
	Text     string
}

// String returns the severity and the line.
func (p Problem) String() string { return p.Severity.String() + ": " + p.Text }

// RefusedError says why routing does not start, or does not take over a new configuration.
type RefusedError struct {
	Problems []Problem // at least one, in the order found
}

// Error returns one line per problem.
func (e *RefusedError) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		lines = append(lines, "routing: "+p.Text)
	}
	return strings.Join(lines, "\n")
}

// problems collects lines; a line that was found twice counts once.
type problems []Problem

func (ps *problems) add(s Severity, format string, args ...any) {
	p := Problem{s, fmt.Sprintf(format, args...)}
	if !slices.Contains(*ps, p) {
		*ps = append(*ps, p)
	}
}

func (ps *problems) invalid(format string, args ...any) { ps.add(Conflict, format, args...) }
func (ps *problems) waiting(format string, args ...any) { ps.add(Waiting, format, args...) }
func (ps *problems) note(format string, args ...any)    { ps.add(Note, format, args...) }

// refused returns the conflicts as an error, or nil if there are none.
func (ps problems) refused() error {
	return refusal(ps, Conflict)
}

// refusal returns the problems from severity s up as an error, or nil if there are none. They are sorted, because
// some are found while walking a map.
func refusal(ps []Problem, s Severity) error {
	var out []Problem
	for _, p := range ps {
		if p.Severity >= s {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil
	}
	slices.SortStableFunc(out, func(a, b Problem) int { return strings.Compare(a.Text, b.Text) })
	return &RefusedError{out}
}
