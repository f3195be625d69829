// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"maps"
	"slices"
)

// Table is what one family's table holds besides the Services' own elements: the chains that came into being on
// demand. It is changed by Prepare, and takes what was prepared for true once Committed says so: commit,
// then remember. Not safe for concurrent use.
type Table struct {
	Family     Family
	balancers  map[Program]bool
	draws      map[Program]bool
	affinities map[uint32]Affinity
	numbers    map[string]uint32 // affinity numbers by owner, also of those not committed yet
	taken      map[uint32]bool   // numbers that are in use, reserved or waiting to be swept
	free       uint32            // no number below it is free, but for 0, which is none
	retired    []uint32          // out of use, their chains not yet deleted
	pending    []func()
	adding     map[Program]bool // balancers and draws of this batch
	shared     Counter          // of what Reconcile was to reach, and
	counts     [numSets]int     // its elements
}

// NewTable returns the Table of a family whose sticky views keep the numbers that c, the table's content, has.
// Until Reconcile was called it knows nothing else.
func NewTable(c *Content) *Table {
	t := &Table{
		Family: c.Family, balancers: map[Program]bool{}, draws: map[Program]bool{}, affinities: map[uint32]Affinity{},
		numbers: c.affinityNumbers(), taken: map[uint32]bool{}, adding: map[Program]bool{},
	}
	for _, id := range t.numbers {
		t.taken[id] = true
	}
	return t
}

// Number gives the sticky views of a Service their numbers: those they have, or ones that are free.
func (t *Table) Number(s *Service) {
	for v, owner := range s.AffinityOwners() {
		id, ok := t.numbers[owner]
		if !ok {
			for t.taken[t.free] || t.free == 0 {
				t.free++
			}
			id = t.free
			t.numbers[owner], t.taken[id] = id, true
		}
		s.AffinityIDs[v] = id
	}
}

// Committed remembers what was prepared since the last call.
func (t *Table) Committed() {
	for _, remember := range t.pending {
		remember()
	}
	t.pending = nil
	clear(t.adding)
}

// Discard forgets what was prepared since the last Committed: its batch was refused.
func (t *Table) Discard() {
	t.pending = nil
	clear(t.adding)
}

// Require adds to a batch what the program maps of a Service will refer to: balancers and draws of counts that did
// not occur before, and sticky chains. Call it before the Service's elements are added to the batch.
func (t *Table) Require(b *Batch, s *Service) {
	for _, p := range s.Balancers() {
		if t.requireChain(b, t.balancers, p, BalancerChain) {
			b.dispatchTo(t.Family, Programs, []Program{p}, false)
		}
	}
	for _, a := range s.Affinities() {
		for _, p := range a.programs() {
			if draw := a.draw(p); t.requireChain(b, t.draws, draw, DrawChain) {
				b.dispatchTo(t.Family, Draws, []Program{draw}, false)
			}
		}
		t.requireAffinity(b, a)
	}
}

// requireChain adds the chain of a program, and tells so, unless it is among those that are there or in this batch already.
func (t *Table) requireChain(b *Batch, have map[Program]bool, p Program, chain func(Family, Program) Chain) bool {
	if have[p] || t.adding[p] {
		return false
	}
	b.AddChains(t.Family, []Chain{chain(t.Family, p)})
	t.adding[p] = true
	t.pending = append(t.pending, func() { have[p] = true })
	return true
}

// requireAffinity makes, or brings up to date, the chains of a sticky view. Rules are replaced as a whole, which is for
// another timeout or the first NodePort only: they are few, and the client map stays.
func (t *Table) requireAffinity(b *Batch, a Affinity) {
	was, ok := t.affinities[a.ID]
	if ok && was == a {
		return
	}
	if ok && was.VIPs && !a.VIPs || ok && was.NodePorts && !a.NodePorts {
		// A keyspace that is not wanted any more keeps its chain until the affinity goes: nothing leads there.
		a.VIPs, a.NodePorts = a.VIPs || was.VIPs, a.NodePorts || was.NodePorts
	}
	t.pending = append(t.pending, func() { t.affinities[a.ID] = a })
	if ok && was.sameRules(&a) {
		return
	}
	if !ok {
		spec := affinitySpec(a)
		b.addSet(t.Family, &spec)
		b.AddChains(t.Family, a.Chains(t.Family))
		b.dispatchTo(t.Family, Programs, a.programs(), false)
		return
	}
	t.replaceAffinity(b, was, a)
}

func (t *Table) replaceAffinity(b *Batch, was, a Affinity) {
	had := was.programs()
	for _, p := range a.programs() {
		chain := a.chain(lang{t.Family}, p)
		if !slices.Contains(had, p) {
			b.AddChains(t.Family, []Chain{chain})
			b.dispatchTo(t.Family, Programs, []Program{p}, false)
			continue
		}
		b.flushChain(t.Family, chain.Name)
		b.addRules(t.Family, &chain)
	}
}

func affinitySpec(a Affinity) setSpec {
	return setSpec{
		name: AffinityMap(a.ID), key: []field{fieldAddr}, data: []field{fieldClassID},
		dynamic: true, size: a.Size, comment: a.Owner,
	}
}

// Release takes sticky views out of use by their owners, after their Service's elements were deleted in the same
// batch. Before Linux 6.2 the kernel drops an element's reference to a chain only after the commit, so
// that the chains can only be deleted by a later batch: see Sweep. With them go the clients.
func (t *Table) Release(b *Batch, owners []string) {
	for _, owner := range owners {
		id, ok := t.numbers[owner]
		if !ok {
			continue
		}
		a, known := t.affinities[id]
		if known {
			b.dispatchTo(t.Family, Programs, a.programs(), true)
		}
		t.pending = append(t.pending, func() {
			delete(t.numbers, owner)
			if known {
				t.retired = append(t.retired, id)
			} else {
				t.forget(id)
			}
		})
	}
}

// forget makes a number free.
func (t *Table) forget(id uint32) {
	delete(t.taken, id)
	t.free = min(t.free, id)
}

// Sweep deletes the chains and maps that earlier batches released, and tells whether there are any.
func (t *Table) Sweep(b *Batch) bool {
	for _, id := range t.retired {
		a := t.affinities[id]
		for _, p := range a.programs() {
			b.flushChain(t.Family, p.Chain())
			b.deleteChain(t.Family, p.Chain())
		}
		b.deleteSet(t.Family, AffinityMap(id))
		t.pending = append(t.pending, func() {
			delete(t.affinities, id)
			t.forget(id)
			t.retired = slices.DeleteFunc(t.retired, func(r uint32) bool { return r == id })
		})
	}
	return len(t.retired) > 0
}

// Affinities returns the sticky views in use, by number.
func (t *Table) Affinities() []Affinity {
	var out []Affinity
	for _, id := range slices.Sorted(maps.Keys(t.affinities)) {
		if !slices.Contains(t.retired, id) {
			out = append(out, t.affinities[id])
		}
	}
	return out
}

// Balancers lists the balancers, sorted.
func (t *Table) Balancers() []Program { return slices.Sorted(maps.Keys(t.balancers)) }
