// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Tally sums up many results.
type Tally struct {
	Total    int
	Verdicts map[Verdict]int
	Backends map[string]int // answers by backend
	Seen     map[Seen]int   // answers by backend and by whom it saw
	Bad      []Result       // the first few that were not answered
	Slowest  time.Duration
	Took     time.Duration // from the first probe to the last answer
}

// Seen is a backend with the address of the sender as the backend saw it.
type Seen struct {
	Backend string
	Source  netip.Addr
}

// keptBad is how many results a Tally keeps: enough to see a pattern, few enough to print.
const keptBad = 10

func newTally() *Tally {
	return &Tally{Verdicts: map[Verdict]int{}, Backends: map[string]int{}, Seen: map[Seen]int{}}
}

func (t *Tally) add(r Result) {
	t.Total++
	t.Verdicts[r.Verdict]++
	t.Slowest = max(t.Slowest, r.Took)
	if r.Verdict == Answered {
		t.Backends[r.Backend]++
		t.Seen[Seen{r.Backend, r.Source.Addr()}]++
	} else if len(t.Bad) < keptBad {
		t.Bad = append(t.Bad, r)
	}
}

// AllAnswered reports whether every probe got an answer, and there was one.
func (t *Tally) AllAnswered() bool { return t.Total > 0 && t.Verdicts[Answered] == t.Total }

// All reports whether every probe had the one verdict, and there was one.
func (t *Tally) All(v Verdict) bool { return t.Total > 0 && t.Verdicts[v] == t.Total }

// Names are the backends that answered, sorted.
func (t *Tally) Names() []string { return slices.Sorted(maps.Keys(t.Backends)) }

// String is one line: "1000 in 98ms: 1000 answered; a 334, b 333, c 333".
func (t *Tally) String() string {
	text := fmt.Sprintf("%d in %s:%s;%s", t.Total, t.Took.Round(time.Millisecond), counts(t.Verdicts), counts(t.Backends))
	for _, r := range t.Bad {
		text += "; " + r.String()
	}
	return text
}

func counts[K ~string](m map[K]int) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s %d", k, m[k])
	}
	return b.String()
}

// Repeat sends the probe n times, workers at once, and sums up.
func (p Probe) Repeat(n, workers int) *Tally {
	var left atomic.Int64
	left.Store(int64(n))
	return p.collect(workers, func() bool { return left.Add(-1) >= 0 }, nil)
}

// Storm sends the probe over and over, workers at once, until the context ends. each, unless nil, is called with every
// result, by one goroutine at a time.
func (p Probe) Storm(ctx context.Context, workers int, each func(Result)) *Tally {
	return p.collect(workers, func() bool { return ctx.Err() == nil }, each)
}

func (p Probe) collect(workers int, more func() bool, each func(Result)) *Tally {
	t := newTally()
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for more() {
				r := p.Send()
				mu.Lock()
				t.add(r)
				if each != nil {
					each(r)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Took = time.Since(start)
	return t
}

// SendAll sends different probes, at most parallel at once, and returns their results in the same order.
func SendAll(probes []Probe, parallel int) []Result {
	results := make([]Result, len(probes))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(parallel, len(probes)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(probes) {
					return
				}
				results[i] = probes[i].Send()
			}
		})
	}
	wg.Wait()
	return results
}

// Eventually repeats the probe until a result satisfies ok, and returns the last result; ok did not hold if it returns false.
func (p Probe) Eventually(within time.Duration, ok func(Result) bool) (Result, bool) {
	deadline := time.Now().Add(within)
	for {
		r := p.Send()
		if ok(r) {
			return r, true
		}
		if !time.Now().Before(deadline) {
			return r, false
		}
		// Refusals come at once: leave the processor to the process that changes the answer.
		time.Sleep(time.Millisecond)
	}
}
