// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Config returns the configuration that the rules of a table were made from, as far as they tell: with it,
// Differences says whether they are all as this version writes them.
func (s *Snapshot) Config() Config {
	var c Config
	for _, r := range s.Rules["masquerade-mark"] {
		for _, e := range r.Exprs {
			if b, ok := e.(*expr.Bitwise); ok && len(b.Xor) == 4 && binary.NativeEndian.Uint32(b.Xor) != 0 {
				c.MasqueradeBit = uint8(bits.TrailingZeros32(binary.NativeEndian.Uint32(b.Xor)))
			}
		}
	}
	for _, r := range s.Rules[KindExternalLocal.chain()] {
		if m := podMatch(r.Exprs); m != (PodMatch{}) {
			c.Pods = m
		}
	}
	for _, r := range s.Rules["services"] {
		c.MasqueradeAll = c.MasqueradeAll || jumps(r.Exprs, "masquerade-mark") && podMatch(r.Exprs) == PodMatch{}
		c.NodePortAll = c.NodePortAll || slices.ContainsFunc(r.Exprs, func(e expr.Any) bool { _, ok := e.(*expr.Fib); return ok })
	}
	c.Connections = slices.ContainsFunc(s.Rules["services"], func(r Rule) bool { return looksUp(r.Exprs, Connections) })
	c.Beyond = s.beyond()
	return c
}

// podMatch returns how a rule tells packets of pods, if it does.
func podMatch(exprs []expr.Any) (m PodMatch) {
	iif := false
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Lookup:
			m.CIDRs = m.CIDRs || e.SetName == Pods.String()
		case *expr.Meta:
			iif = e.Key == expr.MetaKeyIIFNAME
			continue
		case *expr.Cmp:
			if iif {
				m.Interface, m.Prefix = trimName(e.Data), len(e.Data) < unix.IFNAMSIZ
			}
		}
		iif = false
	}
	return m
}

// looksUp tells rules that ask a set.
func looksUp(exprs []expr.Any, set SetID) bool {
	return slices.ContainsFunc(exprs, func(e expr.Any) bool {
		l, ok := e.(*expr.Lookup)
		return ok && l.SetName == set.String()
	})
}

// trimName is the name of an interface without what the kernel compares it with.
func trimName(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func jumps(exprs []expr.Any, chain string) bool {
	return slices.ContainsFunc(exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && v.Chain == chain
	})
}

// Differences lists, in the order of their names, the chains, sets and programs that are not as this version writes them with a
// configuration; it is empty when Reconcile would leave them alone. Of elements of Services only the programs are looked at.
func (s *Snapshot) Differences(cfg Config) []string {
	if !s.Exists {
		return []string{"there is no table"}
	}
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if s.Dormant {
		add("the table is dormant")
	}
	affinities := s.Affinities()
	want := Skeleton(s.Family, cfg)
	programs := s.named()
	for p := range programs {
		if p.Kind().IsDraw() {
			want = append(want, DrawChain(s.Family, p))
		} else {
			want = append(want, BalancerChain(s.Family, p))
		}
	}
	sets := map[string]bool{}
	for _, a := range affinities {
		want = append(want, a.Chains(s.Family)...)
		for _, p := range a.programs() {
			programs[p] = true
		}
		sets[AffinityMap(a.ID)] = true
	}
	s.diffSets(sets, add)
	s.diffChains(want, add)
	s.diffPrograms(programs, add)
	slices.Sort(out)
	return out
}

func (s *Snapshot) diffSets(known map[string]bool, add func(string, ...any)) {
	for _, spec := range staticSets() {
		known[spec.name] = true
		switch have, ok := s.Sets[spec.name]; {
		case !ok:
			add("set %s is missing", spec.name)
		case !have.matches(s.Family, &spec):
			add("set %s is declared in another way", spec.name)
		}
	}
	for name := range s.Sets {
		if !known[name] && !strings.HasPrefix(name, "__") {
			add("set %s is not of this version", name)
		}
	}
}

func (s *Snapshot) diffChains(want []Chain, add func(string, ...any)) {
	known := map[string]bool{}
	for i := range want {
		known[want[i].Name] = true
		have, ok := s.Chains[want[i].Name]
		switch prints := fingerprints(s.Family, &want[i]); {
		case !ok:
			add("chain %s is missing", want[i].Name)
		case !sameHook(have.Hook, want[i].Hook):
			add("chain %s is attached elsewhere", want[i].Name)
		case have.Dropping:
			add("chain %s drops what no rule decides on", want[i].Name)
		case len(have.Rules) != len(prints):
			add("chain %s has %d rules, not %d", want[i].Name, len(have.Rules), len(prints))
		case !slices.Equal(have.Rules, prints):
			add("chain %s has another rule", want[i].Name)
		}
	}
	for name := range s.Chains {
		if !known[name] {
			add("chain %s is not of this version", name)
		}
	}
}

func (s *Snapshot) diffPrograms(want map[Program]bool, add func(string, ...any)) {
	for _, p := range policies() {
		want[p] = true
	}
	for p := range want {
		if !s.Leads(p) {
			add("program %s is missing in map %s", p.Chain(), dispatcher(p))
		}
	}
}

// named are the balancers and draws that elements name, and those that are there without.
func (s *Snapshot) named() map[Program]bool {
	out, decoder := map[Program]bool{}, NewDecoder(s.Family)
	for _, p := range slices.Concat(wantedBalancers(s.Content, nil), wantedDraws(s.Content, nil)) {
		out[p] = true
	}
	for i := range s.Elements {
		if d, ok := decoder.Decode(&s.Elements[i]); ok && (d.Program.Kind().isBalancer() || d.Program.Kind().IsDraw()) {
			out[d.Program] = true
		}
	}
	return out
}

// policies are the programs that every table has.
func policies() (out []Program) {
	for _, k := range []Kind{KindExternal, KindExternalLocal, KindNodePortExternal, KindNodePortExternalLocal} {
		out = append(out, NewProgram(k, 0))
	}
	return out
}

// Affinities returns the sticky views that the table has, by their numbers. The comment of the map of clients is
// the Owner; the rest is read from the rules.
func (s *Snapshot) Affinities() []Affinity {
	var out []Affinity
	draws := s.draws()
	for owner, id := range s.affinityNumbers() {
		a := Affinity{ID: id, Owner: owner, Size: s.Sets[AffinityMap(id)].Size}
		a.VIPs = s.has(NewProgram(KindAffinity, id).Chain())
		a.NodePorts = s.has(NewProgram(KindNodePortAffinity, id).Chain())
		for _, p := range a.programs() {
			a.readRules(s.Rules[p.Chain()])
			a.Modulus = max(a.Modulus, draws[p].Arg())
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Affinity) int { return int(a.ID) - int(b.ID) })
	return out
}

func (s *Snapshot) has(chain string) bool {
	_, ok := s.Chains[chain]
	return ok
}

// draws returns the draws of the programs of sticky views.
func (s *Snapshot) draws() map[Program]Program {
	out, decoder := map[Program]Program{}, NewDecoder(s.Family)
	for i := range s.Elements {
		if s.Elements[i].Set != StickyDraws {
			continue
		}
		if d, ok := decoder.Decode(&s.Elements[i]); ok {
			out[Program(d.Slot)] = d.Program
		}
	}
	return out
}

// readRules takes the view and the timeout from rules of the affinity's chains.
func (a *Affinity) readRules(rules []Rule) {
	for _, r := range rules {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Immediate:
				if v := number(e.Data); !Program(v).Kind().IsAffinity() { // but the slot
					a.View = Slot(v).View()
				}
			case *expr.Dynset:
				a.Timeout = max(a.Timeout, e.Timeout)
			}
		}
	}
}
