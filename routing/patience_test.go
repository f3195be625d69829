// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"testing"
	"time"
)

// TestPatience: a burst at once, one a second after that, and a full burst again after as many quiet seconds.
func TestPatience(t *testing.T) {
	e := LooseRPF{1}
	var p patience
	start := time.Unix(1000, 0)
	count := func(from time.Time, length, step time.Duration) (n int) {
		for at := from; at.Before(from.Add(length)); at = at.Add(step) {
			ok, next := p.allow(e, at)
			if ok {
				n++
			} else if !next.After(at) || next.Sub(at) > patienceRefill {
				t.Fatalf("refused at %v until %v", at, next)
			}
		}
		return n
	}
	if n := count(start, 10*time.Second, 10*time.Millisecond); n != patienceBurst+9 {
		t.Errorf("%d in 10 seconds of fighting, want %d", n, patienceBurst+9)
	}
	later := start.Add(time.Hour)
	if n := count(later, time.Millisecond, time.Microsecond); n != patienceBurst {
		t.Errorf("%d after a quiet hour, want %d", n, patienceBurst)
	}
	if ok, _ := p.allow(LooseRPF{2}, later); !ok {
		t.Error("the fight about one entry holds up another")
	}
	p.keep(NewSet(LooseRPF{2}))
	if len(p.buckets) != 1 {
		t.Errorf("%d buckets for 1 wanted entry", len(p.buckets))
	}
}
