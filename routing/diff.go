// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"slices"
	"strings"
)

// Verb is what an [Op] does.
type Verb uint8

// The verbs. Replace is an addition whose slot is taken by an entry of ours.
const (
	Add Verb = iota
	Replace
	Remove
)

// String returns the verb in lower case.
func (v Verb) String() string { return [...]string{"add", "replace", "remove"}[v] }

// Op is one message to the kernel.
type Op struct {
	Verb  Verb
	Entry Entry
	Old   Entry // with Replace: what holds the slot now
}

// Diff returns the operations that turn have into want, in the order in which they must be carried out.
//
// Additions and replacements come before removals, because the kernel applies each message at once: a device
// that loses its old route before it has the new one drops packets between the two. Removals run in the
// opposite order of additions, because what was built on something must go before it.
//
// A loosened rp_filter is never removed: see [LooseRPF].
func Diff(have, want Set) []Op {
	taken := make(map[any]Entry, len(have))
	for e := range have {
		taken[e.slot()] = e
	}
	var adds, removes []Op
	replaced := make(map[Entry]bool)
	for e := range want {
		if have.Has(e) {
			continue
		}
		op := Op{Verb: Add, Entry: e}
		if old, ok := taken[e.slot()]; ok {
			op.Verb, op.Old = Replace, old
			replaced[old] = true
		}
		adds = append(adds, op)
	}
	for e := range have {
		if !want.Has(e) && !replaced[e] && e.Kind() != KindSysctl {
			removes = append(removes, Op{Verb: Remove, Entry: e})
		}
	}
	slices.SortFunc(adds, func(a, b Op) int { return rank(a.Entry, b.Entry) })
	slices.SortFunc(removes, func(a, b Op) int { return rank(b.Entry, a.Entry) })
	return append(adds, removes...)
}

// rank is the order of additions.
//
//   - A loose rp_filter first, because packets that the rest attracts would be dropped without it.
//   - Addresses before routes, because the kernel refuses a preferred source that is no address of the node.
//   - Neighbours before routes, because the first packet on a route would else start to resolve the next hop.
//   - Routes on link before routes through a gateway, because a gateway must be reachable when it is named.
//   - Longer prefixes before shorter ones, because else a packet could be matched by the short one for a moment
//     although the long one is about to claim it.
//   - Rules last, because a rule that sends packets to a table that is not filled lets them fall through to
//     the tables they must not use.
//
// The rest only makes the order total, so that equal input gives equal output.
func rank(a, b Entry) int {
	return cmp.Or(
		cmp.Compare(a.Kind(), b.Kind()),
		compareRoutes(a, b),
		cmp.Compare(a.Family(), b.Family()),
		strings.Compare(a.Text(indexName), b.Text(indexName)),
	)
}

func compareRoutes(a, b Entry) int {
	x, ok := a.(Route)
	y, ok2 := b.(Route)
	if !ok || !ok2 {
		return 0
	}
	return cmp.Or(
		compareBool(x.Gateway.IsValid(), y.Gateway.IsValid()),
		cmp.Compare(y.Dst.Bits(), x.Dst.Bits()),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
