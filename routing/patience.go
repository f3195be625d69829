// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

// Bounds of [patience]. A burst of 32 lets a node whose network is being rearranged by hand or by a script have
// every repair at once; after that an entry that somebody keeps removing costs one repair a second, which neither
// side notices as load.
const (
	patienceBurst  = 32
	patienceRefill = time.Second
)

// patience bounds how often an entry is added, so that two programs that disagree about it do not fight at the speed
// of the kernel: a token bucket for each entry. It is owned by one goroutine and knows no clock.
type patience struct {
	buckets map[Entry]bucket
}

type bucket struct {
	tokens int
	since  time.Time // from when the next token is counted
}

// allow takes a token for e, or tells from when there will be one.
func (p *patience) allow(e Entry, now time.Time) (ok bool, next time.Time) {
	b, known := p.buckets[e]
	if !known {
		b = bucket{patienceBurst, now}
	}
	if n := int(now.Sub(b.since) / patienceRefill); n > 0 {
		b.tokens = min(b.tokens+n, patienceBurst)
		b.since = b.since.Add(time.Duration(n) * patienceRefill)
	}
	if b.tokens == 0 {
		p.put(e, b)
		return false, b.since.Add(patienceRefill)
	}
	if b.tokens == patienceBurst {
		b.since = now
	}
	b.tokens--
	p.put(e, b)
	return true, now
}

func (p *patience) put(e Entry, b bucket) {
	if p.buckets == nil {
		p.buckets = make(map[Entry]bucket)
	}
	p.buckets[e] = b
}

// keep drops the buckets of entries that are not wanted any more, so that memory follows the plan, not its history.
func (p *patience) keep(want Set) {
	for e := range p.buckets {
		if !want.Has(e) {
			delete(p.buckets, e)
		}
	}
}
