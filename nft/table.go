// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"maps"
	"slices"
)

// Table is what one family's table holds besides the Services' own elements: the parts that exist on demand, and how many
// Services want each element of the shared sets. The methods that return batches take them for committed; Discard takes that
// back after the kernel refused a single batch. If one of several fails, the kernel has to be read again, and a new Table
// made. Not safe for concurrent use.
type Table struct {
	Family  Family
	parts   onDemand
	numbers map[string]uint32 // affinity numbers by owner
	taken   map[uint32]bool   // numbers that are in use, reserved or about to be swept
	free    uint32            // no number below it is free, except 0, which is none
	retired []uint32          // out of use, their chains not yet deleted
	node    []Element         // elements that belong to no Service
	shared  Counter
	counts  [256]int // elements by the group of their set
	undo    []func() // what Discard does, in reverse
}

// NewTable returns the Table of a family whose sticky views keep the numbers that c, the table's content, has. It knows
// nothing else until Reconcile is called.
func NewTable(c *Content) *Table {
	t := &Table{Family: c.Family, parts: newOnDemand(), numbers: c.affinityNumbers(), taken: map[uint32]bool{}, shared: Counter{}}
	for _, id := range t.numbers {
		t.taken[id] = true
	}
	return t
}

// Number gives the sticky views of a Service their numbers: those they have, or free ones.
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

// Committed forgets how to take back what was planned: the kernel carried it out.
func (t *Table) Committed() { t.undo = nil }

// Discard takes back what was planned since the last Committed: the kernel refused it.
func (t *Table) Discard() {
	for _, undo := range slices.Backward(t.undo) {
		undo()
	}
	t.undo = nil
}

// Count returns the number of elements of a set; Allowed stands for all sets of source ranges.
func (t *Table) Count(id SetID) int { return t.counts[id] }

// Update is one Service port of the family before and after a change; nil is none.
type Update struct{ Prev, Next *Service }

// Plan returns the transactions that lead from the committed state to the next: one if the change is small, otherwise several
// that are safe one after the other. node are the elements of the sets that belong to no Service. The cost follows the
// updates, whatever the table holds. change is what it changes of elements in the kernel.
func (t *Table) Plan(updates []Update, node []Element) (batches []*Batch, change Change) {
	w := t.newWork()
	raw := DiffElements(t.node, node)
	raw.Add = slices.Clip(raw.Add) // it may share node's memory
	var released []string
	for _, u := range updates {
		var kept []string
		if u.Next != nil {
			t.Number(u.Next)
			w.need(u.Next)
			for _, a := range u.Next.Affinities() { // a view without endpoints has no chain, after a restart as well
				kept = append(kept, a.Owner)
			}
		}
		c := Diff(u.Prev, u.Next)
		raw.Delete, raw.Add = append(raw.Delete, c.Delete...), append(raw.Add, c.Add...)
		if u.Prev != nil {
			for _, owner := range u.Prev.AffinityOwners() {
				if !slices.Contains(kept, owner) {
					released = append(released, owner)
				}
			}
		}
	}
	change = t.apply(raw)
	was := t.node
	t.node = node
	t.undo = append(t.undo, func() { t.node = was })
	first := &Batch{}
	batches = w.batches(first)
	if len(batches) == 1 && change.Len() <= ChunkSize {
		first.Change(t.Family, change)
		t.release(first, released)
		return nonEmpty(batches), change
	}
	rest := Change{slices.Clone(change.Delete), slices.Clone(change.Add)}
	first.Change(t.Family, rest.takeRanges())
	last := &Batch{}
	t.release(last, released)
	return nonEmpty(slices.Concat(batches, stageBatches(t.Family, rest), []*Batch{last})), change
}

// apply counts a change and returns what of it concerns the kernel.
func (t *Table) apply(raw Change) Change {
	change := t.shared.Apply(raw)
	t.count(change, 1)
	t.undo = append(t.undo, func() { t.shared.Undo(raw); t.count(change, -1) })
	return change
}

func (t *Table) count(c Change, sign int) {
	for i := range c.Delete {
		t.counts[c.Delete[i].Set.Group()] -= sign
	}
	for i := range c.Add {
		t.counts[c.Add[i].Set.Group()] += sign
	}
}

func nonEmpty(batches []*Batch) []*Batch { return slices.DeleteFunc(batches, (*Batch).Empty) }

// work collects the parts that a change needs and the table lacks.
type work struct {
	*Table
	have  *Content // as far as it matters
	want  layout
	views []Affinity
}

func (t *Table) newWork() *work {
	return &work{Table: t, have: NewContent(t.Family), want: layout{family: t.Family, sets: map[string]setSpec{}}}
}

// need adds the parts that a Service needs.
func (w *work) need(s *Service) {
	for _, p := range s.Balancers() {
		w.program(p)
	}
	for i := range s.Frontends {
		for _, p := range s.Frontends[i].Sources {
			w.sourceLength(p.Bits())
		}
	}
	for _, a := range s.Affinities() {
		for _, p := range a.programs() {
			w.program(a.draw(p))
		}
		w.affinity(a)
	}
}

func (w *work) program(p Program) {
	if w.parts.programs[p] {
		return
	}
	w.parts.programs[p] = true
	w.undo = append(w.undo, func() { delete(w.parts.programs, p) })
	w.want.chains = append(w.want.chains, programChain(w.Family, p))
	w.want.verdicts = append(w.want.verdicts, p.verdictKey())
}

// sourceLength adds the set of source ranges of a prefix length and its rule.
func (w *work) sourceLength(bits int) {
	if w.parts.lengths[bits] {
		return
	}
	w.parts.lengths[bits] = true
	w.undo = append(w.undo, func() { delete(w.parts.lengths, bits) })
	w.want.addSet(AllowedSources(bits).spec())
	chain := lang{w.Family}.sourceRanges(slices.Sorted(maps.Keys(w.parts.lengths)))
	w.have.Chains[chain.Name] = ChainContent{}
	w.want.chains = slices.DeleteFunc(w.want.chains, func(c Chain) bool { return c.Name == chain.Name })
	w.want.chains = append(w.want.chains, chain)
}

// affinity adds a sticky view, or its new rules. Rules are replaced as a whole, which happens for another timeout or the
// first NodePort only: they are few, and the map of clients stays.
func (w *work) affinity(a Affinity) {
	was, ok := w.parts.affinities[a.ID]
	if ok {
		// A keyspace that is not wanted any more keeps its chain until the view goes: nothing leads there.
		a.VIPs, a.NodePorts = a.VIPs || was.VIPs, a.NodePorts || was.NodePorts
	}
	if ok && was == a {
		return
	}
	w.parts.affinities[a.ID] = a
	w.undo = append(w.undo, func() {
		if delete(w.parts.affinities, a.ID); ok {
			w.parts.affinities[a.ID] = was
		}
	})
	if ok && was.sameRules(&a) {
		return
	}
	if ok {
		l := layout{family: w.Family, sets: map[string]setSpec{}}
		l.addAffinity(was)
		w.have.take(&l)
	}
	w.views = append(w.views, a)
}

// take adds a layout to a content.
func (c *Content) take(l *layout) {
	for name, spec := range l.sets {
		c.Sets[name] = spec.content(c.Family)
	}
	for i := range l.chains {
		c.Chains[l.chains[i].Name] = l.chains[i].content(c.Family)
	}
	for _, key := range l.verdicts {
		c.Verdicts[key] = key.Program.verdict()
	}
}

// batches returns the transactions that make the parts; the first of them is b.
func (w *work) batches(b *Batch) []*Batch {
	b.mend(&w.want, w.have.lacking(&w.want))
	if len(w.views) == 0 {
		return []*Batch{b}
	}
	return makeViews(b, w.have, w.views, len(w.parts.affinities)-len(w.views))
}

// mend adds the operations that make up for what a layout's table lacks.
func (b *Batch) mend(l *layout, lacking []Difference) {
	var rewrite []*Chain
	var verdicts Change
	for i := range lacking {
		d := &lacking[i]
		switch d.Object {
		case ObjectSet: // only missing: a table with another declaration is replaced
			spec := l.sets[d.Name]
			b.addSet(l.family, &spec)
		case ObjectChain:
			if d.Fault == Detached {
				b.on(l.family, FlushChain, d.Name)
				b.on(l.family, DeleteChain, d.Name)
			}
			if d.Fault != Different {
				b.addChain(l.family, d.chain) // which also sets the policy of one that exists
			}
			if d.Fault == Different || d.Fault == Dropping {
				b.on(l.family, FlushChain, d.Name)
			}
			rewrite = append(rewrite, d.chain)
		case ObjectProgram:
			if d.Fault == Different {
				verdicts.Delete = append(verdicts.Delete, d.key.element())
			}
			verdicts.Add = append(verdicts.Add, d.key.element())
		}
	}
	for _, ch := range rewrite {
		b.addRules(l.family, ch)
	}
	b.Change(l.family, verdicts)
}

// ViewsAtOnce is how many sticky views one transaction makes at most: at 80 microseconds each, 8 ms. Beside many, fewer are
// made: the kernel finds a set by its name in a list of all, seven times for each view, so that one beside 4,000 takes 1 ms
// (measured), and viewsCost, views made times views there, 15 ms.
const (
	ViewsAtOnce = 100
	viewsCost   = 60000
)

// viewsAtOnce is how many sticky views one transaction makes or deletes beside others.
func viewsAtOnce(others int) int { return max(1, min(ViewsAtOnce, viewsCost/max(others, 1))) }

// makeViews returns the transactions that make the maps of clients and the chains of sticky views, as far as have lacks them:
// in b, and if they are many in batches after it. Only when all are made it leads there: what no packet can reach the kernel
// does not validate again with each transaction. there is the number of other views.
func makeViews(b *Batch, have *Content, views []Affinity, there int) []*Batch {
	out, made := []*Batch{b}, 0
	verdicts := layout{family: have.Family}
	for _, a := range views {
		if made > 0 && made >= viewsAtOnce(there) {
			b, made = &Batch{}, 0
			out = append(out, b)
		}
		l := layout{family: have.Family, sets: map[string]setSpec{}}
		l.addAffinity(a)
		verdicts.verdicts = append(verdicts.verdicts, l.verdicts...)
		l.verdicts = nil
		if lacking := have.lacking(&l); len(lacking) > 0 {
			b.mend(&l, lacking)
			made++
			there++
		}
	}
	lacking := have.lacking(&verdicts)
	if len(out) == 1 {
		b.mend(&verdicts, lacking)
		return out
	}
	// Each takes 2 to 3 microseconds, and as much once more for each that is reached already.
	for part := range slices.Chunk(lacking, ChunkSize) {
		b = &Batch{}
		b.mend(&verdicts, part)
		out = append(out, b)
	}
	return out
}

// release takes sticky views out of use by their owners, after their Service's elements were deleted in the same batch.
// Before Linux 6.2 the kernel drops an element's reference to a chain only after the commit, so that the chains can only be
// deleted by a later batch: see Sweep. The clients go with them.
func (t *Table) release(b *Batch, owners []string) {
	var verdicts Change
	for _, owner := range owners {
		id, ok := t.numbers[owner]
		if !ok {
			continue
		}
		a, known := t.parts.affinities[id]
		for _, p := range a.programs() {
			verdicts.Delete = append(verdicts.Delete, p.verdictKey().element())
		}
		delete(t.numbers, owner)
		retired := t.retired
		if known {
			t.retired = append(slices.Clip(t.retired), id)
		} else {
			t.forget(id)
		}
		t.undo = append(t.undo, func() { t.numbers[owner], t.taken[id], t.retired = id, true, retired })
	}
	b.Change(t.Family, verdicts)
}

// forget makes a number free.
func (t *Table) forget(id uint32) {
	delete(t.taken, id)
	t.free = min(t.free, id)
}

// Sweep returns a transaction that deletes chains and maps which earlier batches released, nil if there are none left. Call
// Swept when it is committed; otherwise the next Sweep tries again.
func (t *Table) Sweep() *Batch {
	if len(t.retired) == 0 {
		return nil
	}
	b := &Batch{}
	for _, id := range t.sweeping() {
		a := t.parts.affinities[id]
		for _, p := range a.programs() {
			b.on(t.Family, FlushChain, p.Chain())
			b.on(t.Family, DeleteChain, p.Chain())
		}
		b.on(t.Family, DeleteSet, AffinityMap(id))
	}
	return b
}

// sweeping are the views of the next Sweep.
func (t *Table) sweeping() []uint32 {
	return t.retired[:min(len(t.retired), viewsAtOnce(len(t.parts.affinities)))]
}

// Swept forgets what the transaction of the last Sweep deleted.
func (t *Table) Swept() {
	swept := t.sweeping()
	for _, id := range swept {
		delete(t.parts.affinities, id)
		t.forget(id)
	}
	t.retired = t.retired[len(swept):]
}
