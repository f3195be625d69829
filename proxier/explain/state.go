// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// state is a packet on its way, the first of a connection, and the registers.
type state struct {
	family     nft.Family
	proto      nft.Proto
	from, to   netip.AddrPort
	iif        string
	mark, prio uint32
	dnat       bool
	masquerade bool
	learned    *learned
	regs       [64]byte // NFT_REG32_00 to _15
}

// learned is what a rule stored in a sticky map on the way.
type learned struct {
	prev     *learned
	set, key string
	data     string // empty when deleted
}

// reg is the place of a register. The kernel prints the first of four 32-bit registers as a 128-bit one.
func reg(r uint32) int {
	if r >= unix.NFT_REG32_00 {
		return int(r-unix.NFT_REG32_00) * 4
	}
	return int(r-unix.NFT_REG_1) * 16
}

// put stores a value as the kernel does: padded with zeros to 32 bits.
func (s *state) put(r uint32, v []byte) {
	at := s.regs[reg(r):]
	n := copy(at, v)
	for ; n%4 != 0; n++ {
		at[n] = 0
	}
}

func (s *state) get(r uint32, n int) []byte {
	at := reg(r)
	return s.regs[at:min(at+n, len(s.regs))]
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// payload loads from the headers, of which addresses, protocol and ports are known.
func (s *state) payload(e *expr.Payload) verdict {
	var header []byte
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		header = s.network()
	case expr.PayloadBaseTransportHeader:
		header = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.from.Port()), s.to.Port())
	}
	if e.OperationType != expr.PayloadLoad || int(e.Offset+e.Len) > len(header) {
		return unknown
	}
	s.put(e.DestRegister, header[e.Offset:e.Offset+e.Len])
	return next
}

// network is the IP header (RFC 791, RFC 8200) as far as it matters.
func (s *state) network() []byte {
	if s.family == nft.IPv4 {
		h := make([]byte, 12, 20)
		h[9] = byte(s.proto)
		return append(append(h, s.from.Addr().AsSlice()...), s.to.Addr().AsSlice()...)
	}
	h := make([]byte, 8, 40)
	h[6] = byte(s.proto)
	return append(append(h, s.from.Addr().AsSlice()...), s.to.Addr().AsSlice()...)
}

func (s *state) meta(e *expr.Meta, node Node) verdict {
	if e.SourceRegister {
		v := binary.NativeEndian.Uint32(s.get(e.Register, 4))
		switch e.Key {
		case expr.MetaKeyMARK:
			s.mark = v
		case expr.MetaKeyPRIORITY:
			s.prio = v
		}
		return next
	}
	switch e.Key {
	case expr.MetaKeyL4PROTO:
		s.put(e.Register, []byte{byte(s.proto)})
	case expr.MetaKeyMARK:
		s.put(e.Register, native(s.mark))
	case expr.MetaKeyPRIORITY:
		s.put(e.Register, native(s.prio))
	case expr.MetaKeyNFPROTO:
		s.put(e.Register, []byte{byte(s.family)})
	case expr.MetaKeyIIFNAME:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, s.iif)
		s.put(e.Register, name)
	case expr.MetaKeyOIFNAME:
		name := make([]byte, unix.IFNAMSIZ)
		if node.Route != nil {
			oif, _ := node.Route(s.to.Addr())
			copy(name, oif)
		}
		s.put(e.Register, name)
	default:
		return unknown
	}
	return next
}

// Bits of nft's ct state and of enum ip_conntrack_status.
const (
	stateNew   = 1 << 3
	statusDNAT = 1 << 5
)

func (s *state) ct(e *expr.Ct) verdict {
	switch {
	case e.Key == expr.CtKeySTATE && !e.SourceRegister:
		s.put(e.Register, native(stateNew))
	case e.Key == expr.CtKeySTATUS && s.dnat:
		s.put(e.Register, native(statusDNAT))
	case e.Key == expr.CtKeySTATUS:
		s.put(e.Register, native(0))
	default:
		return unknown
	}
	return next
}

func (s *state) fib(e *expr.Fib, node Node) verdict {
	addr := s.to.Addr()
	if e.FlagSADDR {
		addr = s.from.Addr()
	}
	if !e.ResultADDRTYPE {
		return unknown
	}
	kind := uint32(unix.RTN_UNICAST)
	if node.isLocal(addr) {
		kind = unix.RTN_LOCAL
	}
	s.put(e.Register, native(kind))
	return next
}

func (s *state) bitwise(e *expr.Bitwise) {
	v := bytes.Clone(s.get(e.SourceRegister, int(e.Len)))
	for i := range v {
		if i < len(e.Mask) && i < len(e.Xor) {
			v[i] = v[i]&e.Mask[i] ^ e.Xor[i]
		}
	}
	s.put(e.DestRegister, v)
}

func (s *state) compare(e *expr.Cmp) verdict {
	c := bytes.Compare(s.get(e.Register, len(e.Data)), e.Data)
	ok := false
	switch e.Op {
	case expr.CmpOpEq:
		ok = c == 0
	case expr.CmpOpNeq:
		ok = c != 0
	case expr.CmpOpLt:
		ok = c < 0
	case expr.CmpOpLte:
		ok = c <= 0
	case expr.CmpOpGt:
		ok = c > 0
	case expr.CmpOpGte:
		ok = c >= 0
	}
	if ok {
		return next
	}
	return mismatch
}

// nat translates the destination. Our rules always give address and port.
func (s *state) nat(e *expr.NAT) verdict {
	if e.Type != expr.NATTypeDestNAT || e.RegAddrMin == 0 {
		return unknown
	}
	addr, ok := netip.AddrFromSlice(s.get(e.RegAddrMin, s.family.AddrLen()))
	port := s.to.Port()
	if e.RegProtoMin != 0 {
		port = binary.BigEndian.Uint16(s.get(e.RegProtoMin, 2))
	}
	if !ok {
		return unknown
	}
	s.to, s.dnat = netip.AddrPortFrom(addr, port), true
	return accept
}
