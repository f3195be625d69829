// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ExternalBalancer is what the rules do for a balancer behind a device of the node, beside routes that lead there (docs/routing.md).
// With the zero value there is none, and no rule for it.
type ExternalBalancer struct {
	// Steering marks what processes of the node send to Steered frontends, and leaves it to that balancer.
	Steering bool `json:"s,omitzero"`
	// Mark is what the packet mark becomes in the bits of Mask; the others stay. Mark has no bit outside of Mask.
	Mark uint32 `json:"m,omitzero"`
	Mask uint32 `json:"k,omitzero"`
	// HandOff means that packets may be translated to ClusterIPs and are on their way to that balancer then: what was
	// translated is not refused.
	HandOff bool `json:"h,omitzero"`
	// HostClusterIPs leaves what processes of the node send to HandedOver frontends to that balancer, unmarked: it takes the
	// route of the service CIDR.
	HostClusterIPs bool `json:"c,omitzero"`
	// SteeringHop and HandOffHop are the next hops of that balancer. What is steered or handed over and has another route, as
	// when the device is down, is refused: it would leave the node with a Service address as its destination.
	SteeringHop netip.Addr `json:"x,omitzero"`
	HandOffHop  netip.Addr `json:"y,omitzero"`
	// Virtual is the address that traffic under externalTrafficPolicy Local is translated to. The zero Addr is none.
	Virtual netip.Addr `json:"v,omitzero"`
	// Subnet is masqueraded by whatever interface but Device: nobody else can answer to it. The zero Prefix is none.
	Subnet netip.Prefix `json:"n,omitzero"`
	Device string       `json:"d,omitzero"`
}

// encode returns the parameters as Chain.Data, empty for none.
func (b ExternalBalancer) encode() string {
	if b == (ExternalBalancer{}) {
		return ""
	}
	return encodeData(b)
}

// mangle is NF_IP_PRI_MANGLE: before DNAT, so that the destination is still the VIP.
const mangle = -150

// steerChain is the chain that marks. It is of type route: the kernel looks up the route again after a mark changed.
const steerChain = "steer-output"

// steer is the chain that marks what is steered.
func (l lang) steer(b ExternalBalancer) Chain {
	set := all(one(immediate(b.Mark)), one(setMark()))
	if b.Mask != ^uint32(0) {
		set = all(key([]load{meta(expr.MetaKeyMARK)}), one(mask(^b.Mask, b.Mark), setMark()))
	}
	return Chain{Name: steerChain, Hook: &Hook{"route", unix.NF_INET_LOCAL_OUT, mangle}, Rules: []Rule{
		{"to the balancer behind the pod gateway", all(in(Steered.String(), l.vip()...), set)},
	}}
}

func setMark() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg0}
}

// left is a set of ClusterIPs that are left to the balancer behind a device, which the packets leave by the next hop of.
type left struct {
	set  SetID
	hop  netip.Addr
	name string
}

// left lists what packets of processes of the node are not translated to.
func (b ExternalBalancer) left() (out []left) {
	if b.Steering {
		out = append(out, left{Steered, b.SteeringHop, "steered"})
	}
	if b.HostClusterIPs {
		out = append(out, left{HandedOver, b.HandOffHop, "handed over"})
	}
	return out
}

// natOutput comes before the Services in nat-output: what is left to the balancer leaves as it is, and where an endpoint is a
// process of this node, processes of this node get that one.
func (l lang) natOutput(b ExternalBalancer) (rules []Rule) {
	for _, x := range b.left() {
		rules = append(rules, Rule{x.name, all(in(x.set.String(), l.vip()...), one(verdict(expr.VerdictReturn, "")))})
	}
	if b.Steering {
		rules = append(rules, Rule{"to an endpoint of the node itself", l.dnat(HostEndpoints.String(), l.vip())})
	}
	return rules
}

// filterOutput comes before what refuses packets that were not translated.
func (l lang) filterOutput(b ExternalBalancer) (rules []Rule) {
	for _, x := range b.left() {
		if x.hop.IsValid() {
			rules = append(rules, // a ClusterIP may be an address of a process of the node, as with NodeLocal DNSCache
				Rule{"own address", all(in(x.set.String(), l.vip()...), fibLocal(false), one(verdict(expr.VerdictReturn, "")))},
				Rule{NoBalancer, all(in(x.set.String(), l.vip()...), l.nexthopNot(x.hop), one(&expr.Counter{}, goTo("refuse")))})
		}
		rules = append(rules, Rule{x.name, all(in(x.set.String(), l.vip()...), one(verdict(expr.VerdictReturn, "")))})
	}
	return append(rules, l.handedOver(b)...)
}

// handedOver lets packets pass that were translated: to an endpoint, or to a ClusterIP or the virtual address by the next hop
// of the balancer.
func (l lang) handedOver(b ExternalBalancer) (rules []Rule) {
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

func (l lang) noBalancer(b ExternalBalancer) []Rule {
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
	k := map[Family]expr.RtKey{IPv4: expr.RtNexthop4, IPv6: expr.RtNexthop6}[l.f]
	return []expr.Any{&expr.Rt{Register: reg0, Key: k}, notEqual(appendAddr(nil, hop))}
}

// sources chooses the source of what leaves for the balancer behind the device, or comes from it. What is left to it gets
// the address of the device, as all that processes of the node send through it on their own.
func (l lang) sources(b ExternalBalancer) (rules []Rule) {
	for _, x := range b.left() {
		rules = append(rules, Rule{x.name, all(in(x.set.String(), l.vip()...), one(masquerade()))})
	}
	if p := b.Subnet; p.IsValid() {
		device := make([]byte, unix.IFNAMSIZ)
		copy(device, b.Device)
		rules = append(rules, Rule{"masquerade subnet", all(key([]load{l.saddr()}), one(l.maskAt(reg0, p.Bits()), equal(appendAddr(nil, p.Masked().Addr())),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0}, notEqual(device), masquerade()))})
	}
	return rules
}

func masquerade() expr.Any { return &expr.Masq{FullyRandom: true} }
