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
	// SteeringHop and HandOffHop are the next hops of that balancer. What is steered or handed over and has another route, as
	// when the device is down, is refused: it would leave the node with a Service address as its destination.
	SteeringHop, HandOffHop netip.Addr
	// Virtual is the address that traffic under externalTrafficPolicy Local is translated to. The zero Addr is none.
	Virtual netip.Addr
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
		if b.SteeringHop.IsValid() {
			rules = append(rules, Rule{NoBalancer, all(in(Steered.String(), l.vip()...), l.nexthopNot(b.SteeringHop),
				one(&expr.Counter{}, goTo("refuse")))})
		}
		rules = append(rules, Rule{"steered", l.steered(verdict(expr.VerdictReturn, ""))})
	}
	return append(rules, l.handedOver(b)...)
}

// handedOver lets packets pass that were translated: to an endpoint, or to a ClusterIP or the virtual address by the next hop
// of the balancer.
func (l lang) handedOver(b Beyond) (rules []Rule) {
	if !b.HandOff {
		return nil
	}
	if b.HandOffHop.IsValid() {
		rules = append(rules, Rule{"", all(dnated(), l.nexthopNot(b.HandOffHop), one(jump(noBalancerChain)))})
	}
	return append(rules, Rule{"handed over, or on its way to an endpoint", all(dnated(), one(verdict(expr.VerdictReturn, "")))})
}

// noBalancerChain sees what was translated and does not leave by the next hop of the balancer.
const noBalancerChain = "no-balancer"

func (l lang) noBalancer(b Beyond) []Rule {
	endpoint := all(notIn(ClusterIPs.String(), l.daddr()), notIn(ServiceCIDRs.String(), l.daddr()))
	if b.Virtual.IsValid() {
		endpoint = all(endpoint, key([]load{l.daddr()}), one(notEqual(appendAddr(nil, b.Virtual))))
	}
	return []Rule{
		{"on its way to an endpoint", all(endpoint, one(verdict(expr.VerdictReturn, "")))},
		{NoBalancer, one(&expr.Counter{}, goTo("refuse"))},
	}
}

// nexthopNot matches packets whose route has another next hop. The route is the one of the packet as it is now, also after it
// was marked or translated; the output interface of a hook is the one of before.
func (l lang) nexthopNot(hop netip.Addr) []expr.Any {
	k := expr.RtNexthop4
	if l.f == IPv6 {
		k = expr.RtNexthop6
	}
	return []expr.Any{&expr.Rt{Register: reg0, Key: k}, notEqual(appendAddr(nil, hop))}
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
	for _, r := range s.Rules["filter-output"] {
		if r.Comment == NoBalancer {
			b.SteeringHop = comparedAddr(r.Exprs)
		}
	}
	for _, r := range s.Rules[noBalancerChain] {
		if a := comparedAddr(r.Exprs); a.IsValid() {
			b.Virtual = a
		}
	}
	for _, r := range s.Rules["filter-forward"] {
		b.HandOff = b.HandOff || returns(r.Exprs)
		if hop := comparedAddr(r.Exprs); hop.IsValid() {
			b.HandOffHop = hop
		}
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

// comparedAddr is the address that a rule compares with, not valid if there is none.
func comparedAddr(exprs []expr.Any) (a netip.Addr) {
	for i, e := range exprs {
		_, route := e.(*expr.Rt)
		p, payload := e.(*expr.Payload)
		if i+1 < len(exprs) && (route || payload && p.Base == expr.PayloadBaseNetworkHeader) {
			if c, ok := exprs[i+1].(*expr.Cmp); ok {
				a, _ = netip.AddrFromSlice(c.Data)
			}
		}
	}
	return a
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
