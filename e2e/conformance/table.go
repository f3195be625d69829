// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// preface is the text above the table.
const preface = `# Upstream's own tests, nftproxy beside kube-proxy

Written by ` + "`make e2e-upstream`" + ` (e2e/conformance). It runs Kubernetes' own end-to-end tests of Services and their surroundings
([sig-network] of k8s.io/kubernetes/test/e2e, built unchanged from its Go module) on a cluster of real kubelets
([cluster.md](cluster.md): one control plane and three workers in network namespaces, dual stack, here in three zones), once
with nftproxy and once with kube-proxy. ` + "`make e2e-smoke`" + ` runs only the Conformance tests of Services, in a few minutes.
` + "`PROXY=kube-proxy`" + ` or ` + "`PROXY=nftproxy`" + ` selects one proxy. ` + "`make e2e-kind`" + ` runs the smoke tests in a cluster
made by kind without kube-proxy, with nftproxy's image and manifests/overlays/kind; it needs Docker.

The images of the test pods are assembled from upstream's Go module and Debian's packages under the names that the
tests expect, so that nothing is pulled (e2e/conformance/images).

`

// table writes the document from the runs that are kept.
func (o options) table() error {
	ours, err := load(o.out, suiteFull, "nftproxy")
	if err != nil {
		return err
	}
	peer, err := load(o.out, suiteFull, "kube-proxy")
	if err != nil {
		return err
	}
	tests, err := loadTests(o.out)
	if err != nil {
		return err
	}
	ours.Results, peer.Results = of(tests, ours.Results), of(tests, peer.Results)
	note := ""
	if o.note != "" {
		note = o.note + "\n\n"
	}
	return os.WriteFile(o.doc, []byte(preface+describe(ours, peer)+note+render(tests, ours, peer)), 0o644)
}

// of are the results of tests that are not left out; earlier runs may have tried others.
func of(tests []test, results []result) []result {
	return slices.DeleteFunc(slices.Clone(results), func(r result) bool {
		i := slices.IndexFunc(tests, func(t test) bool { return t.Name == r.Name })
		return i < 0 || tests[i].Skip != ""
	})
}

// describe describes the runs: when, what, where, and how they ended.
func describe(runs ...run) string {
	var b strings.Builder
	b.WriteString("| | " + join(runs, func(r run) string { return r.Proxy }) + " |\n|---|" + strings.Repeat("---|", len(runs)) + "\n")
	row := func(name string, of func(run) string) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, join(runs, of))
	}
	row("passed", func(r run) string { return fmt.Sprint(count(r.Results, passed)) })
	row("of these at the second attempt", func(r run) string { return fmt.Sprint(retried(r.Results)) })
	row("failed", func(r run) string { return fmt.Sprint(count(r.Results, failed) + count(r.Results, missing)) })
	row("skipped themselves", func(r run) string { return fmt.Sprint(count(r.Results, skipped)) })
	row("date", func(r run) string { return r.Date.Format(time.DateOnly) })
	row("took", func(r run) string { return fmt.Sprintf("%.0f min", r.Minutes) })
	row("version", func(r run) string { return strings.TrimPrefix(r.Versions["proxy"], r.Proxy+" ") })
	row("tests", func(r run) string { return r.Versions["tests"] })
	row("nodes", func(r run) string { return strings.ReplaceAll(r.Versions["nodes"], "\n", "<br>") })
	row("kernel", func(r run) string { return r.Versions["kernel"] })
	row("machine", func(r run) string { return r.Versions["machine"] })
	return b.String() + "\n"
}

func join(runs []run, of func(run) string) string {
	cells := make([]string, len(runs))
	for i, r := range runs {
		cells[i] = of(r)
	}
	return strings.Join(cells, " | ")
}

// retried counts tests that passed only when they were run again.
func retried(results []result) int {
	n := 0
	for _, r := range results {
		if r.State == passed && r.Attempts > 1 {
			n++
		}
	}
	return n
}

// render is the table, one section for each group of tests, and then what is left out.
func render(tests []test, ours, peer run) string {
	var b strings.Builder
	section := ""
	for _, t := range tests {
		if t.Skip != "" {
			continue
		}
		group, name := split(t.Name)
		if group != section {
			section = group
			fmt.Fprintf(&b, "## %s\n\n| test | nftproxy | kube-proxy |\n|---|---|---|\n", group)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(name), ours.cell(t), peer.cell(t))
		if last(tests, t, group) {
			b.WriteString("\n")
		}
	}
	b.WriteString("## Left out\n\n| test | why |\n|---|---|\n")
	for _, t := range tests {
		if t.Skip != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", cell(strings.TrimPrefix(t.Name, "[sig-network] ")), cell(t.Skip))
		}
	}
	return b.String()
}

// last reports whether a test is the last of its group that is run; the list is sorted by name.
func last(tests []test, t test, group string) bool {
	after := false
	for _, u := range tests {
		if after && u.Skip == "" {
			g, _ := split(u.Name)
			return g != group
		}
		after = after || u.Name == t.Name
	}
	return true
}

// split parts a full text into its group and the rest.
func split(name string) (group, rest string) {
	group = groups.FindString(name)
	return strings.TrimSpace(strings.TrimPrefix(group, "[sig-network] ")), strings.TrimPrefix(name, group)
}

// cell is what became of a test, for a table: failures are bold, and every reason is given.
func (r run) cell(t test) string {
	for _, got := range r.Results {
		if got.Name != t.Name {
			continue
		}
		switch {
		case got.State == passed && got.Attempts > 1:
			return fmt.Sprintf("passed at attempt %d (%.0f s)", got.Attempts, got.Seconds)
		case got.State == passed:
			return fmt.Sprintf("passed (%.0f s)", got.Seconds)
		case got.State == skipped:
			return "skipped: " + cell(brief(got.Message))
		default:
			return "**" + got.State + "** " + cell(brief(got.Message))
		}
	}
	return "not run"
}

// brief is the first line of a message, and not all of it.
func brief(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 120 {
		s = s[:120] + "..."
	}
	return s
}

// cell makes a text fit for a cell of a table in Markdown.
func cell(s string) string { return strings.NewReplacer("|", "\\|", "<", "&lt;", "\n", " ").Replace(s) }
