// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Content is what a table in the kernel holds.
type Content struct {
	Family Family
	Exists bool
	// Dormant means that the table is switched off: its chains are attached to no hook.
	Dormant bool
	// Replace makes Reconcile replace the table as a whole. Reading leaves it false.
	Replace bool
	Chains  map[string]ChainContent // by name
	Sets    map[string]SetContent   // by name
	// Elements of the named sets in SetID order, interval sets as ranges, without those of the verdict maps.
	Elements []Element
	// Verdicts are the elements of the verdict maps, with their data as in Element.Data.
	Verdicts map[VerdictKey]string
}

// VerdictKey is the key of an element of a verdict map.
type VerdictKey struct {
	Map     SetID
	Program Program
}

// ChainContent is a chain as the kernel has it.
type ChainContent struct {
	Hook *Hook
	// Dropping means that packets which no rule decides on are dropped. Our chains accept them.
	Dropping bool
	// Rules are the fingerprints of the rules in order; 0 stands for a rule that is not ours.
	Rules []uint64
	// Data are the parameters that the chain's rules were made from (see Content.Config).
	Data string
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

// NewContent returns the Content of a family without a table.
func NewContent(f Family) *Content {
	return &Content{Family: f, Chains: map[string]ChainContent{}, Sets: map[string]SetContent{}, Verdicts: map[VerdictKey]string{}}
}

// Readable lists the named sets that exist and are declared as this version declares them, in SetID order.
func (c *Content) Readable() (out []SetID) {
	for name, have := range c.Sets {
		if id, ok := ParseSet(name); ok {
			if spec := id.spec(); have.matches(c.Family, &spec) {
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Add takes in the elements of a set. Sets have to be added in the order of Readable.
func (c *Content) Add(id SetID, elements []Element) {
	if !id.IsVerdictMap() {
		c.Elements = append(c.Elements, elements...)
		return
	}
	for _, e := range elements {
		key := decoder{e.Key, true} // of an element for all keys ("*"), which this version does not know, program 0
		c.Verdicts[VerdictKey{id, Program(key.classID())}] = e.Data
	}
}

// Leads reports whether the verdict map of the program's kind leads to its chain.
func (c *Content) Leads(p Program) bool { return c.Verdicts[p.verdictKey()] == p.verdict() }

// verdictKey is where a program belongs.
func (p Program) verdictKey() VerdictKey {
	switch {
	case p.Kind().IsPolicy():
		return VerdictKey{Policies, p}
	case p.Kind().IsDraw():
		return VerdictKey{Draws, p}
	}
	return VerdictKey{Programs, p}
}

// verdict is the datum of a program in its verdict map.
func (p Program) verdict() string {
	if p.Kind().IsPolicy() {
		return "jump " + p.Chain()
	}
	return "goto " + p.Chain()
}

// element is an element of a verdict map.
func (k VerdictKey) element() Element {
	return Element{Set: k.Map, Key: string(appendClassID(nil, uint32(k.Program))), Data: k.Program.verdict()}
}

// Config returns the configuration that the rules were made from; it is stored with them. The zero Config stands for a table
// of another version.
func (c *Content) Config() (cfg Config) {
	_ = json.Unmarshal([]byte(c.Chains[configChain].Data), &cfg)
	_ = json.Unmarshal([]byte(c.Chains[balancerChain].Data), &cfg.External)
	return cfg
}

// The chains with the stored configuration, whose first rules have no comment. The user data of a table or set cannot be
// changed once it exists; a rule is replaced together with its user data.
const (
	configChain   = "masquerade-mark"
	balancerChain = "refuse"
)

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

// Affinities returns the sticky views that the table has, by their numbers.
func (c *Content) Affinities() []Affinity {
	draws, decoder := map[Program]uint32{}, NewDecoder(c.Family)
	for i := range c.Elements {
		if d, ok := decoder.Decode(&c.Elements[i]); ok && c.Elements[i].Set == StickyDraws {
			draws[Program(d.Slot)] = d.Program.Arg()
		}
	}
	var out []Affinity
	for owner, id := range c.affinityNumbers() {
		a := Affinity{ID: id, Owner: owner, Size: c.Sets[AffinityMap(id)].Size}
		for kind, has := range map[Kind]*bool{KindAffinity: &a.VIPs, KindNodePortAffinity: &a.NodePorts} {
			p := NewProgram(kind, id)
			if ch, ok := c.Chains[p.Chain()]; ok {
				*has = true
				_ = json.Unmarshal([]byte(ch.Data), &a)
				a.Modulus = max(a.Modulus, draws[p])
			}
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Affinity) int { return int(a.ID) - int(b.ID) })
	return out
}

// incompatible reports whether a set of ours is declared in another way than this version declares it. A set cannot be
// declared anew while rules refer to it.
func (c *Content) incompatible() bool {
	clients := affinitySpec(Affinity{})
	for name, s := range c.Sets {
		spec := clients
		if id, ok := ParseSet(name); ok {
			spec = id.spec()
		} else if !IsAffinityMap(name) {
			continue
		}
		if !s.matches(c.Family, &spec) {
			return true
		}
	}
	return false
}

func (s *SetContent) matches(f Family, spec *setSpec) bool {
	want := spec.content(f)
	// nft before 1.1 declares only concatenations of intervals as such.
	if s.Flags&^nftSetConcat != want.Flags&^nftSetConcat || s.KeyType != want.KeyType || s.KeyLen != want.KeyLen || s.Counting != want.Counting {
		return false
	}
	return !spec.isMap() || s.DataType == want.DataType && (s.DataType == unix.NFT_DATA_VERDICT || s.DataLen == want.DataLen)
}

// content is the declaration as the kernel returns it.
func (s *setSpec) content(f Family) SetContent {
	c := SetContent{Flags: s.flags(), Size: s.size, Counting: s.counting, Comment: s.comment}
	if s.dynamic && c.Size == 0 {
		c.Size = dynsetSize
	}
	c.KeyType, c.KeyLen = concat(f, s.key)
	if s.isMap() {
		c.DataType, c.DataLen = concat(f, s.data)
	}
	return c
}

// dynsetSize is the bound that the kernel gives a set which the data path writes, if it is declared without (nft_dynset_init).
const dynsetSize = 0xffff

// content is the chain as the kernel returns it.
func (ch *Chain) content(f Family) ChainContent {
	out := ChainContent{Hook: ch.Hook, Data: ch.Data}
	for i := range ch.Rules {
		_, data, err := ch.EncodeRule(f, i)
		if err != nil {
			data = nil // the commit reports it
		}
		out.Rules = append(out.Rules, RuleFingerprint(data))
	}
	return out
}

func sameHook(a, b *Hook) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
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
