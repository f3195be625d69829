// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// phases are the connections of one proxy by phase, in the JSON: how many, how many of them failed or waited longer than 20 ms
// ("slow"), how many of those while no direct connection was slow too ("alone"), and the slowest in seconds; the same of the direct
// ones. Counts are summed up over rounds. See watch for what is timed.
func (s samples) phases() map[string]map[string]float64 {
	all := map[string]map[string]float64{}
	for name, values := range s {
		rest, ok := strings.CutPrefix(name, "conn/")
		phase, what, found := strings.Cut(rest, "/")
		if !ok || !found {
			continue
		}
		if all[phase] == nil {
			all[phase] = map[string]float64{}
		}
		var sum float64
		for _, v := range values {
			sum += v
		}
		if strings.HasSuffix(what, "slowest") {
			sum = slices.Max(values)
		}
		all[phase][what] = sum
	}
	return all
}

// connections is the table of a row's connections by phase.
func (r *row) connections() string {
	var b strings.Builder
	for _, name := range r.proxies() {
		phases := r.samples[name].phases()
		for _, phase := range slices.Sorted(maps.Keys(phases)) {
			p := phases[phase]
			fmt.Fprintf(&b, "| %s | %s | %.0f | %.0f | %.0f | %.0f | %s | %.0f | %s |\n", name, phase, p["total"], p["failed"], p["slow"],
				p["alone"], seconds.text(p["slowest"]), p["direct_slow"], seconds.text(p["direct_slowest"]))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n| new connections | during | made | failed | over 20 ms | of them, not while direct ones were | slowest | direct ones over 20 ms " +
		"| slowest of these |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n" + b.String()
}

// violations are the claims about connections through nftproxy that did not hold.
func (r *report) violations() []string {
	bad := []string{}
	for _, row := range r.rows {
		phases := row.samples[ours.name].phases()
		for _, name := range slices.Sorted(maps.Keys(phases)) {
			p := phases[name]
			if p["failed"] > 0 {
				bad = append(bad, fmt.Sprintf("%s: %s: %.0f of %.0f connections failed", row.size, name, p["failed"], p["total"]))
			}
			if p["alone"] > 0 {
				bad = append(bad, fmt.Sprintf("%s: %s: %.0f of %.0f connections waited longer than %s, the slowest %s, the slowest direct one %s",
					row.size, name, p["alone"], p["total"], slowAfter, seconds.text(p["slowest"]), seconds.text(p["direct_slowest"])))
			}
		}
	}
	return bad
}
