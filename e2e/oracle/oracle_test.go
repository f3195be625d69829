// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// The two proxies agree, on every second cell of the default setup.
func TestOracleFast(t *testing.T) {
	lab.RequireRoot(t)
	var shared lab.Shared
	defer shared.Close()
	cells, err := run(t.Context(), shared.ControlPlane(t), options{fast: true, log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if n := report(&table, cells); n > 0 {
		for line := range strings.Lines(table.String()) {
			if strings.HasPrefix(line, "!") {
				t.Error(strings.TrimSpace(line))
			}
		}
	}
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	t.Log(lines[len(lines)-1])
	if len(cells) < 300 {
		t.Errorf("%d cells, want at least 300", len(cells))
	}
}

// The oracle notices a proxy that does something else.
func TestReportNoticesDifferences(t *testing.T) {
	a, b := outcome{"pod-1-1", "pod-1-1 as own"}, outcome{"pod-1-1", "pod-1-1 as node-1/eth0"}
	for _, test := range []struct {
		cell cell
		bad  bool
	}{
		{cell{ours: a, theirs: a}, false},
		{cell{ours: a, theirs: a, want: "pod-1-1"}, false},
		{cell{ours: a, theirs: b}, true},
		{cell{ours: a, theirs: a, want: "refused"}, true},
		{cell{ours: outcome{"dropped", "dropped"}, theirs: outcome{"unreachable", "unreachable"}, at: unallocated, want: "dropped"}, false},
		{cell{ours: outcome{"unreachable", "unreachable"}, theirs: outcome{"dropped", "dropped"}, at: unallocated, want: "dropped"}, true},
	} {
		c := test.cell
		if c.file(); c.bad != test.bad {
			t.Errorf("%+v: bad %v, want %v", test.cell, c.bad, test.bad)
		}
	}
}

// docs/upstream.md is what the scenarios say, and they and the list speak of the same tests.
func TestUpstream(t *testing.T) {
	n := lab.Start(t, labOptions(lab.Options{}))
	by := coverage(setups(), func(st *setup) *plan { return st.plan(n) })
	known := map[string]bool{}
	for _, u := range upstreamTests {
		known[u.name] = true
		if covered := len(by[u.name]) > 0; covered == (u.otherwise != "") {
			t.Errorf("%s: covered by %q, otherwise %q: want one of them", u.name, by[u.name], u.otherwise)
		}
	}
	for name, scenarios := range by {
		if !known[name] {
			t.Errorf("%q stands for %q, which is not in the list", scenarios, name)
		}
	}
	var want bytes.Buffer
	writeUpstream(&want, by)
	if got, err := os.ReadFile("../../docs/upstream.md"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/upstream.md is out of date (%v): go run ./e2e/oracle -upstream > docs/upstream.md", err)
	}
}

func TestDifferences(t *testing.T) {
	var want bytes.Buffer
	writeDifferences(&want)
	if got, err := os.ReadFile("../../docs/differences.md"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/differences.md is out of date (%v): go run ./e2e/oracle -differences > docs/differences.md", err)
	}
}

// The list has the names of the tests of the version that the peers are built from, where its source is at hand.
func TestUpstreamNames(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "k8s.io/kubernetes@v1.36.3/test/e2e/network")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no source of Kubernetes here: %v", err)
	}
	known := map[string]bool{}
	for _, u := range upstreamTests {
		known[u.name] = true
	}
	test := regexp.MustCompile(`(?:ConformanceIt|ginkgo\.It|f\.It|framework\.It)\("([^"]*)"`)
	for _, file := range []string{"service.go", "conntrack.go", "networking.go", "dual_stack.go", "topology_hints.go", "traffic_distribution.go", "loadbalancer.go"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range test.FindAllStringSubmatch(string(text), -1) {
			if name := file + ": " + m[1]; !known[name] {
				t.Errorf("%s is not in the list", name)
			}
		}
	}
}
