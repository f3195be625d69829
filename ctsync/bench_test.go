// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// maxFile bounds the entries of each namespace; only the first namespace may write it, and all obey it.
const maxFile = "/proc/sys/net/netfilter/nf_conntrack_max"

// room makes the kernel accept n entries per namespace, until the benchmark ends. It must be called before the thread
// moves to another namespace; the file it keeps open stays that of the first.
func room(b *testing.B, n int) {
	b.Helper()
	f, err := os.OpenFile(maxFile, os.O_RDWR, 0)
	if err != nil {
		b.Skip(err)
	}
	was := make([]byte, 32)
	k, err := f.Read(was)
	if err != nil {
		b.Skip(err)
	}
	if have, _ := strconv.Atoi(strings.TrimSpace(string(was[:k]))); have < n+n/10 {
		if _, err := f.WriteAt(fmt.Appendf(nil, "%d", n+n/5), 0); err != nil {
			b.Skipf("room for %d entries: %v", n, err)
		}
	}
	b.Cleanup(func() {
		if _, err := f.WriteAt(was[:k], 0); err != nil {
			b.Errorf("restore %s: %v", maxFile, err)
		}
		_ = f.Close()
	})
}

const (
	benchVIPs  = 1000
	benchStale = 100
)

// benchFlow is entry i of a table: clients spread over benchVIPs frontends with 3 endpoints each.
func benchFlow(i int) Flow {
	v := i % benchVIPs
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(16 + i>>22), byte(i >> 14), byte(i >> 6)}), uint16(1024+i&63))
	vip := benchFront(v)
	ep := benchEndpoints(v)[i/benchVIPs%3]
	return Flow{Proto: UDP, Src: client, Dst: netip.AddrPortFrom(vip.Addr, vip.Port), From: ep, To: client,
		Status: statusSeenReply | statusDstNAT}
}

func benchFront(v int) Frontend {
	return Frontend{netip.AddrFrom4([4]byte{10, 96, byte(v >> 8), byte(v)}), 53, UDP}
}

func benchEndpoints(v int) []netip.AddrPort {
	var eps []netip.AddrPort
	for e := range 3 {
		eps = append(eps, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(v), byte(1 + v>>8*3 + e)}), 5353))
	}
	return eps
}

// fillTable creates n entries. It is measured in seconds at 1,000,000.
func fillTable(b *testing.B, k *kernel, n int) {
	flows := make([]Flow, 0, deleteBatch)
	for i := range n {
		if flows = append(flows, benchFlow(i)); len(flows) == cap(flows) || i == n-1 {
			k.create(b, flows...)
			flows = flows[:0]
		}
	}
}

// peakHeap samples the memory of the process until stop is called, and returns how far it rose.
func peakHeap() (stop func() int64) {
	var start, now runtime.MemStats
	debug.FreeOSMemory()
	runtime.ReadMemStats(&start)
	base := rss()
	var peak atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
				peak.Store(max(peak.Load(), rss()-base))
			}
		}
	}()
	return func() int64 {
		close(done)
		<-ended
		runtime.ReadMemStats(&now)
		return peak.Load()
	}
}

// rss returns the resident memory of the process in bytes.
func rss() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// BenchmarkPass measures one pass that finds and deletes 100 stale entries: after a change of one frontend, after a
// change of many, and over everything.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			room(b, n)
			ns := newNS(b)
			k := openTest(b, ns)
			fillTable(b, k, n)
			for _, c := range []struct {
				name   string
				fronts int // changed, 0 for a full pass
			}{{"one", 1}, {"many", 100}, {"full", 0}} {
				b.Run(c.name, func(b *testing.B) { benchPass(b, ns, k, n, c.fronts) })
			}
		})
	}
}

// benchPass lets 100 entries go stale and measures the pass that finds them, again and again.
func benchPass(b *testing.B, ns int, k *kernel, n, fronts int) {
	s, err := New(Options{NetNS: ns})
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	var all []Change
	for v := range benchVIPs {
		all = append(all, Change{Frontend: benchFront(v), Endpoints: benchEndpoints(v)})
	}
	s.Update(all)
	s.table.started = true
	b.ResetTimer()
	var peak, scanned int64
	var cpu time.Duration
	for range b.N {
		b.StopTimer()
		victims := staleFlows(n, max(fronts, 1))
		k.create(b, victims...)
		now := time.Now()
		if fronts == 0 {
			s.table.lookAtAll(now)
		}
		for v := range fronts {
			s.table.look(benchFront(v), false, now)
		}
		r, _ := s.table.take(time.Now())
		stop := peakHeap()
		before := cpuTime()
		b.StartTimer()
		p := s.pass(context.Background(), &r)
		b.StopTimer()
		cpu += cpuTime() - before
		peak = max(peak, stop())
		scanned += int64(p.Scanned)
		if p.Err != nil || p.Deleted() != benchStale {
			b.Fatalf("%+v", p)
		}
		s.table.done(r, true, p.Start.Add(time.Hour), p.Start)
		b.StartTimer()
	}
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	b.ReportMetric(float64(scanned)/float64(b.N), "scanned/op")
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/op") // on a busy machine the truer number
}

// cpuTime is the CPU time of the process so far, in user and kernel mode.
func cpuTime() time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// staleFlows returns flows to endpoints that are gone.
func staleFlows(n, fronts int) []Flow {
	var flows []Flow
	for i := range benchStale {
		f := benchFlow(n/benchVIPs*benchVIPs + i%fronts)
		f.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, 0, 1}), uint16(2000+i))
		f.To, f.From = f.Src, ap("10.244.255.1:5353")
		flows = append(flows, f)
	}
	return flows
}

// BenchmarkCommit measures commits of one set element by another socket, alone and while passes over 1,000,000 entries
// follow each other without rest: the median and the 99th percentile.
func BenchmarkCommit(b *testing.B) {
	const n = 1_000_000
	room(b, n)
	ns := newNS(b)
	fillTable(b, openTest(b, ns), n)
	for _, beside := range []bool{false, true, false, true} {
		b.Run(fmt.Sprintf("passes=%v", beside), func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan int)
			if beside {
				s, err := New(Options{NetNS: ns})
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					defer s.close()
					passes := 0
					for ; ctx.Err() == nil; passes++ {
						s.pass(ctx, &round{full: &concern{}})
					}
					done <- passes
				}()
			}
			benchCommits(b)
			if cancel(); beside {
				b.ReportMetric(float64(<-done), "passes")
			}
		})
	}
}

// benchCommits adds and removes one element of a set, one transaction each.
func benchCommits(b *testing.B) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		b.Fatal(err)
	}
	defer c.CloseLasting()
	table := c.AddTable(&nftables.Table{Name: "bench", Family: nftables.TableFamilyIPv4})
	set := &nftables.Set{Table: table, Name: "s", KeyType: nftables.TypeIPAddr}
	if err := c.AddSet(set, nil); err != nil {
		b.Fatal(err)
	}
	element := []nftables.SetElement{{Key: []byte{10, 96, 0, 1}}}
	var took []time.Duration
	for i := range 2 * b.N {
		if i%2 == 0 {
			err = c.SetAddElements(set, element)
		} else {
			err = c.SetDeleteElements(set, element)
		}
		begin := time.Now()
		if err := errors.Join(err, c.Flush()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkWalk measures the longest time that one dump runs without a break, by filter: soft interrupts are off.
func BenchmarkWalk(b *testing.B) {
	for _, n := range []int{10_000, 20_000, 100_000, 1_000_000} {
		room(b, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			k := openTest(b, newNS(b))
			fillTable(b, k, n)
			front := benchFront(1)
			for name, q := range map[string]query{
				"address": {family: 2, proto: UDP, port: 53, dst: front.Addr}, "translated": {dnat: true}, "none": {},
			} {
				b.Run(name, func(b *testing.B) {
					for range b.N {
						if _, err := k.dump(&q, func([]Flow) error { return nil }); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// BenchmarkJudge measures the judgement of one entry alone, in a cluster of 30,000 frontends.
func BenchmarkJudge(b *testing.B) {
	t := newTable(Scope{})
	var all []Change
	for v := range 30_000 {
		all = append(all, Change{Frontend: benchFront(v), Endpoints: benchEndpoints(v)})
	}
	t.update(all, time.Time{})
	f := benchFlow(1)
	b.ReportAllocs()
	for b.Loop() {
		if t.judge(&f) != Keep {
			b.Fatal("stale")
		}
	}
}
