// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Index grants each claim to one Service: a ClusterIP or NodePort goes before an address of a load balancer, and that
// before an external IP (see [ClaimSource]); of equal sources the oldest Service has the claim, and of equally old ones
// the first by name. The outcome does not depend on the order in which Services become known. A Service without a
// creation time, as manifests may be, counts as younger than any other.
//
// The cost of a call follows the claims of the Service concerned. An Index is not safe for concurrent use.
type Index struct {
	ids       map[kube.Name]int32
	claimants []claimant
	free      []int32 // indices in claimants that are not in use
	owners    map[key]int32
	losers    map[key][]int32 // of claims that several make: those who do not own it, the next owner first
}

// claimant is a Service with its claims, sorted by key; of claims that differ in their source alone the strongest.
type claimant struct {
	name    kube.Name
	created int64
	keys    []key
}

// source returns the source of a claim that the Service makes.
func (c *claimant) source(k key) ClaimSource {
	i, _ := slices.BinarySearchFunc(c.keys, k, key.compareBare)
	return c.keys[i].source()
}

// Loss is a claim that was granted to another Service.
type Loss struct {
	Claim  Claim
	Winner kube.Name
}

// NewIndex returns an Index without Services.
func NewIndex() *Index {
	return &Index{ids: map[kube.Name]int32{}, owners: map[key]int32{}, losers: map[key][]int32{}}
}

// Set replaces the claims of a Service, and when it was created, in seconds since 1970; 0 is not known. It returns
// which other Services were granted a claim by that or lost one, sorted. claims is not kept.
func (x *Index) Set(name kube.Name, created int64, claims []Claim) (changed []kube.Name) {
	next := claimant{name: name, created: created, keys: make([]key, len(claims))}
	for i := range claims {
		next.keys[i] = keyOf(claims[i])
	}
	slices.SortFunc(next.keys, key.compare)
	next.keys = slices.CompactFunc(next.keys, func(a, b key) bool { return a.bare() == b.bare() }) // the first one stays
	id, known := x.ids[name]
	if !known {
		id = x.enter(name)
	}
	old := x.claimants[id]
	x.claimants[id] = next
	return x.move(id, &old, &next)
}

// Remove forgets a Service. It returns who was granted its claims, sorted.
func (x *Index) Remove(name kube.Name) (changed []kube.Name) {
	id, known := x.ids[name]
	if !known {
		return nil
	}
	old := x.claimants[id]
	changed = x.move(id, &old, &claimant{name: name, created: old.created})
	x.claimants[id] = claimant{}
	x.free = append(x.free, id)
	delete(x.ids, name)
	return changed
}

// Lost returns which claims of a Service others have been granted, nil if none. What it returns may be used until the
// next change of the Index.
func (x *Index) Lost(name kube.Name) func(Claim) bool {
	id, known := x.ids[name]
	if !known || len(x.losers) == 0 {
		return nil
	}
	for _, k := range x.claimants[id].keys {
		if x.owners[k.bare()] != id {
			return func(c Claim) bool {
				owner, granted := x.owners[keyOf(c).bare()]
				return granted && owner != id
			}
		}
	}
	return nil
}

// Losses lists the claims of a Service that others have been granted, and whom.
func (x *Index) Losses(name kube.Name) []Loss {
	id, known := x.ids[name]
	if !known || len(x.losers) == 0 {
		return nil
	}
	var out []Loss
	for _, k := range x.claimants[id].keys {
		if owner := x.owners[k.bare()]; owner != id {
			out = append(out, Loss{k.claim(), x.claimants[owner].name})
		}
	}
	return out
}

// enter gives a new Service its place.
func (x *Index) enter(name kube.Name) int32 {
	id := int32(len(x.claimants))
	if n := len(x.free); n > 0 {
		id, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.claimants = append(x.claimants, claimant{})
	}
	x.claimants[id].name = name
	x.ids[name] = id
	return id
}

// move replaces the claims of a Service by others and returns which other Services' grants changed. Claims in both are
// granted anew only if the precedence of the Service has changed.
func (x *Index) move(id int32, old, next *claimant) []kube.Name {
	var touched []int32
	settle := func(k key, leave, enter bool) {
		before, owned := x.owners[k]
		if leave {
			x.withdraw(k, id)
		}
		if enter {
			x.place(k, id)
		}
		after, granted := x.owners[k]
		if before == after && owned == granted {
			return
		}
		if owned && before != id {
			touched = append(touched, before)
		}
		if granted && after != id {
			touched = append(touched, after)
		}
	}
	had, wants := old.keys, next.keys
	for len(had) > 0 || len(wants) > 0 {
		switch d := compareFirst(had, wants); {
		case d < 0:
			settle(had[0].bare(), true, false)
			had = had[1:]
		case d > 0:
			settle(wants[0].bare(), false, true)
			wants = wants[1:]
		default:
			if old.created != next.created || had[0] != wants[0] {
				settle(had[0].bare(), true, true)
			}
			had, wants = had[1:], wants[1:]
		}
	}
	return x.names(touched)
}

// compareFirst compares the first elements of two sorted lists, of which one may be at its end.
func compareFirst(a, b []key) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return a[0].compareBare(b[0])
}

// withdraw takes a claim from a Service; if it was granted, the next in line gets it.
func (x *Index) withdraw(k key, id int32) {
	line := x.losers[k]
	switch {
	case x.owners[k] != id:
		i := slices.Index(line, id)
		x.setLine(k, slices.Delete(line, i, i+1))
	case len(line) > 0:
		x.owners[k] = line[0]
		x.setLine(k, slices.Delete(line, 0, 1))
	default:
		delete(x.owners, k)
	}
}

// place enters a claim: granted if no other Service goes before, else in line.
func (x *Index) place(k key, id int32) {
	owner, taken := x.owners[k]
	if !taken {
		x.owners[k] = id
		return
	}
	if x.compare(k, id, owner) < 0 {
		x.owners[k], id = id, owner
	}
	line := x.losers[k]
	i, _ := slices.BinarySearchFunc(line, id, func(a, b int32) int { return x.compare(k, a, b) })
	x.setLine(k, slices.Insert(line, i, id))
}

func (x *Index) setLine(k key, line []int32) {
	if len(line) == 0 {
		delete(x.losers, k)
		return
	}
	x.losers[k] = line
}

// compare orders the Services that make a claim by precedence.
func (x *Index) compare(k key, a, b int32) int {
	s, o := &x.claimants[a], &x.claimants[b]
	age := func(c *claimant) uint64 { return uint64(c.created) - 1 } // 0, not known, becomes the greatest
	return cmp.Or(cmp.Compare(s.source(k), o.source(k)), cmp.Compare(age(s), age(o)), s.name.Compare(o.name))
}

// names returns the names of Services, sorted and each once.
func (x *Index) names(ids []int32) []kube.Name {
	if len(ids) == 0 {
		return nil
	}
	out := make([]kube.Name, len(ids))
	for i, id := range ids {
		out[i] = x.claimants[id].name
	}
	slices.SortFunc(out, kube.Name.Compare)
	return slices.Compact(out)
}
