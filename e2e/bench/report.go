// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// run says when, where and how something was measured.
type run struct {
	Date    string `json:"date"`
	Machine string `json:"machine"`
	Command string `json:"command"`
}

// row is what was measured at one size.
type row struct {
	size
	run
	samples map[string]samples // by proxy
}

func (r *report) newRow(s size) *row { return &row{s, r.run, map[string]samples{}} }

// of is the samples of a proxy.
func (r *row) of(name string) samples {
	if r.samples[name] == nil {
		r.samples[name] = samples{}
	}
	return r.samples[name]
}

// matrix reports whether the row is one of the matrix, and not a single Service.
func (r *row) matrix() bool { return r.services > 1 }

// proxies are those that have samples, ours first.
func (r *row) proxies() (names []string) {
	for _, p := range []peer{ours, nftables, iptables} {
		if len(r.samples[p.name]) > 0 {
			names = append(names, p.name)
		}
	}
	return names
}

// value is a figure of one proxy, NaN if it has none.
func (r *row) value(f figure, name string) float64 { return quantile(r.samples[name][f.of], f.q) }

// ratio is ours / the peer's.
func (r *row) ratio(f figure, peer string) float64 { return r.value(f, ours.name) / r.value(f, peer) }

// report is all of it.
type report struct {
	run
	rows []*row
}

func newReport(o options, args []string) *report {
	return &report{run: run{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Command: quoted(args),
	}}
}

// quoted is the command as a shell takes it.
func quoted(args []string) string {
	all := []string{"bench"}
	for _, a := range args {
		if a == "" || strings.Contains(a, " ") {
			a = `"` + a + `"`
		}
		all = append(all, a)
	}
	return strings.Join(all, " ")
}

// machine is the kernel, the number of processors, and whether they had other work.
func machine() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	averages, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(averages), " ")
	return fmt.Sprintf("%d processors, Linux %s, load %s at the start", runtime.NumCPU(), strings.TrimSpace(string(release)), load)
}

// figures are those of all rows: the rates of churn may differ.
func (r *report) figures() []figure {
	rates := map[int]bool{}
	for _, row := range r.rows {
		for _, s := range row.samples {
			for name := range s {
				var rate int
				if n, _ := fmt.Sscanf(name, "churn_%d_lag", &rate); n == 1 {
					rates[rate] = true
				}
			}
		}
	}
	return figures(slices.Sorted(maps.Keys(rates)))
}

// write writes report.json, report.md, readme.md, the plots, and samples.json with every single measurement.
func (r *report) write(dir string) error {
	for name, content := range map[string]any{"report.json": r.document(), "samples.json": r.raw()} {
		text, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"report.md": r.markdown(), "readme.md": r.readme()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return r.plots(dir)
}

// document is the JSON. Each row has the ratios ours / kube-proxy by the names of the figures; under each proxy's name its figures
// in seconds, MiB and plain numbers; what became of connections by phase; and when and how it was measured. Single Services are
// apart from the matrix.
func (r *report) document() map[string]any {
	rows, single := []any{}, []any{}
	for _, row := range r.rows {
		doc := map[string]any{
			"row": row.String(), "services": row.services, "endpoints": row.endpoints,
			"date": row.Date, "machine": row.Machine, "command": row.Command,
		}
		for _, name := range row.proxies() {
			own := map[string]any{}
			for _, f := range r.figures() {
				put(own, f.name, row.value(f, name))
			}
			own["phases"] = row.samples[name].phases()
			doc[name] = own
		}
		versus := map[string]any{}
		for _, f := range r.figures() {
			put(doc, f.name, row.ratio(f, nftables.name))
			put(versus, f.name, row.ratio(f, iptables.name))
		}
		if len(versus) > 0 {
			doc["versus_iptables"] = versus
		}
		if row.matrix() {
			rows = append(rows, doc)
		} else {
			single = append(single, doc)
		}
	}
	return map[string]any{
		"date": r.Date, "machine": r.Machine, "command": r.Command, "rows": rows, "single_service": single, "not_held": r.violations(),
	}
}

// put leaves out what JSON has no word for.
func put(into map[string]any, name string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		into[name] = v
	}
}

// markdown is a table per row, and one of connections by phase.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, `%s`; ours / theirs is the ratio\n", r.Machine, r.Date, r.Command)
	for _, row := range r.rows {
		names := row.proxies()
		fmt.Fprintf(&b, "\n### %d Services x %d endpoints\n\n", row.services, row.endpoints)
		if row.run != r.run {
			fmt.Fprintf(&b, "%s, %s, `%s`\n\n", row.Machine, row.Date, row.Command)
		}
		fmt.Fprintf(&b, "| | %s | ours / theirs |\n| --- |%s ---: |\n", strings.Join(names, " | "), strings.Repeat(" ---: |", len(names)))
		for _, f := range r.figures() {
			var values []string
			none := true
			for _, name := range names {
				v := row.value(f, name)
				none = none && math.IsNaN(v)
				values = append(values, f.unit.text(v))
			}
			if !none {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", f.title, strings.Join(values, " | "), ratioText(row.ratio(f, nftables.name)))
			}
		}
		b.WriteString(row.connections())
	}
	return b.String()
}

// text is a value as people write it, with three digits.
func (u unit) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case u == seconds && v < 1e-3:
		return fmt.Sprintf("%.3g µs", v*1e6)
	case u == seconds && v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	case u == seconds:
		return fmt.Sprintf("%.3g s", v)
	case u == mebibytes && v < 10:
		return fmt.Sprintf("%.1f MiB", v)
	case u == mebibytes:
		return fmt.Sprintf("%.0f MiB", v)
	case u == share:
		return fmt.Sprintf("%.1f%%", v*100)
	case u == ratio:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func ratioText(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case v > 0 && v < 0.5:
		return fmt.Sprintf("1/%.3g", 1/v)
	}
	return fmt.Sprintf("%.2f", v)
}
