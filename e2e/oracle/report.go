// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
)

// report writes the table and the sum, and returns how many cells are not explained.
func report(w io.Writer, cells []*cell) (unexplained int) {
	differences := 0
	for _, c := range cells {
		c.write(w)
		if c.ours != c.theirs {
			differences++
		}
		if c.bad {
			unexplained++
		}
	}
	reasons(w, cells)
	fmt.Fprintf(w, "%d cells, %d differences, %d unexplained\n", len(cells), differences, unexplained)
	return unexplained
}

func (c *cell) write(w io.Writer) {
	mark := " "
	switch {
	case c.bad:
		mark = "!"
	case c.ours != c.theirs:
		mark = "~"
	}
	name := c.setup + ": " + c.scenario
	if c.step != "" {
		name += ", " + c.step
	}
	fmt.Fprintf(w, "%s %-70s | %-18s | %-22s | %-4s | %s | ", mark, name, c.from, c.at, c.proto, c.family)
	if c.ours == c.theirs {
		fmt.Fprint(w, c.ours.text)
	} else {
		fmt.Fprintf(w, "nftproxy: %s; kube-proxy: %s", c.ours.text, c.theirs.text)
	}
	if c.bad && c.want != "" {
		fmt.Fprintf(w, "; want %s", c.want)
	}
	if c.reason != "" {
		fmt.Fprintf(w, " [%s]", strings.Fields(c.reason)[0])
	}
	fmt.Fprintln(w)
}

// reasons lists what explains differences, with the number of cells.
func reasons(w io.Writer, cells []*cell) {
	count := map[string]int{}
	for _, c := range cells {
		if c.ours != c.theirs && c.reason != "" {
			count[c.reason]++
		}
	}
	for _, r := range known {
		if n := count[r.text]; n > 0 {
			fmt.Fprintf(w, "~ %d cells: %s\n", n, r.text)
		}
	}
}
