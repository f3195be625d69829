// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Index grants each claim to the oldest Service that makes it; of equally old ones, to the first by name. So the
// outcome does not depend on the order in which Services become known, and a newcomer takes nothing away from a
// Service that is served. A Service without a creation time, as manifests may be, counts as younger than any other.
//
// The cost of a call follows the claims of the Service concerned. An Index is not safe for concurrent use.
type Index struct {
	ids      map[kube.Name]int32
	services []claimant
	free     []int32 // indices in services that are not in use
	owners   map[key]int32
	losers   map[key][]int32 // of claims that several make: those who do not own it, the next owner first
}

// claimant is a Service with its claims, sorted.
type claimant struct {
	name    kube.Name
	created int64
	keys    []key
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

// Set says what a Service claims now, and when it was created, in seconds since 1970; 0 is not known. It returns
// which other Services were granted a claim by that or lost one, sorted. claims is not kept.
func (x *Index) Set(name kube.Name, created int64, claims []Claim) (changed []kube.Name) {
	keys := make([]key, len(claims))
	for i, c := range claims {
		keys[i] = keyOf(c)
	}
	slices.SortFunc(keys, key.compare)
	keys = slices.Compact(keys)

	id, known := x.ids[name]
	if !known {
		id = x.enter(name)
	}
	s := &x.services[id]
	old, reborn := s.keys, s.created != created
	s.keys, s.created = keys, created
	return x.move(id, old, keys, reborn)
}

// Remove forgets a Service. It returns who was granted its claims, sorted.
func (x *Index) Remove(name kube.Name) (changed []kube.Name) {
	id, known := x.ids[name]
	if !known {
		return nil
	}
	changed = x.move(id, x.services[id].keys, nil, false)
	x.services[id] = claimant{}
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
	for _, k := range x.services[id].keys {
		if x.owners[k] != id {
			return func(c Claim) bool { return x.owners[keyOf(c)] != id }
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
	for _, k := range x.services[id].keys {
		if owner := x.owners[k]; owner != id {
			out = append(out, Loss{k.claim(), x.services[owner].name})
		}
	}
	return out
}

// Owner returns who has been granted a claim.
func (x *Index) Owner(c Claim) (kube.Name, bool) {
	id, ok := x.owners[keyOf(c)]
	if !ok {
		return kube.Name{}, false
	}
	return x.services[id].name, true
}

// enter gives a new Service its place.
func (x *Index) enter(name kube.Name) int32 {
	id := int32(len(x.services))
	if n := len(x.free); n > 0 {
		id, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.services = append(x.services, claimant{})
	}
	x.services[id].name = name
	x.ids[name] = id
	return id
}

// move replaces claims by others, both sorted, and returns which other Services' grants changed. Those in both are
// granted anew only if reborn.
func (x *Index) move(id int32, old, keys []key, reborn bool) []kube.Name {
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
	for len(old) > 0 || len(keys) > 0 {
		switch d := compareFirst(old, keys); {
		case d < 0:
			settle(old[0], true, false)
			old = old[1:]
		case d > 0:
			settle(keys[0], false, true)
			keys = keys[1:]
		default:
			if reborn {
				settle(old[0], true, true)
			}
			old, keys = old[1:], keys[1:]
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
	return a[0].compare(b[0])
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

// place enters a claim: granted if nobody older makes it, else in line.
func (x *Index) place(k key, id int32) {
	owner, taken := x.owners[k]
	if !taken {
		x.owners[k] = id
		return
	}
	if x.compare(id, owner) < 0 {
		x.owners[k], id = id, owner
	}
	line := x.losers[k]
	i, _ := slices.BinarySearchFunc(line, id, x.compare)
	x.setLine(k, slices.Insert(line, i, id))
}

func (x *Index) setLine(k key, line []int32) {
	if len(line) == 0 {
		delete(x.losers, k)
		return
	}
	x.losers[k] = line
}

// compare orders Services by precedence.
func (x *Index) compare(a, b int32) int {
	s, o := &x.services[a], &x.services[b]
	if known := s.created != 0; known != (o.created != 0) {
		if known {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(s.created, o.created), s.name.Compare(o.name))
}

// names returns the names of Services, sorted and each once.
func (x *Index) names(ids []int32) []kube.Name {
	if len(ids) == 0 {
		return nil
	}
	out := make([]kube.Name, len(ids))
	for i, id := range ids {
		out[i] = x.services[id].name
	}
	slices.SortFunc(out, kube.Name.Compare)
	return slices.Compact(out)
}
