// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"maps"
	"slices"
)

// ChunkSize is how many elements one transaction changes at most where the change can be split. The kernel takes some 2 to 3
// microseconds for each (measured: 135 ms for 50,000), so that the nfnetlink lock, for which other programs on the node
// wait, is held for about 5 ms, and on a busy node still for less than 20. Smaller ones would take no longer in all
// (measured down to 1,024).
const ChunkSize = 2048

// Reconcile returns the transactions that make the table what it is to be, whatever its content c is, none if nothing is
// to be changed. want are all Services of the family, with their slots (see SlotRecovery) and affinity numbers assigned; node
// are the elements of the sets that belong to no Service. It may only be called once, after NewTable.
//
// The order is safe after each transaction: what is referred to comes before what refers to it, and goes after it. If the
// kernel refuses one without naming an element of a Service, set c.Replace of a newly read content: then one transaction
// replaces the whole table.
func (t *Table) Reconcile(c *Content, cfg Config, want []*Service, node []Element) []*Batch {
	first, have := &Batch{}, c
	replace := c.Exists && (c.Replace || c.incompatible())
	if replace {
		first.DeleteTable(c.Family, TableName)
		have = NewContent(c.Family)
	}
	if !have.Exists {
		first.AddTable(c.Family)
	}
	t.parts = have.present()
	for _, s := range want {
		t.parts.need(s)
	}
	t.settle()
	l := t.parts.layout(t.Family, cfg)
	first.mend(l, have.lacking(l))
	draws, change := splitDraws(DiffElements(have.Elements, t.wantedElements(want, node)))
	batches := append([]*Batch{first}, stageBatches(t.Family, draws)...)
	last := batches[len(batches)-1]
	var views []Affinity
	for _, id := range slices.Sorted(maps.Keys(t.parts.affinities)) {
		views = append(views, t.parts.affinities[id])
		l.addAffinity(t.parts.affinities[id])
	}
	batches = append(batches[:len(batches)-1], makeViews(last, have, views, len(have.Sets))...)
	batches = append(batches, stageBatches(t.Family, change)...)
	if replace {
		for _, b := range batches[1:] {
			first.Append(b)
		}
		return []*Batch{first}
	}
	batches = append(batches, removal(t.Family, have.unknown(l))...)
	if c.Dormant { // last, and on its own: the kernel refuses to add base chains beside that
		wake := &Batch{}
		wake.AddTable(c.Family)
		batches = append(batches, wake)
	}
	return nonEmpty(batches)
}

// stageBatches makes a transaction of each stage of a change.
func stageBatches(f Family, c Change) (out []*Batch) {
	for _, part := range Stage(c, ChunkSize) {
		b := &Batch{}
		b.Change(f, part)
		out = append(out, b)
	}
	return out
}

// settle forgets the numbers of sticky views that no Service wants any more.
func (t *Table) settle() {
	clear(t.numbers)
	clear(t.taken)
	t.free = 0
	for id, a := range t.parts.affinities {
		t.numbers[a.Owner], t.taken[id] = id, true
	}
}

// wantedElements are the elements of all Services, those of shared sets once, and of the node.
func wantedElements(want []*Service, node []Element) []Element {
	return (&Table{}).wantedElements(want, node)
}

// wantedElements returns the same, and counts.
func (t *Table) wantedElements(want []*Service, node []Element) []Element {
	t.shared, t.counts, t.node = Counter{}, [256]int{}, node
	n := len(node)
	for _, s := range want {
		n += s.Size()
	}
	out, text := append(make([]Element, 0, n), node...), &texts{}
	for _, s := range want {
		all := appendElements(out, text, s)
		out = all[:len(out)]
		for i := len(out); i < len(all); i++ {
			if t.shared.first(&all[i]) {
				out = append(out, all[i])
			}
		}
	}
	t.count(Change{Add: out}, 1)
	return out
}

// objectsAtOnce is how many chains or sets one transaction removes at most, at some 10 microseconds each.
const objectsAtOnce = 512

// removal returns the transactions that delete chains, sets and programs for which this version has no use: first what refers
// to chains, maps of verdicts included, then, in other transactions, the chains (see Table.release).
func removal(f Family, unknown []Difference) (out []*Batch) {
	var verdicts Change
	var flush, sets, chains []Op
	for _, d := range unknown {
		switch d.Object {
		case ObjectProgram:
			verdicts.Delete = append(verdicts.Delete, d.key.element())
		case ObjectChain:
			flush = append(flush, Op{Kind: FlushChain, Family: f, Name: d.Name})
			chains = append(chains, Op{Kind: DeleteChain, Family: f, Name: d.Name})
		case ObjectSet:
			sets = append(sets, Op{Kind: DeleteSet, Family: f, Name: d.Name})
		}
	}
	if len(verdicts.Delete)+len(flush)+len(sets) <= objectsAtOnce {
		b := &Batch{}
		b.Change(f, verdicts)
		for _, op := range slices.Concat(flush, sets) {
			b.Add(op)
		}
		out, flush, sets = append(out, b), nil, nil
	} else {
		out = stageBatches(f, verdicts)
	}
	for _, list := range [][]Op{flush, sets, chains} {
		for part := range slices.Chunk(list, objectsAtOnce) {
			b := &Batch{}
			for _, op := range part {
				b.Add(op)
			}
			out = append(out, b)
		}
	}
	return out
}

// splitDraws separates those draws of sticky views from a change that are new or different: the rules of the view need them.
func splitDraws(c Change) (draws, rest Change) {
	coming := map[string]bool{}
	for i := range c.Add {
		if c.Add[i].Set == StickyDraws {
			coming[c.Add[i].Key] = true
		}
	}
	if len(coming) == 0 {
		return Change{}, c
	}
	split := func(list []Element) (early, late []Element) {
		for _, e := range list {
			if e.Set == StickyDraws && coming[e.Key] {
				early = append(early, e)
			} else {
				late = append(late, e)
			}
		}
		return early, late
	}
	draws.Delete, rest.Delete = split(c.Delete)
	draws.Add, rest.Add = split(c.Add)
	return draws, rest
}

// Stage splits a change into parts of at most limit elements that are safe one after the other. A change that fits is one
// part. Otherwise endpoints come before the programs that lead to them and go after them, and an element whose datum changes
// is deleted and added in one part. So are all ranges of one interval set: the kernel refuses a range that overlaps with one
// that goes later.
func Stage(c Change, limit int) []Change {
	if c.Len() == 0 {
		return nil
	}
	if c.Len() <= limit {
		return []Change{c}
	}
	if len(c.Delete) == 0 {
		return stageAdditions(c.Add, limit)
	}
	deleted := make(map[Element][]Element, len(c.Delete))
	for _, e := range c.Delete {
		deleted[e.place()] = append(deleted[e.place()], e)
	}
	ranges := map[Element][]Element{}
	for _, e := range c.Add {
		if e.Set.ranged() {
			ranges[e.place()] = append(ranges[e.place()], e)
		}
	}
	var parts []Change
	part := Change{}
	put := func(del, add []Element) {
		if part.Len() > 0 && part.Len()+len(del)+len(add) > limit {
			parts = append(parts, part)
			part = Change{}
		}
		part.Delete = append(part.Delete, del...)
		part.Add = append(part.Add, add...)
	}
	add := slices.Clone(c.Add)
	slices.SortStableFunc(add, func(a, b Element) int { return cmp.Compare(a.Set.rank(), b.Set.rank()) })
	for _, e := range add {
		at, together := e.place(), []Element{e}
		if e.Set.ranged() {
			if together = ranges[at]; together == nil {
				continue // with the first of them
			}
			delete(ranges, at)
		}
		put(deleted[at], together)
		delete(deleted, at)
	}
	del := slices.DeleteFunc(slices.Clone(c.Delete), func(e Element) bool { return deleted[e.place()] == nil })
	slices.SortStableFunc(del, func(a, b Element) int { return cmp.Compare(b.Set.rank(), a.Set.rank()) })
	for _, e := range del {
		put([]Element{e}, nil)
	}
	return append(parts, part)
}

// stageAdditions is Stage where nothing is deleted: the first start of a node.
func stageAdditions(add []Element, limit int) (parts []Change) {
	sorted := make([]Element, 0, len(add))
	for rank := range ranks {
		for i := range add {
			if add[i].Set.rank() == rank {
				sorted = append(sorted, add[i])
			}
		}
	}
	for part := range slices.Chunk(sorted, limit) {
		parts = append(parts, Change{Add: part})
	}
	return parts
}

// place is what elements have in common that have to be deleted and added in one transaction: the key, or the whole set where
// keys are ranges.
func (e Element) place() Element {
	if e.Set.ranged() {
		return Element{Set: e.Set}
	}
	return Element{Set: e.Set, Key: e.Key}
}

// ranged is IsInterval without the declaration, for what is called for each element.
func (id SetID) ranged() bool { return id == Pods || id == ServiceCIDRs }

// rank orders sets by who refers to whom. What drops packets of addresses that are not programmed yet comes first, so that
// conntrack never confirms such a connection without a translation; then endpoints, then the programs that lead to them,
// then what leads to programs.
func (id SetID) rank() int {
	switch id.Group() {
	case ServiceCIDRs, ClusterIPs, RejectServices, DropServices, RejectNodePorts, DropNodePorts:
		return 0
	case Endpoints, NodePortEndpoints, EndpointIDs, NodePortEndpointIDs, EndpointsByID, NodePortEndpointsByID, StickyDraws, Pods, Hairpin, Allowed:
		return 1
	case ClusterPrograms, LocalPrograms, NodePortClusterPrograms, NodePortLocalPrograms, Restricted, NodePortAddresses:
		return 2
	case Services, NodePorts:
		return 3
	}
	return ranks - 1
}

// ranks is the number of ranks.
const ranks = 5
