// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"hash/maphash"
)

// elementIndex finds elements of a list by set and key. It takes eight bytes or so for each and holds no pointers to them,
// where a map of elements takes 150: a restart compares every element there is.
type elementIndex struct {
	seed  maphash.Seed
	elems []Element
	slots []int32 // places in elems, from 1; open addressing, a power of two, at most half full
}

// newElementIndex indexes elems, which must not change afterwards.
func newElementIndex(elems []Element) *elementIndex {
	x := emptyIndex(len(elems))
	x.elems = elems
	for i := range elems {
		at := x.start(elems[i].Set, maphash.String(x.seed, elems[i].Key))
		for x.slots[at] != 0 {
			at = x.next(at)
		}
		x.slots[at] = int32(i + 1)
	}
	return x
}

// emptyIndex returns an index with room for n elements.
func emptyIndex(n int) *elementIndex {
	size := 8
	for size < 2*n {
		size *= 2
	}
	return &elementIndex{seed: maphash.MakeSeed(), slots: make([]int32, size)}
}

// start is where the search for an element begins, by the hash of its key.
func (x *elementIndex) start(set SetID, hash uint64) uint64 {
	// The sets' keys may be the same bytes: spread them by a multiple of an odd number (2^64 divided by the golden ratio).
	return (hash + uint64(set)*0x9e3779b97f4a7c15) & uint64(len(x.slots)-1)
}

func (x *elementIndex) next(at uint64) uint64 { return (at + 1) & uint64(len(x.slots)-1) }

// find returns the place of an element that equals e, -1 if there is none.
func (x *elementIndex) find(e *Element) int {
	for at := x.start(e.Set, maphash.String(x.seed, e.Key)); x.slots[at] != 0; at = x.next(at) {
		if i := x.slots[at] - 1; x.elems[i] == *e {
			return int(i)
		}
	}
	return -1
}

// data returns the datum of the element with a key, empty if there is none.
func (x *elementIndex) data(set SetID, key []byte) string {
	for at := x.start(set, maphash.Bytes(x.seed, key)); x.slots[at] != 0; at = x.next(at) {
		if e := &x.elems[x.slots[at]-1]; e.Set == set && e.Key == string(key) {
			return e.Data
		}
	}
	return ""
}

// Distinct removes the elements whose key came before and reports whether there were any: a dump of a set that the kernel
// resizes may list one twice. The result shares the list's memory.
func Distinct(list []Element) (out []Element, repeated bool) {
	x := emptyIndex(len(list))
	out = list[:0]
	for i := range list {
		e := &list[i]
		at := x.start(e.Set, maphash.String(x.seed, e.Key))
		for x.slots[at] != 0 && !out[x.slots[at]-1].sameKey(e) {
			at = x.next(at)
		}
		if x.slots[at] == 0 {
			out = append(out, *e)
			x.slots[at] = int32(len(out))
		}
	}
	return out, len(out) < len(list)
}
