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
	change := DiffElements(have.Elements, t.wantedElements(want, node))
	first.Change(t.Family, change.takeRanges())
	batches := append([]*Batch{first}, stageBatches(t.Family, change.takeDraws())...)
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
	if len(verdicts.Delete)+len(flush)+len(sets) <= ViewsAtOnce {
		b := &Batch{}
		b.Change(f, verdicts)
		for _, op := range slices.Concat(flush, sets) {
			b.Add(op)
		}
		out, flush, sets = append(out, b), nil, nil
	} else {
		out = stageBatches(f, verdicts)
	}
	for i, list := range [][]Op{flush, sets, chains} {
		atOnce := objectsAtOnce
		if i == 1 {
			atOnce = viewsAtOnce(len(sets))
		}
		for part := range slices.Chunk(list, atOnce) {
			b := &Batch{}
			for _, op := range part {
				b.Add(op)
			}
			out = append(out, b)
		}
	}
	return out
}

// take removes elements from a change, in place, and returns them.
func (c *Change) take(which func(Element) bool) (out Change) {
	from := func(list []Element) (taken, rest []Element) {
		rest = slices.DeleteFunc(list, func(e Element) bool {
			if which(e) {
				taken = append(taken, e)
				return true
			}
			return false
		})
		return taken, rest
	}
	out.Delete, c.Delete = from(c.Delete)
	out.Add, c.Add = from(c.Add)
	return out
}

// takeRanges takes the elements of interval sets, a few ranges of the node. They go first and in one transaction: the kernel
// refuses a range that overlaps with one that goes later, and packets to addresses of ServiceCIDRs that are not programmed
// yet are dropped from then on, so that conntrack never confirms such a connection without a translation.
func (c *Change) takeRanges() Change {
	return c.take(func(e Element) bool { return e.Set.IsInterval() })
}

// takeDraws takes those draws of sticky views that are new or different: the rules of the view need them.
func (c *Change) takeDraws() Change {
	coming := map[string]bool{}
	for i := range c.Add {
		if c.Add[i].Set == StickyDraws {
			coming[c.Add[i].Key] = true
		}
	}
	if len(coming) == 0 {
		return Change{}
	}
	return c.take(func(e Element) bool { return e.Set == StickyDraws && coming[e.Key] })
}

// Stage splits a change into parts of at most limit elements that are safe one after the other. A change that fits is one
// part. Otherwise endpoints come before the programs that lead to them and go after them, and an element whose datum changes
// is deleted and added in one part. Interval sets are not for it (see takeRanges).
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
	deleted := make(map[Element]Element, len(c.Delete))
	for _, e := range c.Delete {
		deleted[e.place()] = e
	}
	var parts []Change
	part := Change{}
	room := func(n int) {
		if part.Len() > 0 && part.Len()+n > limit {
			parts = append(parts, part)
			part = Change{}
		}
	}
	add := slices.Clone(c.Add)
	slices.SortStableFunc(add, func(a, b Element) int { return cmp.Compare(a.Set.rank(), b.Set.rank()) })
	for _, e := range add {
		old, replaces := deleted[e.place()]
		if room(2); replaces {
			part.Delete = append(part.Delete, old)
			delete(deleted, e.place())
		}
		part.Add = append(part.Add, e)
	}
	del := slices.DeleteFunc(slices.Clone(c.Delete), func(e Element) bool { return deleted[e.place()] != e })
	slices.SortStableFunc(del, func(a, b Element) int { return cmp.Compare(b.Set.rank(), a.Set.rank()) })
	for _, e := range del {
		room(1)
		part.Delete = append(part.Delete, e)
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

// place is what elements have in common of which the kernel cannot hold both.
func (e Element) place() Element { return Element{Set: e.Set, Key: e.Key} }

// rank orders sets by who refers to whom: what refuses, then endpoints, then the programs that lead to them, then what leads to
// programs, with the ClusterIPs: before their programs they would be refused as unused, and after them not masqueraded.
func (id SetID) rank() int {
	switch id.Group() {
	case RejectServices, DropServices, RejectNodePorts, DropNodePorts:
		return 0
	case Endpoints, NodePortEndpoints, EndpointIDs, NodePortEndpointIDs, EndpointsByID, NodePortEndpointsByID, StickyDraws, Hairpin, Allowed:
		return 1
	case ClusterPrograms, LocalPrograms, NodePortClusterPrograms, NodePortLocalPrograms, Restricted, NodePortAddresses:
		return 2
	case Services, NodePorts, ClusterIPs:
		return 3
	}
	return ranks - 1
}

// ranks is the number of ranks.
const ranks = 5
