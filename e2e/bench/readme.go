// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// inReadme are the figures of README's table and what they are called there.
var inReadme = []struct{ name, title string }{
	{"change_p50", "API write to first packet on the new endpoint, p50"},
	{"new_service_p50", "new Service to first answer, p50"},
	{"cpu_per_change", "processor time of one change"},
	{"cold_start", "cold start to the last address answering"},
	{"restart", "warm restart to the first change in effect"},
	{"restart_changed", "the same, 1% of the Services changed meanwhile"},
	{"memory", "resident memory, settled"},
	{"memory_peak", "resident memory, peak of the cold start"},
	{"kernel_memory", "kernel memory of the tables"},
	{"churn_100_lag_p50", "100 changes per second: API write to first packet, p50"},
	{"churn_1000_lag_p50", "1,000 changes per second: the same"},
}

// readme is a table of all rows of the matrix, ready for README: a cell has nftproxy's figure, kube-proxy's, and how many times the
// second is the first.
func (r *report) readme() string {
	var b strings.Builder
	var rows []*row
	for _, row := range r.rows {
		if row.matrix() {
			rows = append(rows, row)
		}
	}
	b.WriteString("| nftproxy / kube-proxy (ratio) |")
	for _, row := range rows {
		fmt.Fprintf(&b, " %d x %d |", row.services, row.endpoints)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(rows)) + "\n")
	all := r.figures()
	for _, in := range inReadme {
		i := slices.IndexFunc(all, func(f figure) bool { return f.name == in.name })
		if i < 0 {
			continue // a rate of churn that was not measured
		}
		f := all[i]
		line, any := "| "+in.title+" |", false
		for _, row := range rows {
			a, z := row.value(f, ours.name), row.value(f, nftables.name)
			any = any || !math.IsNaN(a)
			line += " " + cell(f, a, z) + " |"
		}
		if any {
			b.WriteString(line + "\n")
		}
	}
	var how []string
	for _, row := range rows {
		line := fmt.Sprintf("%s, %s, `%s`", row.Date, row.Machine, row.Command)
		if !slices.Contains(how, line) {
			how = append(how, line)
		}
	}
	return b.String() + "\n" + strings.Join(how, "\n") + "\n"
}

func cell(f figure, ours, theirs float64) string {
	switch {
	case math.IsNaN(ours) && math.IsNaN(theirs):
		return ""
	case math.IsNaN(theirs):
		return f.unit.text(ours) + " / -"
	case f.unit == share || !(ours > 0):
		return f.unit.text(ours) + " / " + f.unit.text(theirs)
	}
	return fmt.Sprintf("%s / %s (%.3gx)", f.unit.text(ours), f.unit.text(theirs), theirs/ours)
}
