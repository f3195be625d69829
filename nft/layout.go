// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// layout is everything of a table except the elements of Services: sets, chains with their rules, and the verdict maps.
type layout struct {
	family   Family
	sets     map[string]setSpec
	chains   []Chain
	verdicts []VerdictKey
}

// onDemand are the parts of a table that exist because a Service needs them. Balancers, draws and the sets of source ranges
// are few, whatever the number of Services, and stay: another Service may need them, and to remove them would cost more.
type onDemand struct {
	programs   map[Program]bool // balancers and draws
	lengths    map[int]bool     // prefix lengths of source ranges
	affinities map[uint32]Affinity
}

func newOnDemand() onDemand {
	return onDemand{map[Program]bool{}, map[int]bool{}, map[uint32]Affinity{}}
}

// present returns the parts that a table has; of sticky views it leaves out what no set of clients belongs to.
func (c *Content) present() onDemand {
	out := newOnDemand()
	for key := range c.Verdicts {
		if k := key.Program.Kind(); (k.isBalancer() || k.IsDraw()) && c.Leads(key.Program) {
			if _, ok := c.Chains[key.Program.Chain()]; ok {
				out.programs[key.Program] = true
			}
		}
	}
	for name := range c.Sets {
		if id, ok := ParseSet(name); ok && id.Group() == Allowed {
			out.lengths[id.sourceBits()] = true
		}
	}
	return out
}

// need adds the parts that a Service needs.
func (d *onDemand) need(s *Service) {
	for _, p := range s.Balancers() {
		d.programs[p] = true
	}
	for i := range s.Frontends {
		for _, p := range s.Frontends[i].Sources {
			d.lengths[p.Bits()] = true
		}
	}
	for _, a := range s.Affinities() {
		d.affinities[a.ID] = a
		for _, p := range a.programs() {
			d.programs[a.draw(p)] = true
		}
	}
}

// layout returns the table without its sticky views.
func (d *onDemand) layout(f Family, cfg Config) *layout {
	l := &layout{family: f, sets: map[string]setSpec{}, chains: Skeleton(f, cfg, slices.Sorted(maps.Keys(d.lengths)))}
	for id := range numSets {
		l.addSet(id.spec())
	}
	for bits := range d.lengths {
		l.addSet(AllowedSources(bits).spec())
	}
	for _, p := range policies() {
		l.verdicts = append(l.verdicts, p.verdictKey())
	}
	for _, p := range slices.Sorted(maps.Keys(d.programs)) {
		l.chains = append(l.chains, programChain(f, p))
		l.verdicts = append(l.verdicts, p.verdictKey())
	}
	return l
}

func (l *layout) addSet(s setSpec) { l.sets[s.name] = s }

// addAffinity adds a sticky view.
func (l *layout) addAffinity(a Affinity) {
	l.addSet(affinitySpec(a))
	l.chains = append(l.chains, a.Chains(l.family)...)
	for _, p := range a.programs() {
		l.verdicts = append(l.verdicts, p.verdictKey())
	}
}

// programChain is the chain of a balancer or a draw.
func programChain(f Family, p Program) Chain {
	if p.Kind().IsDraw() {
		return DrawChain(f, p)
	}
	return BalancerChain(f, p)
}

// policies are the programs that every table has.
func policies() (out []Program) {
	for _, k := range []Kind{KindExternal, KindExternalLocal, KindNodePortExternal, KindNodePortExternalLocal} {
		out = append(out, NewProgram(k, 0))
	}
	return out
}

// Model returns what the kernel holds once a table was made of Services, whose slots and affinity numbers must be assigned,
// and of the node's elements.
func Model(f Family, cfg Config, services []*Service, node []Element) *Snapshot {
	parts := newOnDemand()
	for _, s := range services {
		parts.need(s)
	}
	l := parts.layout(f, cfg)
	for _, a := range parts.affinities {
		l.addAffinity(a)
	}
	s := &Snapshot{Content: NewContent(f), Rules: map[string][]Rule{}, Steady: true}
	s.Exists, s.Elements = true, wantedElements(services, node)
	for _, spec := range l.sets {
		s.Sets[spec.name] = spec.content(f)
	}
	for i := range l.chains {
		s.Chains[l.chains[i].Name], s.Rules[l.chains[i].Name] = l.chains[i].content(f), l.chains[i].Rules
	}
	for _, key := range l.verdicts {
		s.Verdicts[key] = key.Program.verdict()
	}
	return s
}

// Object is the kind of a part of a table.
type Object uint8

// The objects, in the order in which they are made.
const (
	ObjectTable Object = iota
	ObjectSet
	ObjectChain
	ObjectProgram // an element of a verdict map
)

func (o Object) String() string { return [...]string{"table", "set", "chain", "program"}[o] }

// Fault is in what way a part of a table is not as it should be.
type Fault uint8

// The faults.
const (
	Missing   Fault = iota
	Unknown         // this version has no use for it
	Different       // a set's declaration, a program's chain, a chain's rules
	Detached        // a chain at another hook
	Dropping        // a chain with policy drop
	Asleep          // a dormant table
)

// Difference is a part of a table that is not as it should be.
type Difference struct {
	Object Object
	Fault  Fault
	Name   string // of the set or chain, or of the program's chain
	// Want and Have describe the part; Have is empty if it is missing.
	Want, Have string
	key        VerdictKey
	chain      *Chain
}

func (d Difference) String() string {
	text := d.Object.String() + " " + d.Name
	switch d.Fault {
	case Missing:
		if d.Object == ObjectProgram {
			return fmt.Sprintf("%s is missing in map %s", text, d.key.Map)
		}
		return text + " is missing"
	case Unknown:
		return text + " is not of this version"
	case Detached:
		return text + " is attached elsewhere"
	case Dropping:
		return text + " drops what no rule decides on"
	case Asleep:
		return text + " is dormant"
	}
	if d.Object == ObjectChain {
		return text + ": " + d.Have
	}
	return fmt.Sprintf("%s is %q, not %q", text, d.Have, d.Want)
}

// Differences lists the sets, chains and programs that are not as this version writes them for a configuration and Services,
// whose affinity numbers must be assigned, in the order of their names. Without Services (nil) it judges the parts that
// exist. It is empty if Reconcile leaves them alone. It does not compare elements (see DiffElements).
func (c *Content) Differences(cfg Config, services []*Service) []Difference {
	if !c.Exists {
		return []Difference{{Object: ObjectTable, Fault: Missing, Name: TableName}}
	}
	parts := c.present()
	for _, s := range services {
		parts.need(s)
	}
	if services == nil {
		decoder := NewDecoder(c.Family)
		for i := range c.Elements { // what leads to a balancer or draw that may be missing
			d, ok := decoder.Decode(&c.Elements[i])
			if k := d.Program.Kind(); ok && (k.isBalancer() || k.IsDraw()) {
				parts.programs[d.Program] = true
			}
		}
		for _, a := range c.Affinities() {
			parts.affinities[a.ID] = a
		}
	}
	l := parts.layout(c.Family, cfg)
	for _, a := range parts.affinities {
		l.addAffinity(a)
	}
	out := append(c.lacking(l), c.unknown(l)...)
	if c.Dormant {
		out = append(out, Difference{Object: ObjectTable, Fault: Asleep, Name: TableName})
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Fault, b.Fault))
	})
	return out
}

// lacking lists what of a layout is missing or different, in the order of the layout.
func (c *Content) lacking(l *layout) (out []Difference) {
	for _, name := range slices.Sorted(maps.Keys(l.sets)) {
		spec := l.sets[name]
		have, ok := c.Sets[name]
		switch {
		case !ok:
			out = append(out, Difference{Object: ObjectSet, Fault: Missing, Name: name})
		case !have.matches(c.Family, &spec):
			out = append(out, Difference{Object: ObjectSet, Fault: Different, Name: name,
				Want: fmt.Sprintf("%+v", spec.content(c.Family)), Have: fmt.Sprintf("%+v", have)})
		}
	}
	for i := range l.chains {
		ch := &l.chains[i]
		d := Difference{Object: ObjectChain, Name: ch.Name, chain: ch}
		have, ok := c.Chains[ch.Name]
		want := ch.content(c.Family)
		switch {
		case !ok:
			d.Fault = Missing
		case !sameHook(have.Hook, want.Hook):
			d.Fault = Detached
		case have.Dropping:
			d.Fault = Dropping
		case !slices.Equal(have.Rules, want.Rules):
			d.Fault, d.Have = Different, ch.compareRules(have.Rules, want.Rules)
		default:
			continue
		}
		out = append(out, d)
	}
	for _, key := range l.verdicts {
		want := key.Program.verdict()
		if have, ok := c.Verdicts[key]; have != want {
			d := Difference{Object: ObjectProgram, Fault: Missing, Name: key.Program.Chain(), Want: want, Have: have, key: key}
			if ok {
				d.Fault = Different
			}
			out = append(out, d)
		}
	}
	return out
}

// compareRules describes how the rules of a chain differ, by the comments of those that are missing.
func (ch *Chain) compareRules(have, want []uint64) string {
	var parts []string
	left := slices.Clone(have)
	for i, print := range want {
		if at := slices.Index(left, print); at >= 0 {
			left = slices.Delete(left, at, at+1)
			continue
		}
		text := fmt.Sprintf("rule %d is missing", i+1)
		if comment := ch.Rules[i].Comment; comment != "" {
			text += fmt.Sprintf(" (%s)", comment)
		}
		parts = append(parts, text)
	}
	for i, print := range have {
		if at := slices.Index(left, print); at >= 0 {
			left = slices.Delete(left, at, at+1)
			parts = append(parts, fmt.Sprintf("rule %d is not of this configuration", i+1))
		}
	}
	if len(parts) == 0 {
		return "its rules are in another order"
	}
	return strings.Join(parts, "; ")
}

// unknown lists what a layout does not have. Anonymous sets go with their rules.
func (c *Content) unknown(l *layout) (out []Difference) {
	chains, verdicts := map[string]bool{}, map[VerdictKey]bool{}
	for i := range l.chains {
		chains[l.chains[i].Name] = true
	}
	for _, key := range l.verdicts {
		verdicts[key] = true
	}
	for key, have := range c.Verdicts {
		if !verdicts[key] {
			out = append(out, Difference{Object: ObjectProgram, Fault: Unknown, Name: key.Program.Chain(), Have: have, key: key})
		}
	}
	for name := range c.Chains {
		if !chains[name] {
			out = append(out, Difference{Object: ObjectChain, Fault: Unknown, Name: name})
		}
	}
	for name := range c.Sets {
		if _, ok := l.sets[name]; !ok && !strings.HasPrefix(name, "__") {
			out = append(out, Difference{Object: ObjectSet, Fault: Unknown, Name: name})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.key.Map, b.key.Map), cmp.Compare(a.key.Program, b.key.Program))
	})
	return out
}
