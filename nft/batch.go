// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Batch is one nf_tables transaction under construction: the kernel takes all of it or none. The order of calls
// is the order in which the kernel looks at the parts, so callees come before callers and what is deleted before
// what takes its key.
type Batch struct {
	msgs []netlink.Message
	what []subject // of msgs[i]
	err  error     // the first that an encoder met
	size int       // bytes of all messages
	elem int       // elements
	// late is a change that is not encoded yet, behind all messages: a long series of batches need not be held in both forms.
	late   Change
	lateOf Family
}

// subject is what a message is about, for errors.
type subject struct {
	family Family
	op     string
	name   string
	elems  []Element // those of the message, in order
	add    bool
}

func (s subject) String() string {
	return fmt.Sprintf("%s %s %s %s", s.op, s.family, TableName, s.name)
}

// Elements is the number of elements that the batch adds and deletes.
func (b *Batch) Elements() int { return b.elem }

// Size is the number of bytes of all messages.
func (b *Batch) Size() int {
	b.Encode()
	return b.size
}

// Encode makes messages of all that was added. Commit does it too: whoever has several batches can have the next encoded
// while the kernel is busy with one.
func (b *Batch) Encode() {
	c := b.late
	b.late = Change{}
	b.elements(b.lateOf, unix.NFT_MSG_DELSETELEM, 0, c.Delete)
	b.elements(b.lateOf, unix.NFT_MSG_NEWSETELEM, netlink.Create, c.Add)
}

// Append adds all that other holds.
func (b *Batch) Append(other *Batch) {
	b.Encode()
	other.Encode()
	b.msgs = append(b.msgs, other.msgs...)
	b.what = append(b.what, other.what...)
	b.size += other.size
	b.elem += other.elem
	if b.err == nil {
		b.err = other.err
	}
}

// Empty tells whether there is nothing to commit.
func (b *Batch) Empty() bool { return len(b.msgs) == 0 && b.late.Len() == 0 && b.err == nil }

// maxMessage bounds the element list of one message. Its length is 16 bits wide, and 32 KiB keeps a
// message within what a netlink reader peeks at; longer lists gain nothing.
const maxMessage = 32 << 10

func (b *Batch) add(typ uint16, flags netlink.HeaderFlags, body wire, s subject) {
	if b.late.Len() > 0 {
		b.Encode()
	}
	b.msgs = append(b.msgs, netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ),
			Flags: netlink.Request | flags,
		},
		Data: body,
	})
	b.what = append(b.what, s)
	b.size += len(body) + unix.NLMSG_HDRLEN
}

// AddTable makes the family's table if there is none, and wakes it if it is dormant.
func (b *Batch) AddTable(f Family) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_TABLE_NAME, TableName)
	w.u32(unix.NFTA_TABLE_FLAGS, 0)
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, w, subject{family: f, op: "add table"})
}

// DeleteTable removes the table named name with all in it.
func (b *Batch) DeleteTable(f Family, name string) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_TABLE_NAME, name)
	b.add(unix.NFT_MSG_DELTABLE, 0, w, subject{family: f, op: "delete table", name: name})
}

// addSet makes a set; id is distinct within the batch.
func (b *Batch) addSet(f Family, s *setSpec) {
	id := uint32(len(b.msgs) + 1)
	b.add(unix.NFT_MSG_NEWSET, netlink.Create, appendSet(nfgenmsg(f), f, s, id), subject{family: f, op: "add set", name: s.name})
}

func (b *Batch) deleteSet(f Family, name string) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_SET_TABLE, TableName)
	w.name(unix.NFTA_SET_NAME, name)
	b.add(unix.NFT_MSG_DELSET, 0, w, subject{family: f, op: "delete set", name: name})
}

func (b *Batch) addChain(f Family, c *Chain) {
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, appendChain(nfgenmsg(f), c), subject{family: f, op: "add chain", name: c.Name})
}

func (b *Batch) deleteChain(f Family, name string) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_CHAIN_TABLE, TableName)
	w.name(unix.NFTA_CHAIN_NAME, name)
	b.add(unix.NFT_MSG_DELCHAIN, 0, w, subject{family: f, op: "delete chain", name: name})
}

// flushChain deletes all rules of a chain.
func (b *Batch) flushChain(f Family, name string) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_RULE_TABLE, TableName)
	w.name(unix.NFTA_RULE_CHAIN, name)
	b.add(unix.NFT_MSG_DELRULE, 0, w, subject{family: f, op: "flush chain", name: name})
}

func (b *Batch) addRules(f Family, c *Chain) {
	for i := range c.Rules {
		w, err := appendRule(nfgenmsg(f), f, c.Name, &c.Rules[i])
		if err != nil && b.err == nil {
			b.err = err
		}
		b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, w, subject{family: f, op: "add rule to", name: c.Name})
	}
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

// Change deletes and adds elements, those of one set in one message as far as they fit. c must not be changed before the
// batch is committed.
func (b *Batch) Change(f Family, c Change) {
	b.Encode()
	b.late, b.lateOf = c, f
	b.elem += c.Len()
}

// elements adds messages about elements, set by set.
func (b *Batch) elements(f Family, typ uint16, flags netlink.HeaderFlags, elems []Element) {
	var ends [numSets]int // where in the sorted list each set's elements end
	for i := range elems {
		ends[elems[i].Set]++
	}
	for id := 1; id < len(ends); id++ {
		ends[id] += ends[id-1]
	}
	sorted := make([]Element, len(elems))
	for i := len(elems) - 1; i >= 0; i-- {
		at := &ends[elems[i].Set]
		*at--
		sorted[*at] = elems[i]
	}
	for len(sorted) > 0 {
		of := 1
		for of < len(sorted) && sorted[of].Set == sorted[0].Set {
			of++
		}
		for list := sorted[:of]; len(list) > 0; {
			list = list[b.elementMessage(f, typ, flags, sorted[0].Set, list):]
		}
		sorted = sorted[of:]
	}
}

// elementMessage adds one message with the first n elements of list that fit, and returns n.
func (b *Batch) elementMessage(f Family, typ uint16, flags netlink.HeaderFlags, set SetID, list []Element) int {
	deletion := typ == unix.NFT_MSG_DELSETELEM
	w := make(wire, 0, min(maxMessage+256, 64+len(list)*128))
	w = append(w, nfgenmsg(f)...)
	w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	w.name(unix.NFTA_SET_ELEM_LIST_SET, set.String())
	elems := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	n := 0
	for n < len(list) && len(w) < maxMessage {
		w.appendElement(&list[n], deletion)
		n++
	}
	w.close(elems)
	op := "add elements of"
	if deletion {
		op = "delete elements of"
	}
	b.add(typ, flags, w, subject{family: f, op: op, name: set.String(), elems: list[:n], add: !deletion})
	return n
}

// apart returns the batch with the elements of one message in messages of their own.
func (b *Batch) apart(among subject) *Batch {
	out := &Batch{err: b.err, elem: b.elem}
	for i, m := range b.msgs {
		s := b.what[i]
		if len(s.elems) < 2 || &s.elems[0] != &among.elems[0] || s.add != among.add {
			out.msgs, out.what, out.size = append(out.msgs, m), append(out.what, s), out.size+len(m.Data)+unix.NLMSG_HDRLEN
			continue
		}
		typ, flags := uint16(unix.NFT_MSG_DELSETELEM), netlink.HeaderFlags(0)
		if s.add {
			typ, flags = unix.NFT_MSG_NEWSETELEM, netlink.Create
		}
		for j := range s.elems {
			out.elementMessage(s.family, typ, flags, s.elems[j].Set, s.elems[j:j+1])
		}
	}
	return out
}

// dispatchTo adds or deletes programs of a verdict map.
func (b *Batch) dispatchTo(f Family, m string, programs []Program, deletion bool) {
	for part := range slices.Chunk(programs, maxDispatch) {
		b.dispatchMessage(f, m, part, deletion)
	}
}

// maxDispatch bounds the programs of one message: each takes less than 64 bytes, and the list's length has 16 bits.
const maxDispatch = 512

func (b *Batch) dispatchMessage(f Family, m string, programs []Program, deletion bool) {
	w := nfgenmsg(f)
	w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	w.name(unix.NFTA_SET_ELEM_LIST_SET, m)
	elems := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, p := range programs {
		w.appendDispatch(p, deletion)
	}
	w.close(elems)
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), netlink.HeaderFlags(netlink.Create)
	if deletion {
		typ, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	b.add(typ, flags, w, subject{family: f, op: "map programs in", name: m})
}

// Find returns the first element added that satisfies ok, nil if there is none. It is meant for tests that fail
// on purpose.
func (b *Batch) Find(ok func(Element) bool) *Element {
	b.Encode()
	for _, s := range b.what {
		for i := range s.elems {
			if s.add && ok(s.elems[i]) {
				return &s.elems[i]
			}
		}
	}
	return nil
}

// Family is that of the batch's first message.
func (b *Batch) Family() Family {
	b.Encode()
	return b.what[0].family
}
