// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package nftmodel is a model of nf_tables for simulations: it carries out batches of package nft as the kernel does, and
// lists tables as the kernel lists them, with the faults that a simulation asks for.
//
// In come batches, out go contents and errors with the errno that the kernel has for them. The model evaluates no packet: what
// a packet meets is derived from the content by the simulation's own judgement. A test holds it against the real kernel:
// the same random batches, right and wrong ones, through both.
package nftmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables/expr"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// Kernel holds tables. The zero value has none. It is not safe for concurrent use.
type Kernel struct {
	tables     map[tableKey]*table
	generation uint32
	undo       []func() // of the transaction that is being carried out
}

type tableKey struct {
	family nft.Family
	name   string
}

type table struct {
	flags  uint32
	chains map[string]*chain
	sets   map[string]*set
}

type chain struct {
	hook  *nft.Hook
	rules []rule
}

// rule is a rule by its fingerprint, with what it refers to.
type rule struct {
	fingerprint  uint64
	data         string
	chains, sets []string
}

type set struct {
	decl     nft.SetContent
	elements map[string]nft.Element // by key
	order    []string               // of arrival; keys that are gone are skipped
}

// dormant is NFT_TABLE_F_DORMANT.
const dormant = 1

// Generation returns the number of transactions so far, anyone's.
func (k *Kernel) Generation() uint32 { return k.generation }

// Commit carries out a transaction: all of it, or none of it and an error that wraps a *kernel.OpError.
func (k *Kernel) Commit(b *nft.Batch) error {
	if k.tables == nil {
		k.tables = map[tableKey]*table{}
	}
	k.undo = k.undo[:0]
	for i := range b.Ops {
		if element, errno := k.do(&b.Ops[i]); errno != 0 {
			for _, undo := range slices.Backward(k.undo) {
				undo()
			}
			return &kernel.OpError{Op: b.Ops[i].String(), Family: b.Ops[i].Family, Element: element, Errno: errno}
		}
	}
	if len(b.Ops) > 0 {
		k.generation++
	}
	return nil
}

// put changes an entry of a map so that it can be undone.
func put[K comparable, V any](k *Kernel, m map[K]V, key K, v V) {
	old, had := m[key]
	m[key] = v
	k.undo = append(k.undo, func() {
		if had {
			m[key] = old
		} else {
			delete(m, key)
		}
	})
}

// remove deletes an entry of a map so that it can be undone.
func remove[K comparable, V any](k *Kernel, m map[K]V, key K) {
	old, had := m[key]
	delete(m, key)
	if had {
		k.undo = append(k.undo, func() { m[key] = old })
	}
}

// do carries out one operation and returns what the kernel refuses: the element, if it is about one, and the errno.
func (k *Kernel) do(o *nft.Op) (*nft.Element, syscall.Errno) {
	key := tableKey{o.Family, o.Table}
	t := k.tables[key]
	if o.Kind == nft.AddTable {
		if t == nil {
			put(k, k.tables, key, &table{flags: o.Flags, chains: map[string]*chain{}, sets: map[string]*set{}})
			return nil, 0
		}
		old := t.flags
		k.undo = append(k.undo, func() { t.flags = old })
		t.flags = o.Flags
		return nil, 0
	}
	if t == nil {
		return nil, syscall.ENOENT
	}
	switch o.Kind {
	case nft.DeleteTable:
		remove(k, k.tables, key)
		return nil, 0
	case nft.AddSet:
		if s, ok := t.sets[o.Name]; ok {
			if !sameDeclaration(s.decl, o.Set) {
				return nil, syscall.EEXIST
			}
			return nil, 0
		}
		put(k, t.sets, o.Name, &set{decl: o.Set, elements: map[string]nft.Element{}})
		return nil, 0
	case nft.DeleteSet:
		return nil, k.deleteSet(t, o.Name)
	case nft.AddElements:
		return k.addElements(t, o)
	case nft.DeleteElements:
		return k.deleteElements(t, o)
	}
	return nil, k.doChain(t, o)
}

// sameDeclaration is what nf_tables compares of a set that is declared again.
func sameDeclaration(a, b nft.SetContent) bool {
	a.Comment, b.Comment = "", ""
	return a.Flags == b.Flags && a.KeyType == b.KeyType && a.KeyLen == b.KeyLen && a.DataType == b.DataType && a.DataLen == b.DataLen
}

func (k *Kernel) doChain(t *table, o *nft.Op) syscall.Errno {
	c := t.chains[o.Name]
	if o.Kind == nft.AddChain {
		switch {
		case c == nil:
			put(k, t.chains, o.Name, &chain{hook: o.Chain.Hook})
		case !sameHook(c.hook, o.Chain.Hook):
			return syscall.EEXIST
		}
		return 0
	}
	if c == nil {
		return syscall.ENOENT
	}
	switch o.Kind {
	case nft.FlushChain:
		old := c.rules
		c.rules = nil
		k.undo = append(k.undo, func() { c.rules = old })
	case nft.DeleteChain:
		if t.refers(o.Name) {
			return syscall.EBUSY
		}
		remove(k, t.chains, o.Name)
	case nft.AddRules:
		return k.addRules(t, c, o)
	}
	return 0
}

func sameHook(a, b *nft.Hook) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func (k *Kernel) addRules(t *table, c *chain, o *nft.Op) syscall.Errno {
	old := c.rules
	k.undo = append(k.undo, func() { c.rules = old })
	for i := range o.Chain.Rules {
		r, err := ruleOf(o.Family, o.Chain, i)
		if err != nil {
			return syscall.EINVAL
		}
		for _, name := range r.chains {
			if t.chains[name] == nil {
				return syscall.ENOENT
			}
		}
		for _, name := range r.sets {
			if t.sets[name] == nil {
				return syscall.ENOENT
			}
		}
		c.rules = append(slices.Clip(c.rules), r)
	}
	return 0
}

// ruleOf returns a rule's fingerprint and references.
func ruleOf(f nft.Family, ch *nft.Chain, i int) (rule, error) {
	_, data, err := ch.EncodeRule(f, i)
	if err != nil {
		return rule{}, fmt.Errorf("encode rule: %w", err)
	}
	out := rule{fingerprint: nft.RuleFingerprint(data), data: nft.RuleData(data)}
	for _, e := range ch.Rules[i].Exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			if e.Chain != "" {
				out.chains = append(out.chains, e.Chain)
			}
		case *expr.Lookup:
			out.sets = append(out.sets, e.SetName)
		case *expr.Dynset:
			out.sets = append(out.sets, e.SetName)
		}
	}
	return out, nil
}

// refers reports whether a rule of another chain or an element leads to a chain.
func (t *table) refers(name string) bool {
	for other, c := range t.chains {
		if other != name && slices.ContainsFunc(c.rules, func(r rule) bool { return slices.Contains(r.chains, name) }) {
			return true
		}
	}
	for _, s := range t.sets {
		for _, e := range s.elements {
			if verdictChain(e.Data, s) == name {
				return true
			}
		}
	}
	return false
}

// verdictChain is the chain that an element of a verdict map leads to, empty for any other.
func verdictChain(data string, s *set) string {
	if s.decl.DataType != verdictType {
		return ""
	}
	_, name, _ := strings.Cut(data, " ")
	return name
}

// verdictType is NFT_DATA_VERDICT, the data type of a verdict map.
const verdictType = 0xffffff00

func (k *Kernel) deleteSet(t *table, name string) syscall.Errno {
	if t.sets[name] == nil {
		return syscall.ENOENT
	}
	for _, c := range t.chains {
		if slices.ContainsFunc(c.rules, func(r rule) bool { return slices.Contains(r.sets, name) }) {
			return syscall.EBUSY
		}
	}
	remove(k, t.sets, name)
	return 0
}

// setName is the set of an element of an operation: elements of the Services' table name it themselves.
func setName(o *nft.Op, e *nft.Element) string {
	if o.Name != "" {
		return o.Name
	}
	return e.Set.String()
}

func (k *Kernel) addElements(t *table, o *nft.Op) (*nft.Element, syscall.Errno) {
	for i := range o.Elements {
		e := &o.Elements[i]
		s := t.sets[setName(o, e)]
		if s == nil {
			return e, syscall.ENOENT
		}
		if to := verdictChain(e.Data, s); to != "" && t.chains[to] == nil {
			return e, syscall.ENOENT
		}
		key := e.Key + e.End
		if was, ok := s.elements[key]; ok {
			// An addition without NLM_F_EXCL of what is there succeeds, unless it has other data.
			if was.Data != e.Data {
				return e, syscall.EEXIST
			}
			continue
		}
		put(k, s.elements, key, *e)
		s.order = append(s.order, key)
	}
	return nil, 0
}

func (k *Kernel) deleteElements(t *table, o *nft.Op) (*nft.Element, syscall.Errno) {
	for i := range o.Elements {
		e := &o.Elements[i]
		s := t.sets[setName(o, e)]
		if s == nil {
			return e, syscall.ENOENT
		}
		key := e.Key + e.End
		if _, ok := s.elements[key]; !ok {
			return e, syscall.ENOENT
		}
		remove(k, s.elements, key)
	}
	return nil, 0
}

// Read returns the content of a family's table as the kernel lists it.
func (k *Kernel) Read(f nft.Family) *nft.Content {
	c := nft.NewContent(f)
	t := k.tables[tableKey{f, nft.TableName}]
	if t == nil {
		return c
	}
	c.Exists, c.Dormant = true, t.flags&dormant != 0
	for name, ch := range t.chains {
		out := nft.ChainContent{Hook: ch.hook}
		for i, r := range ch.rules {
			out.Rules = append(out.Rules, r.fingerprint)
			if i == 0 {
				out.Data = r.data
			}
		}
		c.Chains[name] = out
	}
	for name, s := range t.sets {
		c.Sets[name] = s.decl
	}
	for _, id := range c.Readable() {
		c.Add(id, t.sets[id.String()].list())
	}
	return c
}

// list returns the elements in the order of their arrival.
func (s *set) list() []nft.Element {
	seen := make(map[string]bool, len(s.elements))
	out := make([]nft.Element, 0, len(s.elements))
	kept := s.order[:0]
	for _, key := range s.order {
		e, ok := s.elements[key]
		if !ok || seen[key] {
			continue
		}
		seen[key] = true
		kept = append(kept, key)
		out = append(out, e)
	}
	s.order = kept
	return out
}

// Flush removes all tables, as nft flush ruleset does.
func (k *Kernel) Flush() {
	clear(k.tables)
	k.generation++
}

// Names lists the sets and chains of a family's table, for edits by other hands.
func (k *Kernel) Names(f nft.Family) (sets, chains []string) {
	t := k.tables[tableKey{f, nft.TableName}]
	if t == nil {
		return nil, nil
	}
	return slices.Sorted(maps.Keys(t.sets)), slices.Sorted(maps.Keys(t.chains))
}

// TableNames lists the names of all tables, with repetitions for several families.
func (k *Kernel) TableNames() []string {
	var out []string
	for key := range k.tables {
		out = append(out, key.name)
	}
	slices.Sort(out)
	return out
}

// Elements lists the elements of a set, nil if there is no such set.
func (k *Kernel) Elements(f nft.Family, name string) []nft.Element {
	t := k.tables[tableKey{f, nft.TableName}]
	if t == nil || t.sets[name] == nil {
		return nil
	}
	return t.sets[name].list()
}
