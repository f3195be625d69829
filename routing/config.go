// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Family is an address family.
type Family = nl.Family

// The two families.
const (
	IPv4 = nl.IPv4
	IPv6 = nl.IPv6
)

// Config is what routing provides. It is plain data; [Config.Normalize] fills in defaults and checks it.
//
// Each mode has a switch of its own. The modes are independent, but they share the service device, the masquerade
// subnets and the service CIDRs.
type Config struct {
	// ServiceCIDRs are the ranges of ClusterIPs, any number, either family. They may change at any time.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// PodCIDRs are the ranges of all pods of the cluster. They are only checked for overlap.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// NodeAddrs are the node's own addresses, at most one per family: sources of the routes. Default: the first
	// fitting address of the service device or, without one, of any interface.
	NodeAddrs []netip.Addr `json:"nodeAddrs,omitempty"`
	// Subnets are the masquerade subnets, at most one per family. Default: [DefaultSubnets].
	Subnets []netip.Prefix `json:"masqueradeSubnets,omitempty"`
	// Device is the service device, by name or alternative name. Empty: the one that holds the node's address,
	// found for each family. Any device that can be up and has neighbours will do; loopback does not.
	Device string `json:"device,omitempty"`
	// MTU is set on the routes of the service CIDRs, the masquerade subnet and the peers, 0 for none. A host process
	// announces the segment size of the route that it sees before DNAT, so a cluster whose pods have a smaller MTU
	// than the device needs it here.
	MTU uint32 `json:"mtu,omitempty"`
	// Metric of all routes. Default: 1024, which is what IPv6 makes of 0.
	Metric uint32 `json:"metric,omitempty"`
	// Wait has no effect any more: devices and gateways that are missing are always waited for.
	Wait bool `json:"wait,omitempty"`
	// CheckSysctlsOnly makes a strict rp_filter where it must be loose an error; it is not set to loose then.
	CheckSysctlsOnly bool `json:"checkSysctlsOnly,omitempty"`

	Reach      Reach      `json:"reach"`
	Masquerade Masquerade `json:"masquerade"`
	Steering   Steering   `json:"steering"`
	HandOff    HandOff    `json:"handOff"`
}

// Reach gives host processes a route to the service CIDRs on a node that has no fitting one: through the next hop
// address of the masquerade subnet (.4), which belongs to no machine and is a permanent neighbour.
type Reach struct {
	Enabled bool `json:"enabled"`
	// MAC of the next hop. Default: [DefaultNextHopMAC]. No machine needs to have it: a packet to a Service is
	// DNATed and routed again before it can leave.
	MAC MAC `json:"mac"`
}

// Masquerade puts the host address (.2) and the routes of the masquerade subnet on the hand-off device, or on the
// service device if hand-off is off.
type Masquerade struct {
	Enabled bool `json:"enabled"`
	// PeerMAC makes the peer (.1) a permanent neighbour. Zero: the peer answers ARP and neighbour discovery itself.
	PeerMAC MAC `json:"peerMAC"`
}

// Steering sends packets with a mark to the pod gateway by a rule and a table of their own. A family without a gateway
// is not steered.
type Steering struct {
	Enabled bool `json:"enabled"`
	// Device is the pod gateway device.
	Device string `json:"device,omitempty"`
	// Gateways are the next hops behind it, at most one per family.
	Gateways []NextHop `json:"gateways,omitempty"`
	// Mark and Mask select the packets. Defaults: 0x1745ec and all bits.
	Mark uint32 `json:"mark,omitempty"`
	Mask uint32 `json:"mask,omitempty"`
	// Priority of the rule, 1 to 32765. Default: 30.
	Priority uint32 `json:"priority,omitempty"`
	// Table that holds the routes; no other program may use it. Default: 7.
	Table uint32 `json:"table,omitempty"`
}

// HandOff routes classes of Service traffic to another balancer behind a device.
type HandOff struct {
	Enabled bool `json:"enabled"`
	// Device behind which the balancer sits.
	Device string `json:"device,omitempty"`
	// Gateways are the balancer's next hops, at most one per family. A family without one uses the next hop address
	// of the masquerade subnet (.4), for which the balancer has to answer.
	Gateways []NextHop `json:"gateways,omitempty"`
	// Local hands over traffic under externalTrafficPolicy Local: it is DNATed to a virtual address.
	Local bool `json:"local,omitempty"`
	// Virtual are the addresses for that. Default: the local-ETP addresses (.3) of the masquerade subnets.
	Virtual []netip.Addr `json:"virtual,omitempty"`
	// Cluster hands over traffic under externalTrafficPolicy Cluster: it is DNATed to the ClusterIP, and the
	// service CIDRs are routed to the balancer, for host processes too.
	Cluster bool `json:"cluster,omitempty"`
	// HostClusterIPs hands over what processes of the node send to ClusterIPs: it is not translated, and the service CIDRs
	// are routed to the balancer. ClusterIPs under internalTrafficPolicy Local stay with Steering or the node.
	HostClusterIPs bool `json:"hostClusterIPs,omitempty"`
	// Peers are addresses that the balancer uses as sources towards this node (hairpin).
	Peers []NextHop `json:"peers,omitempty"`
}

// routesServices reports whether the service CIDRs are routed to the balancer.
func (h HandOff) routesServices() bool { return h.Enabled && (h.Cluster || h.HostClusterIPs) }

// NextHop is an address behind a device. With a MAC it needs no address resolution and no covering prefix: it
// becomes a permanent neighbour, and routes through it are on link.
type NextHop struct {
	Addr netip.Addr `json:"addr"`
	MAC  MAC        `json:"mac"`
}

// Defaults of the numbers; all can be configured. They are those of OVN-Kubernetes, which its users know.
const (
	DefaultMark     = 0x1745ec
	DefaultPriority = 30
	DefaultTable    = 7
	DefaultMetric   = 1024
)

const (
	// Routing tables of the kernel itself (linux/rtnetlink.h, RT_TABLE_*).
	tableDefault = 253
	tableMain    = 254
	tableLocal   = 255
	// maxPriority is the last rule priority before that of the main table, 32766.
	maxPriority = 32765
	// minSubnetHostBits is the size of the smallest masquerade subnet: four addresses beside the first and the last,
	// which IPv4 cannot use, take 3 bits.
	minSubnetHostBits = 3
)

// DefaultSubnets returns 169.254.169.0/29 and fd69::/125.
func DefaultSubnets() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("169.254.169.0/29"), netip.MustParsePrefix("fd69::/125")}
}

// DefaultNextHopMAC returns 0a:58:a9:fe:a9:04: locally administered, with the bytes of 169.254.169.4 after 0a:58.
func DefaultNextHopMAC() MAC { return MAC{0x0a, 0x58, 169, 254, 169, 4} }

// Subnet is a masquerade subnet, four addresses of which have a meaning.
type Subnet struct{ netip.Prefix }

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

// LocalETP returns .3: the destination of traffic under externalTrafficPolicy Local that is handed over.
func (s Subnet) LocalETP() netip.Addr { return s.nth(3) }

// NextHop returns .4: the next hop of the service CIDRs.
func (s Subnet) NextHop() netip.Addr { return s.nth(4) }

// Subnet returns the masquerade subnet of family f, if there is one. c must be normalized.
func (c Config) Subnet(f Family) (Subnet, bool) {
	p, ok := pick(c.Subnets, func(p netip.Prefix) bool { return nl.FamilyOf(p.Addr()) == f })
	return Subnet{p}, ok
}

// SteeringGateway returns the next hop of steered packets of family f; ok is false where they are not steered.
func (c Config) SteeringGateway(f Family) (hop NextHop, ok bool) {
	hop, ok = hopOf(c.Steering.Gateways, f)
	return hop, ok && c.Steering.Enabled
}

// HandOffGateway returns the next hop of what is handed over in family f; ok is false where nothing is handed over.
// c must be normalized.
func (c Config) HandOffGateway(f Family) (hop NextHop, ok bool) {
	if hop, ok = hopOf(c.HandOff.Gateways, f); !ok {
		var sub Subnet
		if sub, ok = c.Subnet(f); ok {
			hop = NextHop{Addr: sub.NextHop()}
		}
	}
	return hop, ok && c.HandOff.Enabled
}

func hopOf(hops []NextHop, f Family) (NextHop, bool) {
	return pick(hops, func(h NextHop) bool { return nl.FamilyOf(h.Addr) == f })
}

// Enabled reports whether any mode is switched on.
func (c Config) Enabled() bool {
	return c.Reach.Enabled || c.Masquerade.Enabled || c.Steering.Enabled || c.HandOff.Enabled
}

// pick returns the first element that fits.
func pick[E any](list []E, fits func(E) bool) (E, bool) {
	if i := slices.IndexFunc(list, fits); i >= 0 {
		return list[i], true
	}
	var none E
	return none, false
}

// Normalize returns the configuration with defaults filled in and prefixes masked. The error, a [*RefusedError],
// contains what is wrong whatever the cluster and the node are like: malformed addresses, numbers out of range, modes
// without what they need. Overlaps are found by [Plan]. The result shares nothing with c.
func (c Config) Normalize() (Config, error) {
	c.ServiceCIDRs, c.PodCIDRs, c.Subnets = masked(c.ServiceCIDRs), masked(c.PodCIDRs), masked(c.Subnets)
	c.NodeAddrs = slices.Clone(c.NodeAddrs)
	if len(c.Subnets) == 0 {
		c.Subnets = DefaultSubnets()
	}
	c.Metric = orDefault(c.Metric, DefaultMetric)
	c.Reach.MAC = orDefault(c.Reach.MAC, DefaultNextHopMAC())
	s, h := &c.Steering, &c.HandOff
	s.Gateways = slices.Clone(s.Gateways)
	s.Mark, s.Mask = orDefault(s.Mark, DefaultMark), orDefault(s.Mask, ^uint32(0))
	s.Priority, s.Table = orDefault(s.Priority, DefaultPriority), orDefault(s.Table, DefaultTable)
	h.Gateways, h.Peers, h.Virtual = slices.Clone(h.Gateways), slices.Clone(h.Peers), slices.Clone(h.Virtual)
	if h.Local && len(h.Virtual) == 0 {
		for _, p := range c.Subnets {
			h.Virtual = append(h.Virtual, Subnet{p}.LocalETP())
		}
	}
	var found problems
	c.checkAddresses(&found)
	c.checkModes(&found)
	return c, refusal(found, Conflict)
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// masked returns the prefixes masked, sorted and without duplicates, so that equal configurations are equal values.
func masked(ps []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// checkAddresses refuses addresses with a zone and IPv4-mapped ones, and two of a family where only one is used.
func (c Config) checkAddresses(found *problems) {
	for _, x := range []struct {
		name  string
		many  bool
		addrs []netip.Addr
	}{
		{"serviceCIDRs", true, each(c.ServiceCIDRs, netip.Prefix.Addr)},
		{"podCIDRs", true, each(c.PodCIDRs, netip.Prefix.Addr)},
		{"nodeAddrs", false, c.NodeAddrs},
		{"masqueradeSubnets", false, each(c.Subnets, netip.Prefix.Addr)},
		{"steering.gateways", false, each(c.Steering.Gateways, NextHop.addr)},
		{"handOff.gateways", false, each(c.HandOff.Gateways, NextHop.addr)},
		{"handOff.virtual", false, c.HandOff.Virtual},
		{"handOff.peers", true, each(c.HandOff.Peers, NextHop.addr)},
	} {
		var seen [2]bool
		for _, a := range x.addrs {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				found.conflict("%s: %q is neither an IPv4 nor an IPv6 address: write it plainly", x.name, a)
				continue
			}
			i := slices.Index(nl.Families(), nl.FamilyOf(a))
			if seen[i] && !x.many {
				found.conflict("%s has two %s entries, the second %s: keep one per family", x.name, nl.FamilyOf(a), a)
			}
			seen[i] = true
		}
	}
	for _, p := range c.Subnets {
		if p.IsValid() && p.Addr().BitLen()-p.Bits() < minSubnetHostBits {
			found.conflict("masquerade subnet %s is too small: give it at least %d host bits (masqueradeSubnets)", p, minSubnetHostBits)
		}
	}
}

func (h NextHop) addr() netip.Addr { return h.Addr }

func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, a := range list {
		out = append(out, f(a))
	}
	return out
}

// checkModes refuses numbers out of range and modes without what they need.
func (c Config) checkModes(found *problems) {
	if s := c.Steering; s.Enabled {
		if s.Device == "" {
			found.conflict("steering names no device: set steering.device to the pod gateway device")
		}
		if len(s.Gateways) == 0 {
			found.conflict("steering has no gateway: add one per family to steering.gateways")
		}
		if s.Priority > maxPriority {
			found.conflict("rule priority %d comes after the main table's: set steering.priority to 1 to %d", s.Priority, maxPriority)
		}
		if s.Table >= tableDefault && s.Table <= tableLocal {
			found.conflict("table %d is the kernel's own: set steering.table to an unused one", s.Table)
		}
		if s.Mark&^s.Mask != 0 {
			found.conflict("mark %#x has bits outside its mask %#x: correct steering.mark or steering.mask", s.Mark, s.Mask)
		}
	}
	if h := c.HandOff; h.Enabled {
		if h.Device == "" {
			found.conflict("hand-off names no device: set handOff.device to the one the balancer sits behind")
		}
		if !h.Local && !h.routesServices() {
			found.conflict("hand-off is given no traffic: set handOff.local, handOff.cluster or handOff.hostClusterIPs")
		}
	}
}

// MAC is an Ethernet address as a comparable value. The zero value means none.
type MAC [6]byte

// ParseMAC reads 12 hexadecimal digits in pairs with colons or hyphens between them, or in fours with dots.
func ParseMAC(s string) (m MAC, err error) {
	b, err := hex.DecodeString(strings.NewReplacer(":", "", "-", "", ".", "").Replace(s))
	if err != nil || len(b) != len(m) || len(s) != 17 && len(s) != 14 {
		return MAC{}, fmt.Errorf("%q is no MAC address: write it as 0a:58:a9:fe:a9:04", s)
	}
	return MAC(b), nil
}

// String returns the colon form, lower case.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IsZero reports whether no address is given.
func (m MAC) IsZero() bool { return m == MAC{} }

// MarshalText implements encoding.TextMarshaler; none is the empty text.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	if *m = (MAC{}); len(b) > 0 {
		*m, err = ParseMAC(string(b))
	}
	return err
}
