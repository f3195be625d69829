// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
)

// Element is one element of a named set or map, in wire form. It is comparable: two elements are the same
// if and only if the kernel would hold the same.
type Element struct {
	Set SetID
	// Key is the key as the kernel compares it: the fields one after the other, each padded with zeros to a
	// multiple of 4 bytes (NFT_REG32_SIZE); addresses and ports big endian, classids in host order.
	Key string
	// End is the last key of an interval in a concatenated interval set, the first key behind it in a plain one,
	// and empty elsewhere.
	End string
	// Data is the datum of a map, in the same form; of a verdict map it is text as "goto cluster-3".
	Data string
	// Comment is shown by nft.
	Comment string
}

// sameKey reports whether the kernel cannot hold both. The end of an interval and the start of the next may be one address.
func (e *Element) sameKey(o *Element) bool {
	return e.Set == o.Set && e.Key == o.Key && e.End == o.End && (e.Data == IntervalEnd) == (o.Data == IntervalEnd)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func appendProto(b []byte, p Proto) []byte { return append(b, byte(p), 0, 0, 0) }

func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

func appendClassID(b []byte, v uint32) []byte { return binary.NativeEndian.AppendUint32(b, v) }

// appendFrontend appends the key by which a frontend is looked up: with its address, or without for a NodePort.
func appendFrontend(b []byte, p Proto, f *Frontend) []byte {
	if f.Kind != NodePort {
		b = appendAddr(b, f.Addr)
	}
	return appendPort(appendProto(b, p), f.Port)
}

func appendEndpoint(b []byte, e netip.AddrPort) []byte {
	return appendPort(appendAddr(b, e.Addr()), e.Port())
}

func addrKey(a netip.Addr) string { return string(appendAddr(nil, a)) }

// decoder reads fields back from wire form.
type decoder struct {
	b  string
	ok bool
}

func (d *decoder) take(n int) string {
	if len(d.b) < n {
		d.ok = false
		return zeros[:n]
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// zeros are as many as the longest field has.
const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func (d *decoder) addr(f Family) netip.Addr {
	var b [16]byte
	a, _ := netip.AddrFromSlice(b[:copy(b[:], d.take(f.AddrLen()))])
	return a
}

func (d *decoder) proto() Proto { return Proto(d.take(4)[0]) }

func (d *decoder) port() uint16 { return binary.BigEndian.Uint16([]byte(d.take(4)[:2])) }

func (d *decoder) classID() uint32 { return binary.NativeEndian.Uint32([]byte(d.take(4))) }
