// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import "fmt"

// Batch is one nf_tables transaction as a value: the kernel carries out all of it or nothing. It is also the order in which
// the kernel validates the operations, so callees come before callers, and an element is deleted before another takes its
// key. A Batch must not be changed once it was given to a connection. Not safe for concurrent use.
type Batch struct{ Ops []Op }

// OpKind is the kind of an operation.
type OpKind uint8

// The operations. What Add finds in the kernel it leaves as it is, except AddTable, which sets the flags, and AddRules, which
// appends.
const (
	AddTable OpKind = iota
	DeleteTable
	AddSet
	DeleteSet
	AddChain // without rules
	FlushChain
	DeleteChain
	AddRules
	DeleteRule
	AddElements
	DeleteElements
)

// Op is one operation of a Batch. Which fields count depends on the kind.
type Op struct {
	Kind   OpKind
	Family Family
	Table  string
	Name   string     // of the set, the chain or the chain of the rules; empty if the elements name their sets
	Flags  uint32     // of AddTable (NFT_TABLE_F_*)
	Set    SetContent // of AddSet
	Chain  *Chain     // of AddChain and AddRules
	Handle uint64     // of DeleteRule
	// Elements are those of AddElements and DeleteElements.
	Elements []Element
}

// String describes the operation for an error.
func (o *Op) String() string {
	verb := [...]string{
		AddTable: "add table", DeleteTable: "delete table", AddSet: "add set", DeleteSet: "delete set",
		AddChain: "add chain", FlushChain: "flush chain", DeleteChain: "delete chain", AddRules: "add rule to",
		DeleteRule: "delete rule of", AddElements: "add elements of", DeleteElements: "delete elements of",
	}[o.Kind]
	return fmt.Sprintf("%s %s %s %s", verb, o.Family, o.Table, o.Name)
}

// Add appends an operation; without a table's name it concerns the Services' table.
func (b *Batch) Add(o Op) {
	if o.Table == "" {
		o.Table = TableName
	}
	b.Ops = append(b.Ops, o)
}

// Append adds the operations of another Batch.
func (b *Batch) Append(other *Batch) { b.Ops = append(b.Ops, other.Ops...) }

// Empty reports whether there is nothing to commit.
func (b *Batch) Empty() bool { return len(b.Ops) == 0 }

// Elements is the number of elements that the batch adds and deletes, without those of verdict maps.
func (b *Batch) Elements() (n int) {
	for i := range b.Ops {
		n += b.Ops[i].Counted()
	}
	return n
}

// Counted is the number of elements of one operation, without those of verdict maps, which it has apart from others.
func (o *Op) Counted() int {
	if len(o.Elements) > 0 && o.Elements[0].Set.IsVerdictMap() {
		return 0
	}
	return len(o.Elements)
}

// AddTable makes the family's table if there is none, and wakes it if it is dormant.
func (b *Batch) AddTable(f Family) { b.Add(Op{Kind: AddTable, Family: f}) }

// DeleteTable removes the table of a name with everything in it.
func (b *Batch) DeleteTable(f Family, name string) {
	b.Add(Op{Kind: DeleteTable, Family: f, Table: name})
}

// on adds an operation on a named part of the Services' table.
func (b *Batch) on(f Family, kind OpKind, name string) { b.Add(Op{Kind: kind, Family: f, Name: name}) }

func (b *Batch) addSet(f Family, s *setSpec) {
	b.Add(Op{Kind: AddSet, Family: f, Name: s.name, Set: s.content(f)})
}

func (b *Batch) addChain(f Family, c *Chain) {
	b.Add(Op{Kind: AddChain, Family: f, Name: c.Name, Chain: c})
}

func (b *Batch) addRules(f Family, c *Chain) {
	b.Add(Op{Kind: AddRules, Family: f, Name: c.Name, Chain: c})
}

// AddChains makes chains and then their rules.
func (b *Batch) AddChains(f Family, chains []Chain) {
	for i := range chains {
		b.addChain(f, &chains[i])
	}
	for i := range chains {
		b.addRules(f, &chains[i])
	}
}

// Change deletes and adds elements.
func (b *Batch) Change(f Family, c Change) {
	if len(c.Delete) > 0 {
		b.Add(Op{Kind: DeleteElements, Family: f, Elements: c.Delete})
	}
	if len(c.Add) > 0 {
		b.Add(Op{Kind: AddElements, Family: f, Elements: c.Add})
	}
}

// Family is the family of the batch's first operation.
func (b *Batch) Family() Family { return b.Ops[0].Family }
