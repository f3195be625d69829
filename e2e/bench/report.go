// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// figure is a line of the table: a quantile of what was measured.
type figure struct {
	name  string // in the JSON
	title string
	of    string // the samples
	q     float64
	unit  unit
}

type unit int

const (
	seconds unit = iota
	mebibytes
	number
	share
)

// figures are the lines of the table for some rates of churn.
func figures(rates []int) []figure {
	all := []figure{
		{"cold_start", "cold start: process start to last VIP answering", "cold_start", 0.5, seconds},
		{"cold_start_cpu", "processor time of a cold start", "cold_start_cpu", 0.5, seconds},
		{"transaction", "longest transaction of a cold start, at most", "transaction", 1, seconds},
		{"change_p50", "API write to first packet on the new endpoint, p50", "change", 0.5, seconds},
		{"change_p90", "… p90", "change", 0.9, seconds},
		{"change_p99", "… p99", "change", 0.99, seconds},
		{"write", "of which the API write itself", "change_write", 0.5, seconds},
		{"cpu_per_change", "processor time of one change", "cpu_per_change", 0.5, seconds},
		{"new_service_p50", "new Service to first answer, p50", "new_service", 0.5, seconds},
		{"new_service_p90", "… p90", "new_service", 0.9, seconds},
		{"new_service_p99", "… p99", "new_service", 0.99, seconds},
		{"memory", "resident memory, settled", "memory", 0.5, mebibytes},
		{"memory_peak", "resident memory, peak of the cold start, with children", "peak", 0.5, mebibytes},
		{"idle_cpu", "processor, idle", "idle_cpu", 0.5, share},
	}
	for _, r := range rates {
		of := func(what string) string { return fmt.Sprintf("churn_%d_%s", r, what) }
		all = append(all,
			figure{of("reached"), fmt.Sprintf("churn of %d changes/s: reached", r), of("reached"), 0.5, number},
			figure{of("lag_p50"), "… API write to first packet, p50", of("lag"), 0.5, seconds},
			figure{of("lag_p99"), "… p99", of("lag"), 0.99, seconds},
			figure{of("cpu"), "… processor", of("cpu"), 0.5, share})
	}
	return append(all,
		figure{"restart", "warm restart to first change in effect", "restart", 0.5, seconds},
		figure{"restart_ready", "warm restart, nothing changed: ready", "restart_ready", 0.5, seconds},
		figure{"restart_elements", "… elements written", "restart_elements", 1, number},
		figure{"failed", "connections failed in churn and restarts, at most", "failed", 1, number},
		figure{"slowest", "… slowest", "slowest", 1, seconds},
		figure{"connection_rate", "connections/s of one client through a ClusterIP", "cluster_ip_rate", 0.5, number},
		figure{"connection_share", "… of those without one", "rate_share", 0.5, share})
}

// row is what was measured at one size.
type row struct {
	size
	samples map[lab.ProxyKind]samples
}

func newRow(s size) *row {
	return &row{s, map[lab.ProxyKind]samples{lab.NFTProxy: {}, lab.KubeProxy: {}}}
}

// value is a figure of one proxy, NaN if it has none.
func (r *row) value(f figure, k lab.ProxyKind) float64 { return quantile(r.samples[k][f.of], f.q) }

// ratio is ours / kube-proxy's.
func (r *row) ratio(f figure) float64 { return r.value(f, lab.NFTProxy) / r.value(f, lab.KubeProxy) }

// report is all of it.
type report struct {
	date, machine, command string
	figures                []figure
	rows                   []*row
}

func newReport(o options, args []string) *report {
	return &report{
		date: time.Now().UTC().Format(time.DateOnly), machine: machine(), command: strings.Join(append([]string{"bench"}, args...), " "),
		figures: figures(o.rates),
	}
}

// machine is the kernel, the number of processors, and whether they had other work.
func machine() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	averages, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(averages), " ")
	return fmt.Sprintf("%d processors, Linux %s, load %s at the start", runtime.NumCPU(), strings.TrimSpace(string(release)), load)
}

// write writes report.json, report.md, the plots, and samples.json with every single measurement.
func (r *report) write(dir string) error {
	raw := map[string]any{}
	for _, row := range r.rows {
		raw[row.String()] = row.samples
	}
	for name, content := range map[string]any{"report.json": r.document(), "samples.json": raw} {
		text, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "report.md"), []byte(r.markdown()), 0o644); err != nil {
		return err
	}
	return r.plots(dir)
}

// document is the JSON: per row the ratios ours / kube-proxy by the names of the figures, and under each proxy's name its
// figures in seconds, MiB and plain numbers.
func (r *report) document() map[string]any {
	var rows []map[string]any
	for _, row := range r.rows {
		doc := map[string]any{"row": row.String(), "services": row.services, "endpoints": row.endpoints}
		for _, k := range []lab.ProxyKind{lab.NFTProxy, lab.KubeProxy} {
			own := map[string]float64{}
			for _, f := range r.figures {
				put(own, f.name, row.value(f, k))
			}
			doc[string(k)] = own
		}
		for _, f := range r.figures {
			put(doc, f.name, row.ratio(f))
		}
		rows = append(rows, doc)
	}
	return map[string]any{"date": r.date, "machine": r.machine, "command": r.command, "rows": rows}
}

// put leaves out what JSON has no word for.
func put[V any](into map[string]V, name string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		into[name] = any(v).(V)
	}
}

// markdown is a table per row.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, `%s`; ours / theirs is the ratio\n", r.machine, r.date, r.command)
	for _, row := range r.rows {
		fmt.Fprintf(&b, "\n### %d Services x %d endpoints\n\n| | nftproxy | kube-proxy | ours / theirs |\n| --- | ---: | ---: | ---: |\n",
			row.services, row.endpoints)
		for _, f := range r.figures {
			ours, theirs := row.value(f, lab.NFTProxy), row.value(f, lab.KubeProxy)
			if math.IsNaN(ours) && math.IsNaN(theirs) {
				continue // left out
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.title, f.unit.text(ours), f.unit.text(theirs), ratioText(ours/theirs))
		}
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
	case u == mebibytes:
		return fmt.Sprintf("%.0f MiB", v)
	case u == share:
		return fmt.Sprintf("%.1f%%", v*100)
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
