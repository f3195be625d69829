// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// Content is what a table in the kernel holds.
type Content struct {
	Family Family
	Exists bool
	// Dormant means that the table is switched off: its chains are attached to no hook.
	Dormant bool
	// Chains by name, with the fingerprints of their rules in order; 0 stands for a rule that is not ours.
	Chains map[string]ChainContent
	// Sets by name.
	Sets map[string]SetContent
	// Elements of the sets in SetID order, interval sets as ranges, without those of the verdict maps.
	Elements []Element
	// Policies, Programs and Draws are the keys of the verdict maps of these names.
	Policies map[Program]bool
	Programs map[Program]bool
	Draws    map[Program]bool
}

// NewContent returns the Content of a family without a table.
func NewContent(f Family) *Content {
	return &Content{Family: f, Chains: map[string]ChainContent{}, Sets: map[string]SetContent{},
		Policies: map[Program]bool{}, Programs: map[Program]bool{}, Draws: map[Program]bool{}}
}

// Readable lists the named sets that exist and are declared as this version declares them.
func (c *Content) Readable() (out []SetID) {
	specs := setSpecs()
	for id := range specs {
		if s, ok := c.Sets[specs[id].name]; ok && s.matches(c.Family, &specs[id]) {
			out = append(out, SetID(id))
		}
	}
	return out
}

// Add takes in the elements of a set, in the order of Readable.
func (c *Content) Add(id SetID, elements []Element) {
	if !id.IsVerdictMap() {
		c.Elements = append(c.Elements, elements...)
		return
	}
	programs := map[SetID]map[Program]bool{Policies: c.Policies, Programs: c.Programs, Draws: c.Draws}[id]
	for _, e := range elements {
		if p := Program(binary.NativeEndian.Uint32([]byte(e.Key))); e.Data == p.verdict() {
			programs[p] = true
		}
	}
}

// Leads reports whether the verdict map of the program's kind leads to its chain.
func (c *Content) Leads(p Program) bool {
	switch {
	case p.Kind().IsPolicy():
		return c.Policies[p]
	case p.Kind().IsDraw():
		return c.Draws[p]
	}
	return c.Programs[p]
}

// dispatcher is the verdict map of the program's kind.
func dispatcher(p Program) SetID {
	switch {
	case p.Kind().IsPolicy():
		return Policies
	case p.Kind().IsDraw():
		return Draws
	}
	return Programs
}

// verdict is the datum of a program in its verdict map.
func (p Program) verdict() string {
	if p.Kind().IsPolicy() {
		return "jump " + p.Chain()
	}
	return "goto " + p.Chain()
}

// dispatchTo adds or deletes programs of a verdict map.
func (b *Batch) dispatchTo(f Family, m SetID, programs []Program, deletion bool) {
	if len(programs) == 0 {
		return
	}
	op := Op{Kind: AddElements, Family: f}
	if deletion {
		op.Kind = DeleteElements
	}
	for _, p := range programs {
		op.Elements = append(op.Elements, Element{Set: m, Key: string(appendClassID(nil, uint32(p))), Data: p.verdict()})
	}
	b.Add(op)
}

// ChainContent is a chain as the kernel has it.
type ChainContent struct {
	Hook *Hook
	// Dropping means that packets which no rule decides on are dropped. Our chains accept them.
	Dropping bool
	Rules    []uint64
}

// SetContent is the declaration of a set.
type SetContent struct {
	// Flags are NFT_SET_*, KeyType and DataType nft's numbers of the types (datatype.h), lengths are in bytes.
	Flags, KeyType, KeyLen, DataType, DataLen uint32
	// Size bounds a set that the data path writes; 0 is no bound.
	Size uint32
	// Timeout is how long elements live; 0 is for ever.
	Timeout time.Duration
	// Counting gives each element a counter of packets.
	Counting bool
	Comment  string
}

// Snapshot is a table together with its rules as the kernel has them, for readers that did not write the table.
type Snapshot struct {
	*Content
	// Rules of each chain in order. An expression that this version does not know is nil.
	Rules map[string][]Rule
	// Steady is false if parts of the table may be of different moments.
	Steady bool
}

// nft's numbers of types (enum datatypes) that Services need.
const (
	nfProtoType   = 2
	ipv4AddrType  = 7
	ipv6AddrType  = 8
	inetProtoType = 12
	inetPortType  = 13
	// ClassIDType is the type of programs, slots and ids, in host byte order.
	ClassIDType = 23
)

// typeBits is the width of one type's number in that of a concatenation (TYPE_BITS).
const typeBits = 6

// typeLength is the length in bytes of a value of one type.
func typeLength(t uint32) uint32 {
	switch t {
	case nfProtoType, inetProtoType:
		return 1
	case inetPortType:
		return 2
	case ipv6AddrType, unix.NFT_DATA_VERDICT:
		return 16
	}
	return 4
}

// FieldLengths returns the lengths in bytes of the fields of a type, several for a concatenation.
func FieldLengths(t uint32) (out []uint32) {
	for ; t != 0; t >>= typeBits {
		out = append([]uint32{typeLength(t & (1<<typeBits - 1))}, out...)
	}
	return out
}
