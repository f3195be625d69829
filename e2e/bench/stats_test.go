// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3, 6, 7, 8, 10, 9}
	for q, want := range map[float64]float64{0: 1, 0.5: 5.5, 0.9: 9.1, 1: 10} {
		if got := quantile(values, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if values[0] != 5 {
		t.Error("the argument was sorted")
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("quantile of nothing: %v", got)
	}
}

const exposition = `# TYPE x histogram
x_bucket{ip_family="IPv4",le="0.1"} 3
x_bucket{ip_family="IPv4",le="0.2"} 4
x_bucket{ip_family="IPv4",le="0.4"} 4
x_bucket{ip_family="IPv4",le="+Inf"} 4
x_sum{ip_family="IPv4"} 0.5
x_bucket{ip_family="IPv6",le="0.1"} 9
x_bucket{ip_family="IPv6",le="0.2"} 9
x_sum{ip_family="IPv6"} 1.25
x_sum_of_another{ip_family="IPv6"} 7
`

func TestMetrics(t *testing.T) {
	if got := sum(exposition, "x_sum"); got != 1.75 {
		t.Errorf("sum %v, want 1.75", got)
	}
	if got := slowest(exposition, "x"); got != 0.2 {
		t.Errorf("slowest %v, want 0.2", got)
	}
}

// The time of a child counts while it runs and after it ended, and its memory while it runs.
func TestUsageOfChildren(t *testing.T) {
	const program = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done" // some 100 ms
	shell := exec.Command("sh", "-c", "read a; sh -c '"+program+"; read b'; read c; exit 0")
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer shell.Wait()
	defer in.Close()
	pid := shell.Process.Pid
	alone := resident(pid)
	in.Write([]byte("a\n"))
	reach := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what, "never")
			}
		}
	}
	reach("time of a running child", func() bool { return len(children(pid)) == 1 && cpu(pid) > 50*time.Millisecond })
	if with := resident(pid); with <= alone {
		t.Errorf("%.2f MiB with a child, %.2f without", with, alone)
	}
	running := cpu(pid)
	in.Write([]byte("b\n"))
	reach("end of the child", func() bool { return len(children(pid)) == 0 })
	if ended := cpu(pid); ended < running-2*tick {
		t.Errorf("%s after the child ended, %s before", ended, running)
	}
}

func TestReport(t *testing.T) {
	r := newReport(options{rates: []int{100}}, []string{"-rows", "1000x3"})
	row := newRow(size{1000, 3})
	row.samples[lab.NFTProxy].add("change", 0.002, 0.004, 0.006)
	row.samples[lab.KubeProxy].add("change", 0.4)
	r.rows = append(r.rows, row)
	dir := t.TempDir()
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Rows []struct {
			Row       string
			ChangeP50 float64  `json:"change_p50"`
			ColdStart *float64 `json:"cold_start"`
		}
	}
	text, _ := os.ReadFile(dir + "/report.json")
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if got := doc.Rows[0]; got.Row != "1000x3" || math.Abs(got.ChangeP50-0.01) > 1e-9 || got.ColdStart != nil {
		t.Errorf("report.json: %+v", got)
	}
	if want := "| 4 ms | 400 ms | 1/100 |"; !strings.Contains(r.markdown(), want) {
		t.Errorf("no %q in\n%s", want, r.markdown())
	}
	if _, err := os.Stat(dir + "/change_p50.svg"); err != nil {
		t.Error(err)
	}
}

func TestAddresses(t *testing.T) {
	for n, want := range map[uint32]string{1: "10.0.0.1", 256: "10.0.1.0", 250_000: "10.3.208.144"} {
		if got := numbered(endpointRange(lab.IPv4), n); got != want {
			t.Errorf("endpoint %d is %s, want %s", n, got, want)
		}
	}
}
