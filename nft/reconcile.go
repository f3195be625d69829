// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ChunkSize is how many elements one transaction changes at most where the change can be split. The kernel takes
// some 2 to 3 microseconds for each (measured: 135 ms for 50,000), so that the nfnetlink lock, for which
// other programs on the node wait, is held for about 5 ms, and on a busy node still for less than 20. Smaller ones would
// take no longer in all (measured down to 1,024).
const ChunkSize = 2048

// Reconcile returns the transactions that make the table what it is to be, whatever c, its content, is. When
// nothing is to be changed there are none. want are all Services of the family, with their slots and affinity
// numbers assigned (see Memory and Number); node are the elements of the sets that belong to no Service.
// What t knows is true once all of the transactions are committed.
//
// They are in an order that is safe after each of them: what is referred to comes before what refers to it,
// and goes after it.
func (t *Table) Reconcile(c *Content, cfg Config, want []*Service, node []Element) []*Batch {
	defer t.settle()
	if c.Exists && c.incompatible() {
		// A version with other sets made the table. It is replaced in one transaction, without a gap.
		b := &Batch{}
		b.DeleteTable(c.Family, TableName)
		none := &Content{Family: c.Family}
		t.build(b, none, cfg, want)
		t.buildAffinities(b, none, want, true)
		b.Change(c.Family, Change{Add: t.wantedElements(want, node)})
		return []*Batch{b}
	}
	first := &Batch{}
	t.build(first, c, cfg, want)
	draws, change := splitDraws(DiffElements(c.Elements, t.wantedElements(want, node)))
	batches := append([]*Batch{first}, stageBatches(c.Family, draws)...)
	last := batches[len(batches)-1]
	batches = append(batches[:len(batches)-1], t.buildAffinities(last, c, want, false)...)
	batches = append(batches, stageBatches(c.Family, change)...)
	batches = append(batches, t.removeForeign(c, cfg)...)
	if c.Dormant { // last, and on its own: the kernel refuses to add base chains beside that
		wake := &Batch{}
		wake.AddTable(c.Family)
		batches = append(batches, wake)
	}
	return slices.DeleteFunc(batches, (*Batch).Empty)
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
	for id, a := range t.affinities {
		t.numbers[a.Owner], t.taken[id] = id, true
	}
}

// wantedElements are the elements of all Services, those of shared sets once, and of the node.
func wantedElements(want []*Service, node []Element) []Element {
	return (&Table{}).wantedElements(want, node)
}

// wantedElements returns the same, and counts.
func (t *Table) wantedElements(want []*Service, node []Element) []Element {
	t.shared, t.counts = Counter{}, [numSets]int{}
	n := len(node)
	for _, s := range want {
		n += s.size()
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
	for i := range out {
		t.counts[out[i].Set]++
	}
	return out
}

// Tally returns, after Reconcile, how many Services want each element of the shared sets, and how many elements each set
// is to have.
func (t *Table) Tally() (Counter, map[SetID]int) {
	counts := make(map[SetID]int, len(t.counts))
	for id, n := range t.counts {
		counts[SetID(id)] = n
	}
	return t.shared, counts
}

// size is about how many elements a Service has: seldom more, and hardly less.
func (s *Service) size() int {
	n := len(s.Hairpin)
	for i := range s.Frontends {
		f := &s.Frontends[i]
		n += 3 + len(f.Sources)
		for _, v := range f.views() {
			if n += len(s.endpoints(v)); s.Affinity != 0 {
				n += len(s.endpoints(v))
			}
		}
	}
	return n
}

// incompatible tells whether a set of ours is declared in another way than this version does. A set cannot
// be redeclared while rules refer to it.
func (c *Content) incompatible() bool {
	for _, spec := range staticSets() {
		if s, ok := c.Sets[spec.name]; ok && !s.matches(c.Family, &spec) {
			return true
		}
	}
	clients := affinitySpec(Affinity{})
	for name, s := range c.Sets {
		if IsAffinityMap(name) && !s.matches(c.Family, &clients) {
			return true
		}
	}
	return false
}

func (s *SetContent) matches(f Family, spec *setSpec) bool {
	keyType, keyLen := concat(f, spec.key)
	// nft before 1.1 declares only concatenations of intervals as such.
	if s.Flags&^nftSetConcat != spec.flags()&^nftSetConcat || s.KeyType != keyType || s.KeyLen != keyLen {
		return false
	}
	if !spec.isMap() {
		return true
	}
	dataType, dataLen := concat(f, spec.data)
	return s.DataType == dataType && (spec.data[0] == fieldVerdict || s.DataLen == dataLen)
}

// staticSets are the named sets and maps.
func staticSets() []setSpec {
	specs := setSpecs()
	return specs[:]
}

// build adds to a batch all that is missing of table, sets, chains and rules, and what the Services require but for the
// chains of sticky views.
func (t *Table) build(b *Batch, c *Content, cfg Config, want []*Service) {
	if !c.Exists {
		b.AddTable(t.Family)
	}
	for _, spec := range staticSets() {
		if _, ok := c.Sets[spec.name]; !ok {
			b.addSet(t.Family, &spec)
		}
	}
	skeleton := Skeleton(t.Family, cfg)
	balancers := wantedBalancers(c, want)
	chains := skeleton
	for _, p := range balancers {
		chains = append(chains, BalancerChain(t.Family, p))
		t.balancers[p] = true
	}
	draws := wantedDraws(c, want)
	for _, p := range draws {
		chains = append(chains, DrawChain(t.Family, p))
		t.draws[p] = true
	}
	b.fixChains(c, chains)
	b.dispatchTo(t.Family, Policies, missing(policies(), c.Policies), false)
	b.dispatchTo(t.Family, Programs, missing(balancers, c.Programs), false)
	b.dispatchTo(t.Family, Draws, missing(draws, c.Draws), false)
}

// wantedBalancers are those that the Services need and those that are there: these may be needed again, and to
// remove them would cost more than to keep them.
func wantedBalancers(c *Content, want []*Service) []Program {
	set := map[Program]bool{}
	for p := range c.Programs {
		if _, ok := c.Chains[p.Chain()]; ok && p.Kind().isBalancer() {
			set[p] = true
		}
	}
	for _, s := range want {
		for _, p := range s.Balancers() {
			set[p] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func missing(want []Program, have map[Program]bool) []Program {
	return slices.DeleteFunc(slices.Clone(want), func(p Program) bool { return have[p] })
}

// fixChains adds the chains that are missing and rewrites those whose hook or rules are not as they should be.
func (b *Batch) fixChains(c *Content, chains []Chain) {
	var rewrite []int
	for i := range chains {
		have, ok := c.Chains[chains[i].Name]
		prints := fingerprints(c.Family, &chains[i])
		if have.Dropping && sameHook(have.Hook, chains[i].Hook) {
			b.addChain(c.Family, &chains[i]) // which sets the policy of one that is there
		}
		switch {
		case !ok:
			b.addChain(c.Family, &chains[i])
			rewrite = append(rewrite, i)
		case !sameHook(have.Hook, chains[i].Hook):
			b.flushChain(c.Family, chains[i].Name)
			b.deleteChain(c.Family, chains[i].Name)
			b.addChain(c.Family, &chains[i])
			rewrite = append(rewrite, i)
		case !slices.Equal(have.Rules, prints):
			b.flushChain(c.Family, chains[i].Name)
			rewrite = append(rewrite, i)
		}
	}
	for _, i := range rewrite {
		b.addRules(c.Family, &chains[i])
	}
}

func sameHook(a, b *Hook) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// removeForeign deletes chains and sets of our table that this version has no use for: first what refers to
// chains, maps of verdicts included, then, in another transaction, the chains (see Table.Release).
func (t *Table) removeForeign(c *Content, cfg Config) []*Batch {
	known := map[string]bool{}
	for _, ch := range Skeleton(t.Family, cfg) {
		known[ch.Name] = true
	}
	for p := range t.balancers {
		known[p.Chain()] = true
	}
	for p := range t.draws {
		known[p.Chain()] = true
	}
	for _, a := range t.affinities {
		known[AffinityMap(a.ID)] = true
		for _, p := range a.programs() {
			known[p.Chain()] = true
		}
	}
	for _, s := range staticSets() {
		known[s.name] = true
	}
	unmap, remove := &Batch{}, &Batch{}
	stale := func(p Program, _ bool) bool { return !known[p.Chain()] }
	staleProgram := func(p Program, _ bool) bool { return !known[p.Chain()] || p.Kind().IsPolicy() } // policies of before
	unmap.dispatchTo(t.Family, Programs, filterKeys(c.Programs, staleProgram), true)
	unmap.dispatchTo(t.Family, Draws, filterKeys(c.Draws, stale), true)
	chains := slices.DeleteFunc(slices.Sorted(maps.Keys(c.Chains)), func(n string) bool { return known[n] })
	for _, name := range chains {
		unmap.flushChain(t.Family, name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		if !known[name] && !strings.HasPrefix(name, "__") { // anonymous sets go with their rules
			unmap.deleteSet(t.Family, name)
		}
	}
	for _, name := range chains {
		remove.deleteChain(t.Family, name)
	}
	return []*Batch{unmap, remove}
}

func filterKeys(m map[Program]bool, keep func(Program, bool) bool) []Program {
	var out []Program
	for p, v := range m {
		if keep(p, v) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// affinityNumbers returns the numbers of the client maps that a table holds, by their owner.
func (c *Content) affinityNumbers() map[string]uint32 {
	out := map[string]uint32{}
	for name, s := range c.Sets {
		digits, ok := strings.CutPrefix(name, "affinity-")
		if id, err := strconv.ParseUint(digits, 10, 24); ok && err == nil && s.Comment != "" {
			out[s.Comment] = uint32(id)
		}
	}
	return out
}

// Stage splits a change into parts of at most limit elements that are safe one after the other. A change that
// fits is one part. Otherwise endpoints come before the programs that lead to them and go after them, and an
// element whose datum changes is deleted and added in one part. So are all ranges of one VIP, or of one plain set:
// the kernel refuses a range that overlaps with one that is to go later.
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

// stageAdditions is Stage where nothing goes, so that nothing has to come together with it: the first start of a node.
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

// place is what elements have in common that must go and come in one transaction: the key or, where keys are ranges,
// what is before the address in it.
func (e Element) place() Element {
	p := Element{Set: e.Set, Key: e.Key, End: e.End}
	switch {
	case !e.Set.ranged():
	case e.Set == Allowed:
		n := IPv4.AddrLen() // of the source, behind VIP, protocol and port
		if len(e.Key) > 4*n {
			n = IPv6.AddrLen()
		}
		p.Key, p.End = e.Key[:len(e.Key)-n], ""
	default:
		p.Key, p.End = "", ""
	}
	return p
}

// ranged is IsInterval without a look at the declarations, for what is asked of each element.
func (id SetID) ranged() bool { return id == Allowed || id == Pods || id == ServiceCIDRs }

// rank orders sets by who refers to whom: endpoints, then the programs that lead to them, then what leads to
// programs, and last what refuses or masquerades.
func (id SetID) rank() int {
	switch id {
	case Endpoints, NodePortEndpoints, EndpointIDs, NodePortEndpointIDs, EndpointsByID, NodePortEndpointsByID, StickyDraws, Pods, Hairpin, Allowed:
		return 0
	case ClusterPrograms, LocalPrograms, NodePortClusterPrograms, NodePortLocalPrograms, Restricted, NodePortAddresses:
		return 1
	case Services, NodePorts:
		return 2
	}
	return ranks - 1
}

// ranks is how many there are.
const ranks = 4
