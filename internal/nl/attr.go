// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

// typeMask removes the flags of an attribute's type (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Next splits the first attribute off b: its type without flags, its value and what follows. Both are parts of b. It
// reports false at the end and at an attribute that is cut off, which the kernel never sends.
func Next(b []byte) (typ uint16, value, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlAttr {
		return 0, nil, nil, false
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < unix.SizeofNlAttr || n > len(b) {
		return 0, nil, nil, false
	}
	return binary.NativeEndian.Uint16(b[2:]) & typeMask, b[unix.SizeofNlAttr:n], b[min((n+3)&^3, len(b)):], true
}

// Attrs iterates over the attributes in b. The values are parts of b.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for {
			typ, value, rest, ok := Next(b)
			if !ok || !yield(typ, value) {
				return
			}
			b = rest
		}
	}
}

// Find returns the value of the first attribute of a type, nil if there is none.
func Find(b []byte, want uint16) []byte {
	for typ, value := range Attrs(b) {
		if typ == want {
			return value
		}
	}
	return nil
}

// Host reads an integer of 1, 2 or 4 bytes in host order, as rtnetlink has it. It is 0 for any other length.
func Host(v []byte) uint32 {
	switch len(v) {
	case 1:
		return uint32(v[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(v))
	case 4:
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// Net reads an integer of 1, 2, 4 or 8 bytes in network order, as nf_tables and ctnetlink have it. It is 0 for any
// other length.
func Net(v []byte) uint64 {
	switch len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(v))
	case 4:
		return uint64(binary.BigEndian.Uint32(v))
	case 8:
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// Addr reads an address. It is invalid for any length but 4 and 16.
func Addr(v []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(v)
	return a
}

// Text reads a string that may end with zero bytes.
func Text(v []byte) string { return string(bytes.TrimRight(v, "\x00")) }

// Buffer collects attributes (struct nlattr: length and type in host order, padded to 4 bytes). An attribute holds at
// most 65,531 bytes.
type Buffer []byte

func (b *Buffer) header(typ uint16, n int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(unix.SizeofNlAttr+n))
	*b = binary.NativeEndian.AppendUint16(*b, typ)
}

func (b *Buffer) pad() {
	for len(*b)%unix.NLA_ALIGNTO != 0 {
		*b = append(*b, 0)
	}
}

// Bytes appends an attribute.
func (b *Buffer) Bytes(typ uint16, v ...byte) {
	b.header(typ, len(v))
	*b = append(*b, v...)
	b.pad()
}

// String appends the bytes of a string, without a terminating zero.
func (b *Buffer) String(typ uint16, v string) {
	b.header(typ, len(v))
	*b = append(*b, v...)
	b.pad()
}

// Name appends a string with a terminating zero.
func (b *Buffer) Name(typ uint16, v string) {
	b.header(typ, len(v)+1)
	*b = append(append(*b, v...), 0)
	b.pad()
}

// Addr appends an address of 4 or 16 bytes.
func (b *Buffer) Addr(typ uint16, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		b.Bytes(typ, v[:]...)
		return
	}
	v := a.As16()
	b.Bytes(typ, v[:]...)
}

// Net16 appends a number in network order.
func (b *Buffer) Net16(typ, v uint16) { b.Bytes(typ, byte(v>>8), byte(v)) }

// Net32 appends a number in network order.
func (b *Buffer) Net32(typ uint16, v uint32) {
	b.header(typ, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

// Host32 appends a number in host order.
func (b *Buffer) Host32(typ uint16, v uint32) {
	b.header(typ, 4)
	*b = binary.NativeEndian.AppendUint32(*b, v)
}

// Open starts a nested attribute and returns where it begins, which Close takes.
func (b *Buffer) Open(typ uint16) (start int) {
	start = len(*b)
	b.header(typ|unix.NLA_F_NESTED, 0)
	return start
}

// Close ends the nested attribute that begins at start.
func (b *Buffer) Close(start int) {
	binary.NativeEndian.PutUint16((*b)[start:], uint16(len(*b)-start))
}
