// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rule is one rule of a chain: its expressions and what they are for.
type Rule struct {
	Comment string
	Exprs   []expr.Any
}

// reg0 is the first 32-bit register, NFT_REG32_00. A concatenated key fills it and those behind it.
const reg0 = unix.NFT_REG32_00

// verdictReg is the register that a verdict map's result goes to.
const verdictReg = unix.NFT_REG_VERDICT

// load puts one field of a packet into a register.
type load struct {
	words int // 32-bit registers taken
	into  func(reg uint32) expr.Any
}

// lang builds expressions for one family.
type lang struct{ f Family }

// addr loads the address that is i-th in the IP header: 0 the source, 1 the destination (RFC 791, RFC 8200).
func (l lang) addr(i int) load {
	n, first := l.f.AddrLen(), 12
	if l.f == IPv6 {
		first = 8
	}
	return load{n / 4, func(reg uint32) expr.Any {
		return &expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseNetworkHeader,
			Offset: uint32(first + i*n), Len: uint32(n),
		}
	}}
}

func (l lang) saddr() load { return l.addr(0) }
func (l lang) daddr() load { return l.addr(1) }

// dport loads the destination port, at one place in TCP, UDP and SCTP.
func dport() load {
	return load{1, func(reg uint32) expr.Any {
		return &expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2,
		}
	}}
}

func meta(k expr.MetaKey) load {
	return load{1, func(reg uint32) expr.Any { return &expr.Meta{Key: k, Register: reg} }}
}

func l4proto() load  { return meta(expr.MetaKeyL4PROTO) }
func priority() load { return meta(expr.MetaKeyPRIORITY) }

// vip is the key of what a packet is addressed to; port the same for a NodePort.
func (l lang) vip() []load { return []load{l.daddr(), l4proto(), dport()} }
func port() []load         { return []load{l4proto(), dport()} }

// key loads fields into consecutive registers from reg0 on.
func key(fields []load) []expr.Any {
	var out []expr.Any
	reg := uint32(reg0)
	for _, f := range fields {
		out = append(out, f.into(reg))
		reg += uint32(f.words)
	}
	return out
}

// in matches when the key is in the set.
func in(set string, fields ...load) []expr.Any {
	return append(key(fields), &expr.Lookup{SourceRegister: reg0, SetName: set})
}

// notIn matches when it is not.
func notIn(set string, fields ...load) []expr.Any {
	return append(key(fields), &expr.Lookup{SourceRegister: reg0, SetName: set, Invert: true})
}

// setPriority stores reg0 in the packet's priority, from where the next rule can read it.
func setPriority() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg0}
}

// find sets the priority to what the map has for the key; a miss ends the rule.
func find(m string, fields ...load) []expr.Any {
	return append(key(fields), &expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: m}, setPriority())
}

// dispatch evaluates the verdict that the map has for the priority.
func dispatch(m SetID) []expr.Any {
	return append(key([]load{priority()}),
		&expr.Lookup{SourceRegister: reg0, DestRegister: verdictReg, IsDestRegSet: true, SetName: m.String()})
}

func immediate(v uint32) expr.Any {
	return &expr.Immediate{Register: reg0, Data: binary.NativeEndian.AppendUint32(nil, v)}
}

// random draws one of n slots of a view.
func random(v View, n uint32) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: reg0, Modulus: n, Type: unix.NFT_NG_RANDOM, Offset: uint32(NewSlot(v, 0))}, setPriority(),
	}
}

// slot takes one slot.
func slot(v View, i int) []expr.Any {
	return []expr.Any{immediate(uint32(NewSlot(v, i))), setPriority()}
}

// dnat translates to the endpoint that the map has for the key; a miss ends the rule.
func (l lang) dnat(m string, fields []load) []expr.Any {
	portReg := uint32(reg0 + l.f.AddrLen()/4)
	return append(key(fields),
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: m},
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: uint32(l.f),
			RegAddrMin: reg0, RegAddrMax: reg0, RegProtoMin: portReg, RegProtoMax: portReg,
		})
}

// remember adds, updates or deletes the client's entry in a sticky map; the datum is the priority.
func (l lang) remember(op uint32, m string, timeout time.Duration) []expr.Any {
	dataReg := uint32(reg0 + l.f.AddrLen()/4)
	return []expr.Any{
		l.saddr().into(reg0), priority().into(dataReg),
		&expr.Dynset{SrcRegKey: reg0, SrcRegData: dataReg, SetName: m, Operation: op, Timeout: timeout},
	}
}

func verdict(k expr.VerdictKind, chain string) expr.Any { return &expr.Verdict{Kind: k, Chain: chain} }

func jump(chain string) expr.Any { return verdict(expr.VerdictJump, chain) }
func goTo(chain string) expr.Any { return verdict(expr.VerdictGoto, chain) }
func drop() []expr.Any           { return []expr.Any{&expr.Counter{}, verdict(expr.VerdictDrop, "")} }
func equal(v []byte) expr.Any    { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: v} }
func notEqual(v []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: v} }
func native(v uint32) []byte     { return binary.NativeEndian.AppendUint32(nil, v) }

// mask keeps the bits of reg0 that are in m and then flips those in x.
func mask(m, x uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(m), Xor: native(x)}
}

// maskAt keeps the first bits of the address in a register.
func (l lang) maskAt(reg uint32, bits int) expr.Any {
	n := l.f.AddrLen()
	m := make([]byte, n)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(n), Mask: m, Xor: make([]byte, n)}
}

// Bits of enum ip_conntrack_status and of nft's ct state.
const (
	ctStatusDNAT = 1 << 5
	ctStateNew   = 1 << 3
)

// ctHas matches when one of the bits of a conntrack field is set.
func ctHas(k expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{&expr.Ct{Key: k, Register: reg0}, mask(bits, 0), notEqual(native(0))}
}

func ctNew() []expr.Any  { return ctHas(expr.CtKeySTATE, ctStateNew) }
func dnated() []expr.Any { return ctHas(expr.CtKeySTATUS, ctStatusDNAT) }

// fibLocal matches when the source or the destination is an address of the node.
func fibLocal(source bool) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg0, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source},
		equal(native(unix.RTN_LOCAL)),
	}
}

// notLoopback matches destinations outside 127.0.0.0/8 and ::1.
func (l lang) notLoopback() []expr.Any {
	if l.f == IPv6 {
		return append(key([]load{l.daddr()}), notEqual(appendAddr(nil, netip.IPv6Loopback())))
	}
	// 127.0.0.0/8: the first byte of the destination.
	return []expr.Any{
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1},
		notEqual([]byte{127}),
	}
}

// iifname matches the name of the input interface, or its beginning.
func iifname(name string, prefix, not bool) []expr.Any {
	b := []byte(name)
	if !prefix {
		b = make([]byte, unix.IFNAMSIZ)
		copy(b, name)
	}
	cmp := equal(b)
	if not {
		cmp = notEqual(b)
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0}, cmp}
}

// all joins expression lists into one rule's.
func all(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func one(e ...expr.Any) []expr.Any { return e }
