// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// filled is a report with a row in which nftproxy is a hundred times as fast.
func filled() *report {
	r := newReport(options{}, []string{"-rows", "1000x3"})
	row := r.newRow(size{1000, 3})
	row.of(ours.name).add("change", 0.002, 0.004, 0.006)
	row.of(ours.name).add("churn_100_lag", 0.005)
	row.of(nftables.name).add("change", 0.4)
	r.rows = append(r.rows, row)
	return r
}

func TestReport(t *testing.T) {
	r, dir := filled(), t.TempDir()
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Rows []struct {
			Row       string
			ChangeP50 float64  `json:"change_p50"`
			ColdStart *float64 `json:"cold_start"`
			Date      string
		}
	}
	text, _ := os.ReadFile(dir + "/report.json")
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if got := doc.Rows[0]; got.Row != "1000x3" || math.Abs(got.ChangeP50-0.01) > 1e-9 || got.ColdStart != nil || got.Date == "" {
		t.Errorf("report.json: %+v", got)
	}
	for _, want := range []string{"| 4 ms | 400 ms | 1/100 |", "| under 100 changes/s: API write to first packet, p50 | 5 ms |  |  |"} {
		if !strings.Contains(r.markdown(), want) {
			t.Errorf("no %q in\n%s", want, r.markdown())
		}
	}
	if want := "| 4 ms / 400 ms (100x) |"; !strings.Contains(r.readme(), want) {
		t.Errorf("no %q in\n%s", want, r.readme())
	}
	for _, name := range []string{"change_p50.svg", "plot.svg", "readme.md"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// What two runs measured becomes one report: each row as dated, the later samples in place of the earlier.
func TestMerge(t *testing.T) {
	first, second := filled(), filled()
	second.rows[0].size = size{100, 3}
	again := second.newRow(size{1000, 3})
	again.Date = "2027-01-01"
	again.of(ours.name).add("change", 0.001)
	second.rows = append(second.rows, again)
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, r := range []*report{first, second} {
		if err := r.write(dirs[i]); err != nil {
			t.Fatal(err)
		}
	}
	all := newReport(options{}, nil)
	if err := all.merge(dirs); err != nil {
		t.Fatal(err)
	}
	if len(all.rows) != 2 || all.rows[0].services != 100 || all.rows[1].services != 1000 {
		t.Fatalf("rows %v", all.rows)
	}
	row := all.rows[1]
	if row.Date != "2027-01-01" || len(row.samples[ours.name]["change"]) != 1 || row.samples[nftables.name]["change"][0] != 0.4 ||
		len(row.samples[ours.name]["churn_100_lag"]) != 1 {
		t.Errorf("%+v", row)
	}
	if err := all.merge([]string{t.TempDir()}); err == nil {
		t.Error("a directory without samples was merged")
	}
}

// A slow connection is the machine's while a direct one is slow, and a claim that does not hold otherwise.
func TestConnections(t *testing.T) {
	at := time.Unix(1, 0)
	var services, direct tally
	services.add(at, time.Millisecond, nil)
	services.add(at.Add(time.Second), 30*time.Millisecond, nil)
	services.add(at.Add(2*time.Second), 40*time.Millisecond, nil)
	direct.add(at.Add(990*time.Millisecond), 25*time.Millisecond, nil)
	if got := services.alone(&direct); got != 1 {
		t.Errorf("%d slow ones alone, want 1", got)
	}
	r := filled()
	if bad := r.violations(); len(bad) != 0 {
		t.Error(bad)
	}
	(&watch{services: services, direct: direct, cancel: func() {}}).stop(r.rows[0].of(ours.name), "restart")
	if bad := r.violations(); len(bad) != 1 || !strings.Contains(bad[0], "1000x3: restart: 1 of 3 connections waited longer than 20ms, the slowest 40 ms") {
		t.Error(bad)
	}
	services.add(at, 0, os.ErrDeadlineExceeded)
	(&watch{services: services, direct: direct, cancel: func() {}}).stop(r.rows[0].of(ours.name), "restart")
	if p := r.rows[0].samples[ours.name].phases()["restart"]; p["total"] != 7 || p["failed"] != 1 || p["slowest"] != 0.04 || p["direct_total"] != 2 {
		t.Errorf("%v", p)
	}
	if want := "| nftproxy | restart | 7 | 1 | 4 | 2 | 40 ms | 2 | 25 ms |"; !strings.Contains(r.markdown(), want) {
		t.Errorf("no %q in\n%s", want, r.markdown())
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-rows", "1000x3,5000x50", "-rates", "100", "-peers", "", "-large", "", "-skip", "churn,restart 1%"})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.rows) != 2 || o.rows[1] != (size{5000, 50}) || len(o.peers) != 1 || o.peers[0] != ours || len(o.large) != 0 ||
		len(o.skip) != 2 || o.iptables[0] != (size{10000, 3}) {
		t.Errorf("%+v", o)
	}
	for _, args := range [][]string{{"-rows", "1000"}, {"-rows", "0x3"}, {"-rates", "0"}, {"-peers", "ipvs"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}

func TestKernelMemory(t *testing.T) {
	const meminfo = "Slab: 4096 kB\nSReclaimable: 1024 kB\nSUnreclaim: 2048 kB\nVmallocTotal: 1 kB\nVmallocUsed: 512 kB\nPercpu: 512 kB\n"
	if got := kernelMemory(meminfo); got != 3 {
		t.Errorf("%v MiB, want 3", got)
	}
}

// What the thread waited for a processor is the second of three numbers.
func TestRunDelay(t *testing.T) {
	if got := runDelay("123 4500 6\n"); got != 4500 {
		t.Errorf("%v", got)
	}
	if got := runDelay(""); got != 0 {
		t.Errorf("%v of nothing", got)
	}
	if got := quoted([]string{"-peers", "", "-skip", "restart 1%,churn"}); got != `bench -peers "" -skip "restart 1%,churn"` {
		t.Error(got)
	}
}

// Connections count from the first that is answered, and those that fail later count as failed.
func TestWatch(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1, PodsPerNode: 2})
	pod, client := n.Pod(1, 1), n.Pod(1, 2).Host
	var backends [2]*lab.Backend
	for k := range backends {
		backends[k] = lab.Must(pod.Listen("", lab.TCP, pod.At(lab.IPv4, target+uint16(k))))(t)
	}
	direct, breaks, never := backends[0], backends[1], pod.At(lab.IPv4, target+2)
	reach := func(b *lab.Backend, hits int64) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); b.Hits.Load() < hits; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections, want %d", b.Hits.Load(), hits)
			}
		}
	}
	w := startWatch(client, []netip.AddrPort{breaks.Addr, never}, direct.Addr, time.Millisecond)
	reach(breaks, 10)
	breaks.Close()
	reach(direct, direct.Hits.Load()+200) // meanwhile the other thread meets the closed one
	into := samples{}
	w.stop(into, "test")
	p := into.phases()["test"]
	if p["failed"] == 0 || p["failed"] > p["total"]-10 || p["direct_failed"] != 0 || p["direct_total"] < 200 {
		t.Errorf("%v", p)
	}
}

// A connection waits for the backend's line on request, and a stream fills what listen takes.
func TestConnect(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1, PodsPerNode: 2})
	pod, client := n.Pod(1, 1), n.Pod(1, 2).Host
	l, err := listen(pod.Host, pod.At(lab.IPv4, target))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const long = 30 * time.Second
	for port, want := range map[uint16]error{target: nil, target + 1: unix.ECONNREFUSED} {
		err := onThread(client, func() {
			if took, err := connect(pod.At(lab.IPv4, port), long, true); !errors.Is(err, want) || took <= 0 {
				t.Errorf("port %d: %v after %s, want %v", port, err, took, want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	if rate, err := stream(path{"direct", client, pod.At(lab.IPv4, target)}, 50*time.Millisecond); err != nil || rate <= 0 {
		t.Errorf("%v bytes/s, %v", rate, err)
	}
}

// NodePorts are distinct and in the API server's range, up to the largest row.
func TestNodePorts(t *testing.T) {
	c, seen := &cluster{size: size{30000, 3}}, map[int32]int{}
	for i := range c.services {
		if kind := i % 10; kind < 6 || kind > 8 {
			continue
		}
		p := c.nodePort(i)
		if j, ok := seen[p]; ok || p < firstNodePort || p > lastNodePort {
			t.Fatalf("NodePort %d of Service %d, and of %d", p, i, j)
		}
		seen[p] = i
	}
}

func TestAddresses(t *testing.T) {
	for n, want := range map[uint32]string{1: "10.0.0.1", 256: "10.0.1.0", 250_000: "10.3.208.144"} {
		if got := numbered(endpointRange(lab.IPv4), n); got != want {
			t.Errorf("endpoint %d is %s, want %s", n, got, want)
		}
	}
}
