// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command model fits what was measured at some sizes to a + b per Service + c per endpoint, prints how far off the fit is, and what
// it says of sizes that were not measured.
//
//	go run -C e2e/bench ./model out/samples.json ...                      every figure of the benchmark that follows the size
//	go test ./nft -run '^$' -bench KernelMemory -benchtime 1x -count 5 | go run -C e2e/bench ./model -unit MiB
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
)

func main() {
	unit := flag.String("unit", "", "read the output of Go benchmarks named like 1000x3, and fit what they report in this unit")
	flag.Parse()
	if err := run(*unit, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(unit string, files []string) error {
	if unit != "" {
		return show(os.Stdout, unit, medians(benchmarks(os.Stdin, unit)))
	}
	all := map[string][]sample{}
	for _, file := range files {
		if err := readSamples(file, all); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := show(os.Stdout, name, medians(all[name])); err != nil {
			fmt.Printf("%s: %v\n", name, err)
		}
	}
	return nil
}

// sample is something measured at a size.
type sample struct{ services, endpoints, value float64 } // endpoints in all

var benchmark = regexp.MustCompile(`^Benchmark\S*/(\d+)x(\d+)(?:-\d+)?\s`)

// benchmarks reads what go test -bench prints.
func benchmarks(r io.Reader, unit string) (all []sample) {
	value := regexp.MustCompile(`([-+.0-9e]+) ` + regexp.QuoteMeta(unit) + `(?:\s|$)`)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		size, v := benchmark.FindStringSubmatch(lines.Text()), value.FindStringSubmatch(lines.Text())
		if size == nil || v == nil {
			continue
		}
		s, _ := strconv.ParseFloat(size[1], 64)
		e, _ := strconv.ParseFloat(size[2], 64)
		y, err := strconv.ParseFloat(v[1], 64)
		if err == nil {
			all = append(all, sample{s, s * e, y})
		}
	}
	return all
}

// followsSize are the samples of the benchmark that are expected to grow with the cluster.
var followsSize = []string{"memory", "peak", "kernel_memory", "kernel_memory_meminfo", "cold_start", "cold_start_cpu", "cold_start_received", "cpu_per_change"}

func readSamples(file string, into map[string][]sample) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc struct {
		Rows []struct {
			Services, Endpoints float64
			Samples             map[string]map[string][]float64
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, row := range doc.Rows {
		for proxy, samples := range row.Samples {
			for _, name := range followsSize {
				for _, v := range samples[name] {
					key := proxy + " " + name
					into[key] = append(into[key], sample{row.Services, row.Services * row.Endpoints, v})
				}
			}
		}
	}
	return nil
}

// medians leaves one sample per size.
func medians(all []sample) (out []sample) {
	bySize := map[sample][]float64{}
	for _, s := range all {
		at := sample{services: s.services, endpoints: s.endpoints}
		bySize[at] = append(bySize[at], s.value)
	}
	for at, values := range bySize {
		slices.Sort(values)
		at.value = values[len(values)/2]
		out = append(out, at)
	}
	slices.SortFunc(out, func(a, b sample) int { return int(a.services+a.endpoints) - int(b.services+b.endpoints) })
	return out
}

// beyond are sizes past one machine's measurements: Kubernetes' own limits (10,000 Services, 150,000 Pods of 5,000 nodes), and ten
// times the Services.
var beyond = []sample{{10_000, 150_000, 0}, {30_000, 300_000, 0}, {100_000, 300_000, 0}, {1_000_000, 2_000_000, 0}}

func show(w io.Writer, name string, points []sample) error {
	m, err := fit(points)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s = %.4g + %.4g per 1,000 Services + %.4g per 1,000 endpoints\n", name, m.fixed, m.service*1000, m.endpoint*1000)
	for _, p := range points {
		fmt.Fprintf(w, "    %7.0f Services %8.0f endpoints: measured %10.4g  model %10.4g  off by %+.0f%%\n",
			p.services, p.endpoints, p.value, m.at(p), 100*(m.at(p)-p.value)/p.value)
	}
	for _, p := range beyond {
		fmt.Fprintf(w, "    %7.0f Services %8.0f endpoints: %33s %10.4g\n", p.services, p.endpoints, "model", m.at(p))
	}
	return nil
}
