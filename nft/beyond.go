// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Beyond is what the rules do for a balancer behind a device of the node, beside routes that lead there (docs/routing.md).
// With the zero value there is none, and no rule for it.
type Beyond struct {
	// Steering marks what processes of the node send to Steered frontends, and leaves it to that balancer.
	Steering bool
	// Mark is what the packet mark becomes in the bits of Mask; the others stay. Mark has no bit outside of Mask.
	Mark, Mask uint32
	// HandOff says that packets may be translated to ClusterIPs and are on their way to that balancer then: what was
	// translated is not refused.
	HandOff bool
	// Subnet is masqueraded by whatever interface but Device: nobody else can answer to it. The zero Prefix is none.
	Subnet netip.Prefix
	Device string
}

// mangle is NF_IP_PRI_MANGLE: before DNAT, so that the destination is still the VIP.
const mangle = -150

// steerChain is the chain that marks. It is of type route: the kernel looks up the route again after a mark changed.
const steerChain = "steer-output"

// steer is the chain that marks what is steered.
func (l lang) steer(b Beyond) Chain {
	set := all(one(immediate(b.Mark)), one(setMark()))
	if b.Mask != ^uint32(0) {
		set = all(key([]load{meta(expr.MetaKeyMARK)}), one(mask(^b.Mask, b.Mark), setMark()))
	}
	return Chain{steerChain, &Hook{"route", unix.NF_INET_LOCAL_OUT, mangle}, []Rule{
		{"to the balancer behind the pod gateway", all(in(Steered.String(), l.vip()...), set)},
	}}
}

func setMark() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg0}
}

// natOutput comes before the Services in nat-output: steered packets leave as they are, and where an endpoint is a process
// of this node, processes of this node get that one.
func (l lang) natOutput(b Beyond) []Rule {
	if !b.Steering {
		return nil
	}
	return []Rule{
		{"steered", l.steered(verdict(expr.VerdictReturn, ""))},
		{"to an endpoint of the node itself", l.dnat(HostEndpoints.String(), l.vip())},
	}
}

// filterOutput comes before what refuses packets that were not translated.
func (l lang) filterOutput(b Beyond) (rules []Rule) {
	if b.Steering {
		rules = append(rules, Rule{"steered", l.steered(verdict(expr.VerdictReturn, ""))})
	}
	return append(rules, handedOver(b)...)
}

// handedOver lets packets pass that were translated to a ClusterIP.
func handedOver(b Beyond) []Rule {
	if !b.HandOff {
		return nil
	}
	return []Rule{{"handed over, or on its way to an endpoint", all(dnated(), one(verdict(expr.VerdictReturn, "")))}}
}

// sources chooses the source of what leaves for the balancer behind the device, or comes from it. Steered packets get the
// address of the device, as all that processes of the node send through it on their own.
func (l lang) sources(b Beyond) (rules []Rule) {
	if b.Steering {
		rules = append(rules, Rule{"steered", l.steered(masquerade())})
	}
	if b.Subnet.IsValid() {
		rules = append(rules, Rule{"masquerade subnet", all(l.from(b.Subnet), oifnameNot(b.Device), one(masquerade()))})
	}
	return rules
}

func masquerade() expr.Any { return &expr.Masq{FullyRandom: true} }

// steered matches packets to a steered frontend.
func (l lang) steered(then expr.Any) []expr.Any {
	return append(in(Steered.String(), l.vip()...), then)
}

// from matches sources in a prefix.
func (l lang) from(p netip.Prefix) []expr.Any {
	bits := make([]byte, l.f.AddrLen())
	for i := range p.Bits() {
		bits[i/8] |= 1 << (7 - i%8)
	}
	return append(key([]load{l.saddr()}),
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: uint32(len(bits)), Mask: bits, Xor: make([]byte, len(bits))},
		equal(appendAddr(nil, p.Masked().Addr())))
}

func oifnameNot(name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0}, notEqual(b)}
}

// beyond is the inverse of the rules above.
func (s *Snapshot) beyond() Beyond {
	var b Beyond
	for _, r := range s.Rules[steerChain] {
		b.Steering, b.Mask = true, ^uint32(0)
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Immediate:
				b.Mark = number(e.Data)
			case *expr.Bitwise:
				b.Mark, b.Mask = number(e.Xor), ^number(e.Mask)
			}
		}
	}
	for _, r := range s.Rules["filter-forward"] {
		b.HandOff = b.HandOff || returns(r.Exprs)
	}
	for _, r := range s.Rules["nat-postrouting"] {
		b.readSubnet(s.Family, r.Exprs)
	}
	return b
}

// readSubnet takes prefix and device from the rule that has both. Where a prefix ends with a byte, nft compares no more
// than its bytes.
func (b *Beyond) readSubnet(f Family, exprs []expr.Any) {
	var prefix netip.Prefix
	device, bits, oif := "", -1, false
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Payload:
			bits = int(e.Len) * 8
		case *expr.Bitwise:
			bits = ones(e.Mask)
		case *expr.Meta:
			oif = e.Key == expr.MetaKeyOIFNAME
		case *expr.Cmp:
			if oif {
				device = trimName(e.Data)
			} else if bits >= 0 && len(e.Data) <= f.AddrLen() {
				a, _ := netip.AddrFromSlice(append(bytes.Clone(e.Data), make([]byte, f.AddrLen()-len(e.Data))...))
				prefix = netip.PrefixFrom(a, bits)
			}
		}
	}
	if device != "" && prefix.IsValid() {
		b.Subnet, b.Device = prefix, device
	}
}

func returns(exprs []expr.Any) bool {
	for _, e := range exprs {
		if v, ok := e.(*expr.Verdict); ok && v.Kind == expr.VerdictReturn {
			return true
		}
	}
	return false
}

// number reads a 32-bit value of a register.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// ones counts the bits of a prefix mask.
func ones(mask []byte) (n int) {
	for n < len(mask)*8 && mask[n/8]&(1<<(7-n%8)) != 0 {
		n++
	}
	return n
}
