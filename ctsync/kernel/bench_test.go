// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

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

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
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

// benchFlow is entry i of a table: clients spread over benchVIPs frontends with 3 endpoints each. Of a mix, nine of ten
// are connections of the node that no rule translates.
func benchFlow(i int, mix bool) ctsync.Flow {
	v := i % benchVIPs
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(16 + i>>22), byte(i >> 14), byte(i >> 6)}), uint16(1024+i&63))
	vip := benchFront(v)
	f := ctsync.Flow{Proto: ctsync.UDP, Src: client, Dst: netip.AddrPortFrom(vip.Addr, vip.Port),
		ReplySrc: benchEndpoints(v)[i/benchVIPs%3], Replied: true}
	if mix && i%10 != 0 {
		f.Proto, f.TCPState, f.ReplySrc = ctsync.TCP, 3, f.Dst
	}
	return f
}

func benchFront(v int) ctsync.Frontend {
	return ctsync.Frontend{Addr: netip.AddrFrom4([4]byte{10, 96, byte(v >> 8), byte(v)}), Port: 53, Proto: ctsync.UDP}
}

func benchEndpoints(v int) []netip.AddrPort {
	var eps []netip.AddrPort
	for e := range 3 {
		eps = append(eps, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(v), byte(1 + v>>8*3 + e)}), 5353))
	}
	return eps
}

// fillTable creates n entries. It is measured in seconds at 1,000,000.
func fillTable(b *testing.B, k *table, n int, mix bool) {
	flows := make([]ctsync.Flow, 0, batch)
	for i := range n {
		if flows = append(flows, benchFlow(i, mix)); len(flows) == cap(flows) || i == n-1 {
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
// change of many, and over everything; first in a table of UDP flows alone, then in one of which a tenth is UDP. first-ms
// and last-ms are the times from the change to the deletion of the first and of the last stale entry.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		for _, mix := range []bool{false, true} {
			b.Run(fmt.Sprintf("entries=%d/mix=%v", n, mix), func(b *testing.B) {
				room(b, n)
				ns := newNS(b)
				k := openTest(b, ns)
				fillTable(b, k, n, mix)
				for _, c := range []struct {
					name   string
					fronts int // changed, 0 for a full pass
				}{{"full", 0}, {"one", 1}, {"many", 100}} {
					b.Run(c.name, func(b *testing.B) { benchPass(b, ns, k, n, c.fronts) })
				}
			})
		}
	}
}

// benchPass makes 100 entries stale and measures the pass that finds them, again and again.
func benchPass(b *testing.B, ns int, k *table, n, fronts int) {
	var began time.Time
	var first, last, firsts, lasts, cpu time.Duration
	s, err := New(Options{NetNS: ns, OnStale: func(ctsync.Flow, ctsync.Reason) {
		if last = time.Since(began); first == 0 {
			first = last
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.table.close()
	s.state.CheckTimes = []time.Duration{0}
	// offer reports the endpoints of the frontends, and one more if there is any change to take back.
	offer := func(count int, extra ...netip.AddrPort) {
		var all []ctsync.Change
		for v := range count {
			all = append(all, ctsync.Change{Frontend: benchFront(v), Endpoints: append(benchEndpoints(v), extra...)})
		}
		s.Update(all)
	}
	pass := func() Pass {
		due := mustDue(s)
		p := s.pass(context.Background(), &due)
		s.state.Done(due, p.Err == nil, p.Start, p.Start)
		return p
	}
	offer(benchVIPs)
	s.Resync()
	pass() // takes the census
	b.ResetTimer()
	var peak, scanned int64
	for range b.N {
		b.StopTimer()
		if offer(fronts, ap("10.255.0.1:5353")); fronts > 0 {
			s.state.Done(mustDue(s), true, time.Now(), time.Now())
		}
		k.create(b, staleFlows(n, max(fronts, 1))...)
		stop, before := peakHeap(), cpuTime()
		first, began = 0, time.Now()
		b.StartTimer()
		if offer(fronts); fronts == 0 {
			s.Resync()
		}
		p := pass()
		b.StopTimer()
		cpu += cpuTime() - before
		peak = max(peak, stop())
		scanned += int64(p.Scanned)
		firsts, lasts = firsts+first, lasts+last
		if p.Err != nil || p.Deleted() != benchStale {
			b.Fatalf("%+v", p)
		}
		b.StartTimer()
	}
	per := float64(b.N) * 1e6
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	b.ReportMetric(float64(scanned)/float64(b.N), "scanned/op")
	b.ReportMetric(float64(firsts)/per, "first-ms")
	b.ReportMetric(float64(lasts)/per, "last-ms")
	b.ReportMetric(float64(cpu)/per, "cpu-ms/op") // on a busy machine the truer number
}

// mustDue returns what is due now.
func mustDue(s *Syncer) ctsync.Due {
	due, _ := s.state.Due(time.Now())
	return due
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
func staleFlows(n, fronts int) []ctsync.Flow {
	var flows []ctsync.Flow
	for i := range benchStale {
		f := benchFlow(n/benchVIPs*benchVIPs+i%fronts, false)
		f.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, 0, 1}), uint16(2000+i))
		f.ReplySrc = ap("10.244.255.1:5353")
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
	fillTable(b, openTest(b, ns), n, false)
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
					defer s.table.close()
					passes := 0
					for ; ctx.Err() == nil; passes++ {
						s.Resync()
						due, _ := s.state.Due(time.Now())
						s.pass(ctx, &due)
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
			fillTable(b, k, n, false)
			front := benchFront(1)
			for name, q := range map[string]ctsync.Query{
				"address": {Family: nl.IPv4, Proto: ctsync.UDP, Port: 53, Dst: front.Addr}, "translated": {DNAT: true}, "none": {},
			} {
				b.Run(name, func(b *testing.B) {
					for range b.N {
						if _, err := k.dump(q, func([]ctsync.Flow) error { return nil }); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// BenchmarkReason measures the decision on one entry, in a cluster of 30,000 frontends.
func BenchmarkReason(b *testing.B) {
	s := ctsync.NewState(ctsync.Scope{})
	var all []ctsync.Change
	for v := range 30_000 {
		all = append(all, ctsync.Change{Frontend: benchFront(v), Endpoints: benchEndpoints(v)})
	}
	s.Update(all, time.Time{})
	f := benchFlow(1, false)
	b.ReportAllocs()
	for b.Loop() {
		if s.Reason(&f) != ctsync.Keep {
			b.Fatal("stale")
		}
	}
}

// BenchmarkDecode measures the decoding of one entry.
func BenchmarkDecode(b *testing.B) {
	f := benchFlow(1, false)
	message := newRequest(&f).Data
	b.ReportAllocs()
	for b.Loop() {
		if !decode(&f, message) {
			b.Fatal("malformed")
		}
	}
}
