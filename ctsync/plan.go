// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"cmp"
	"net/netip"
	"slices"
)

// query is one dump: which entries the kernel shall return. Zero values mean any.
type query struct {
	family   uint8
	proto    Proto
	port     uint16
	dst      netip.Addr
	dnat     bool
	zone     *uint16
	mark     uint32
	markMask uint32
}

// Caps are the dump filters that the running kernel has. What it lacks it ignores, so they matter for cost only.
type Caps struct {
	// Tuple: by parts of the original tuple (CTA_FILTER, Linux 5.8).
	Tuple bool
	// Status: by status bits, of which we use "destination translated" (CTA_STATUS, Linux 5.15).
	Status bool
}

const (
	// maxFiltered is the number of entries up to which the kernel is asked for a few entries only. A dump runs with
	// soft interrupts off until a buffer of answers is full, so the fewer entries match, the longer one CPU receives
	// no packets: 5 ms for 10,000 entries in a table of 262,144 buckets, which is the default, but 285 ms for 1,000,000
	// (Linux 6.18, BenchmarkWalk). Above some 10 ms, entries are let through that we do not need, about 170 per
	// buffer, to keep each stretch below a millisecond at the price of more work in all.
	maxFiltered = 20_000
	// maxWalks is the number of filtered dumps that together cost no more than one of everything: at 10,000 entries
	// 5 ms against 13 ms.
	maxWalks = 2
)

// plan returns the dumps that together show every entry the round has to judge.
func plan(r *round, caps Caps, entries int, scope *Scope) []query {
	base := query{zone: scope.Zone, mark: scope.Mark, markMask: scope.MarkMask}
	if r.full != nil {
		return []query{base}
	}
	if caps.Tuple && entries <= maxFiltered {
		if qs := narrow(r.fronts, base); len(qs) <= maxWalks {
			return qs
		}
	}
	base.family = commonFamily(r.fronts)
	base.dnat = caps.Status && !r.fresh()
	return []query{base}
}

// narrow returns one query per family and protocol, each as narrow as its frontends allow: on one port if they share
// it, on one address if there is but one frontend.
func narrow(fronts []Frontend, base query) []query {
	sorted := slices.SortedFunc(slices.Values(fronts), func(a, b Frontend) int {
		return cmp.Or(cmp.Compare(familyOf(a.Addr), familyOf(b.Addr)), cmp.Compare(a.Proto, b.Proto))
	})
	var qs []query
	for _, f := range sorted {
		last := len(qs) - 1
		if last >= 0 && qs[last].family == familyOf(f.Addr) && qs[last].proto == f.Proto {
			qs[last].widen(f)
			continue
		}
		q := base
		q.family, q.proto, q.port = familyOf(f.Addr), f.Proto, f.Port
		if !f.Addr.IsUnspecified() {
			q.dst = f.Addr
		}
		qs = append(qs, q)
	}
	return qs
}

// widen makes q include f as well.
func (q *query) widen(f Frontend) {
	if q.port != f.Port {
		q.port = 0
	}
	if q.dst != f.Addr {
		q.dst = netip.Addr{}
	}
}

// commonFamily returns the family that all frontends have, or 0.
func commonFamily(fronts []Frontend) uint8 {
	var common uint8
	for i, f := range fronts {
		if i == 0 {
			common = familyOf(f.Addr)
		}
		if familyOf(f.Addr) != common {
			return 0
		}
	}
	return common
}
