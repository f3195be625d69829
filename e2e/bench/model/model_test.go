// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-4*max(math.Abs(a), math.Abs(b), 1e-6) }

// What is linear is found again, whatever the three parts are of a size.
func TestFit(t *testing.T) {
	sizes := []sample{{1000, 3000, 0}, {10000, 30000, 0}, {10000, 10000, 0}, {5000, 250000, 0}}
	for _, want := range []model{{20, 0.003, 0.0005}, {0, 0.003, 0.0005}, {1e-3, 5, 1e-4}} {
		for i := range sizes {
			sizes[i].value = want.at(sizes[i])
		}
		if got, err := fit(sizes); err != nil || !near(got.fixed, want.fixed) || !near(got.service, want.service) || !near(got.endpoint, want.endpoint) {
			t.Errorf("%+v: %v, want %+v", got, err, want)
		}
	}
}

func TestFitNeedsSizes(t *testing.T) {
	if m, err := fit([]sample{{1000, 3000, 1}, {2000, 6000, 2}}); err == nil && m.service > 0 && m.endpoint > 0 {
		t.Errorf("%+v of sizes that do not separate Services from endpoints", m)
	}
	if _, err := fit(nil); err == nil {
		t.Error("a model of nothing")
	}
}

// Nothing becomes less with size: a coefficient that noise makes negative is left out.
func TestFitIsNotNegative(t *testing.T) {
	m, err := fit([]sample{{1000, 3000, 10}, {10000, 10000, 110}, {10000, 100000, 90}, {30000, 30000, 300}})
	if err != nil || m.fixed < 0 || m.service < 0 || m.endpoint < 0 || m.at(sample{20000, 20000, 0}) < 100 {
		t.Errorf("%+v %v", m, err)
	}
}

func TestReadsBenchmarks(t *testing.T) {
	const text = `BenchmarkKernelMemory/1000x3-2   1   100 ns/op   1.5 MiB
BenchmarkKernelMemory/1000x3-2   1   100 ns/op   9.5 MiB
BenchmarkKernelMemory/1000x3-2   1   100 ns/op   2.5 MiB
BenchmarkOther/1000-2   1   100 ns/op   7 MiB
`
	got := medians(benchmarks(strings.NewReader(text), "MiB"))
	if len(got) != 1 || got[0] != (sample{1000, 3000, 2.5}) {
		t.Errorf("%v", got)
	}
}

func TestReadsSamples(t *testing.T) {
	file := filepath.Join(t.TempDir(), "samples.json")
	const text = `{"rows":[{"services":1000,"endpoints":3,"samples":{"nftproxy":{"memory":[30,31],"change":[0.1]}}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string][]sample{}
	if err := readSamples(file, all); err != nil || len(all) != 1 || len(all["nftproxy memory"]) != 2 || all["nftproxy memory"][0].endpoints != 3000 {
		t.Errorf("%v %v", all, err)
	}
	var out bytes.Buffer
	if err := show(&out, "x", []sample{{1, 1, 3}, {2, 5, 8}, {7, 1, 9}}); err != nil || !strings.Contains(out.String(), "off by") {
		t.Errorf("%v %s", err, out.String())
	}
}
