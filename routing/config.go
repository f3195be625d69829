// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"net/netip"
	"reflect"
	"slices"
)

// Config says what routing is to provide. It is plain data; [Config.Normalize] fills in defaults and checks it.
//
// Each mode has a switch of its own. They are independent, but they share the service device, the masquerade
// subnets and the service CIDRs.
type Config struct {
	// ServiceCIDRs are the ranges of ClusterIPs, any number, either family. They may change at any time.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// PodCIDRs are the ranges of all pods of the cluster. They are only checked for overlap.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// NodeAddrs are the node's own addresses, at most one per family: sources of the routes. If there are none,
	// the first fitting address of the service device (or, without one, of any interface) is taken.
	NodeAddrs []netip.Addr `json:"nodeAddrs,omitempty"`
	// Subnets are the masquerade subnets, at most one per family. Default: [DefaultSubnets].
	Subnets []netip.Prefix `json:"masqueradeSubnets,omitempty"`
	// Device is the service device, by name or alternative name. Empty: the one that holds the node's address,
	// found for each family. Any device that can be up and has neighbours will do; loopback does not.
	Device string `json:"device,omitempty"`
	// MTU is set on the service routes, 0 for none. A host process tells its peer a segment size by the route it
	// sees before DNAT, so a cluster whose pods have a smaller MTU than the device wants it here.
	MTU uint32 `json:"mtu,omitempty"`
	// Metric of all routes. Default: 1024, which is what IPv6 makes of none.
	Metric uint32 `json:"metric,omitempty"`
	// Wait says that devices and gateways which are not there yet are waited for. Otherwise they are errors at start.
	Wait bool `json:"wait,omitempty"`
	// CheckSysctlsOnly says that a strict rp_filter where it must be loose is an error and not set to loose.
	CheckSysctlsOnly bool `json:"checkSysctlsOnly,omitempty"`

	Reach      Reach      `json:"reach"`
	Masquerade Masquerade `json:"masquerade"`
	Steering   Steering   `json:"steering"`
	HandOff    HandOff    `json:"handOff"`
}

// Reach gives host processes a way to the service CIDRs on a node that has no fitting route: through the next
// hop address of the masquerade subnet (.4), which nobody has and which a permanent neighbour entry stands for.
type Reach struct {
	Enabled bool `json:"enabled"`
	// MAC of the next hop. Default: [DefaultNextHopMAC]. Nobody needs to have it: what has a Service is DNATed
	// and routed again before it could leave.
	MAC MAC `json:"mac"`
}

// Masquerade puts the host address (.2) and the routes of the masquerade subnet on the hand-off device, or on
// the service device where there is no hand-off.
type Masquerade struct {
	Enabled bool `json:"enabled"`
	// PeerMAC makes a permanent neighbour of the peer (.1). Zero: the peer answers for itself.
	PeerMAC MAC `json:"peerMAC"`
}

// Steering sends packets with a mark to the pod gateway by a rule and a table of their own.
type Steering struct {
	Enabled bool `json:"enabled"`
	// Device is the pod gateway device.
	Device string `json:"device,omitempty"`
	// Gateways are the next hops behind it, one per family of the service CIDRs.
	Gateways []NextHop `json:"gateways,omitempty"`
	// Mark and Mask select the packets. Defaults: 0x1745ec and all bits.
	Mark uint32 `json:"mark,omitempty"`
	Mask uint32 `json:"mask,omitempty"`
	// Priority of the rule, 1 to 32765. Default: 30.
	Priority uint32 `json:"priority,omitempty"`
	// Table that holds the routes; nobody else may use it. Default: 7.
	Table uint32 `json:"table,omitempty"`
}

// HandOff routes classes of Service traffic to another balancer behind a device.
type HandOff struct {
	Enabled bool `json:"enabled"`
	// Device behind which the balancer sits.
	Device string `json:"device,omitempty"`
	// Gateways are the balancer's next hops, at most one per family. Where a family has none, the next hop
	// address of the masquerade subnet (.4) is used, and must be answered for by the balancer.
	Gateways []NextHop `json:"gateways,omitempty"`
	// Local hands over traffic under externalTrafficPolicy Local: it is DNATed to a virtual address.
	Local bool `json:"local,omitempty"`
	// Virtual are the addresses for that. Default: the local-ETP addresses (.3) of the masquerade subnets.
	Virtual []netip.Addr `json:"virtual,omitempty"`
	// Cluster hands over traffic under externalTrafficPolicy Cluster: it is DNATed to the ClusterIP, and the
	// service CIDRs are routed to the balancer, for host processes too.
	Cluster bool `json:"cluster,omitempty"`
	// Peers are addresses that the balancer uses as sources towards this node (hairpin).
	Peers []NextHop `json:"peers,omitempty"`
}

// NextHop is an address behind a device. With a MAC it needs no address resolution and no covering prefix: it
// becomes a permanent neighbour, and routes through it count as on link.
type NextHop struct {
	Addr netip.Addr `json:"addr"`
	MAC  MAC        `json:"mac"`
}

// Defaults of the numbers; all can be configured. They are those of OVN-Kubernetes, so that its users know them.
const (
	DefaultMark     = 0x1745ec
	DefaultPriority = 30
	DefaultTable    = 7
	DefaultMetric   = 1024
)

// Routing tables that the kernel itself uses (linux/rtnetlink.h, RT_TABLE_*).
const (
	tableDefault = 253
	tableMain    = 254
	tableLocal   = 255
)

// maxPriority is the last rule priority that is looked at before the main table's, which is 32766.
const maxPriority = 32765

// DefaultSubnets returns 169.254.169.0/29 and fd69::/125.
func DefaultSubnets() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 169, 0}), 29),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x69}), 125),
	}
}

// DefaultNextHopMAC returns 0a:58:a9:fe:a9:04: locally administered, and the bytes of 169.254.169.4 behind 0a:58.
func DefaultNextHopMAC() MAC { return MAC{0x0a, 0x58, 169, 254, 169, 4} }

// AntreaHandOff returns the hand-off to an Antrea gateway: NodePort traffic goes to its virtual NodePort address,
// everything through its virtual Service address, which is also the source of hairpin connections. Both are
// answered for by one global virtual MAC. (Antrea's pipeline document, sections on these addresses; the IPv6
// ones are from its agent's configuration.)
func AntreaHandOff(device string) HandOff {
	mac := MAC{0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	via := []NextHop{
		{Addr: netip.AddrFrom4([4]byte{169, 254, 0, 253}), MAC: mac},
		{Addr: netip.MustParseAddr("fc01::aabb:ccdd:eeff"), MAC: mac},
	}
	return HandOff{
		Enabled: true, Device: device, Local: true, Cluster: true,
		Gateways: via, Peers: slices.Clone(via),
		Virtual: []netip.Addr{
			netip.AddrFrom4([4]byte{169, 254, 0, 252}),
			netip.MustParseAddr("fc01::aabb:ccdd:eefe"),
		},
	}
}

// Subnet gives the addresses of a masquerade subnet their names.
type Subnet struct{ netip.Prefix }

// nth returns the n-th address of the subnet.
func (s Subnet) nth(n int) netip.Addr {
	a := s.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// Peer returns .1: the balancer behind the device, as this node sees it.
func (s Subnet) Peer() netip.Addr { return s.nth(1) }

// Host returns .2: this node, as the balancer behind the device sees it.
func (s Subnet) Host() netip.Addr { return s.nth(2) }

// LocalETP returns .3: where traffic under externalTrafficPolicy Local is handed over.
func (s Subnet) LocalETP() netip.Addr { return s.nth(3) }

// NextHop returns .4: the next hop of the service CIDRs.
func (s Subnet) NextHop() netip.Addr { return s.nth(4) }

// Subnet returns the masquerade subnet of family f, if there is one. c must be normalized.
func (c Config) Subnet(f Family) (Subnet, bool) {
	p, ok := pick(c.Subnets, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
	return Subnet{p}, ok
}

// Enabled tells whether any mode is switched on.
func (c Config) Enabled() bool {
	return c.Reach.Enabled || c.Masquerade.Enabled || c.Steering.Enabled || c.HandOff.Enabled
}

// Equal tells whether both say the same. Both must be normalized.
func (c Config) Equal(o Config) bool { return reflect.DeepEqual(c, o) }

// pick returns the first element that fits.
func pick[E any](list []E, fits func(E) bool) (E, bool) {
	if i := slices.IndexFunc(list, fits); i >= 0 {
		return list[i], true
	}
	var none E
	return none, false
}
