// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// inReadme are the figures of README's table.
var inReadme = []string{
	"change_p50", "new_service_p50", "cpu_per_change", "cold_start", "restart_changed", "memory", "memory_peak", "kernel_memory",
	"churn_100_lag_p50", "cluster_ip_share",
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
	for _, f := range r.figures() {
		if !slices.Contains(inReadme, f.name) {
			continue
		}
		line, any := "| "+f.title+" |", false
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
