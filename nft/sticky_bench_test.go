// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// stickies is n Services of one sticky ClusterIP with k endpoints each.
func stickies(n, k int) []*Service {
	out := cluster(n, k)
	for _, s := range out {
		s.Affinity, s.AffinitySize = time.Hour, 1000
	}
	return out
}

// grown returns a copy of s with one endpoint more.
func grown(s *Service) *Service {
	c := *s
	c.Cluster = append(slices.Clip(s.Cluster), netip.MustParseAddrPort("12.255.255.255:8080"))
	return &c
}

// threadTime is the processor time of the calling thread. The kernel carries out a transaction in the thread that sends it, and
// so it is not disturbed by what else the machine does.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// loaded is a table beside whose sticky Services changes are measured.
type loaded struct {
	b       *testing.B
	k       *kernel.Conn
	table   *Table
	metrics map[string]float64 // of the load
}

func loadTable(b *testing.B, services []*Service) *loaded {
	k := newNamespace(b).open(b)
	c := read(b, k, IPv4)
	t := NewTable(c)
	for _, s := range services {
		t.Number(s)
	}
	var longest, total time.Duration
	batches := t.Reconcile(c, Config{}, services, nil)
	for _, batch := range batches {
		start := threadTime()
		if err := k.Commit(batch); err != nil {
			b.Fatal(err)
		}
		took := threadTime() - start
		longest, total = max(longest, took), total+took
	}
	t.Committed()
	return &loaded{b, k, t, map[string]float64{
		"ms-longest": float64(longest.Microseconds()) / 1000, "ms-load": float64(total.Microseconds()) / 1000, "transactions": float64(len(batches)),
	}}
}

// change commits what leads from one version of a Service to another, and returns how long the kernel took.
func (l *loaded) change(prev, next *Service) time.Duration {
	batches, _ := l.table.Plan([]Update{{prev, next}}, nil)
	start := threadTime()
	if err := l.k.CommitAll(batches, nil); err != nil {
		l.b.Fatal(err)
	}
	took := threadTime() - start
	l.table.Committed()
	if sweep := l.table.Sweep(); sweep != nil {
		if err := l.k.Commit(sweep); err != nil {
			l.b.Fatal(err)
		}
		l.table.Swept()
	}
	return took
}

// BenchmarkSticky measures the processor time of changes beside n sticky Services, and of the first load: the median of each.
func BenchmarkSticky(b *testing.B) {
	for _, n := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			services := stickies(n+1, 3)
			l := loadTable(b, services[:n])
			s, extra := services[n/2], services[n]
			plain := cluster(1, 3)[0]
			plain.Frontends[0].Addr = netip.MustParseAddr("10.99.0.1")
			l.change(nil, plain)
			l.change(s, grown(s)) // the first of its number of endpoints
			l.change(grown(s), s)
			took := map[string][]time.Duration{}
			for b.Loop() {
				for i := range 20 {
					next := replaced(s, 1, i)
					took["replace"] = append(took["replace"], l.change(s, next))
					l.change(next, s)
					took["grow"] = append(took["grow"], l.change(s, grown(s)))
					took["shrink"] = append(took["shrink"], l.change(grown(s), s))
					took["add"] = append(took["add"], l.change(nil, extra))
					took["remove"] = append(took["remove"], l.change(extra, nil))
					took["plain"] = append(took["plain"], l.change(plain, replaced(plain, 1, i)))
					l.change(replaced(plain, 1, i), plain)
				}
			}
			for what, v := range l.metrics {
				b.ReportMetric(v, what)
			}
			for what, list := range took {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/1000, "us-"+what)
			}
		})
	}
}
