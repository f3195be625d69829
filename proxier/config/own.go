// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"
)

// Own are nftproxy's own settings, parsed from the document
// `apiVersion: nftproxy.io/v1alpha1, kind: NFTProxyConfiguration`.
type Own struct {
	// StrictSourceRanges closes a family for which loadBalancerSourceRanges has
	// no range while the other family has one. kube-proxy leaves it open; false
	// does the same.
	StrictSourceRanges bool
	// AffinityMapSize is the number of clients that the affinity map of one
	// Service port remembers per family.
	AffinityMapSize int
	// BatchWindow is how long a batch stays open after its first change.
	BatchWindow time.Duration
	// StaleFlows says which conntrack entries are deleted beside those of UDP.
	StaleFlows StaleFlows
	// Routing are the settings of addresses, routes and rules.
	Routing Routing
}

// StaleFlows says what happens to flows of endpoints that no longer serve. UDP
// flows are always deleted.
type StaleFlows struct {
	TCP   bool // delete established TCP flows to endpoints that are gone
	SCTP  bool // likewise for SCTP
	Reset bool // answer such TCP flows with a reset; needs TCP
}

// Routing are the settings of package routing in plain form, per family where
// the family matters. Every mode is off unless configured.
type Routing struct {
	// ServiceRoutes gives the host routes to the service CIDRs.
	ServiceRoutes ServiceRoutes
	// MasqueradeSubnet is the link-local subnet that the modes below use.
	MasqueradeSubnet Subnets
	// Steering sends host packets to ITP=Local ClusterIPs to the pod gateway.
	Steering Steering
	// HandOff leaves external traffic to a balancer behind a device.
	HandOff HandOff
}

// Subnets is one prefix per family; an invalid Prefix means none.
type Subnets struct{ IPv4, IPv6 netip.Prefix }

// Addrs is one address per family; an invalid Addr means none.
type Addrs struct{ IPv4, IPv6 netip.Addr }

// ServiceRoutes routes the service CIDRs over a next hop that needs not exist.
type ServiceRoutes struct {
	Enabled bool
	// Device carries the routes; empty lets routing make a dummy device.
	Device string
	// CIDRs replace the ServiceCIDR objects' when not empty.
	CIDRs []netip.Prefix
}

// Steering is the marking of host packets and its policy route.
type Steering struct {
	Enabled  bool
	Device   string // the pod gateway device
	Gateways Addrs  // next hops on it; none: on link
	Mark     uint32 // packet mark, host byte order
	Priority int    // of the ip rule
	Table    int    // routing table
}

// HandOff is where external traffic goes instead of being balanced here.
type HandOff struct {
	Enabled  bool
	Device   string // the device with the other balancer behind it
	LocalETP Addrs  // target of ETP=Local traffic; none: .3 of the subnet
	Hairpin  Addrs  // virtual source of hairpinned traffic; none: 169.254.0.253
	// Classes of traffic to hand off.
	NodePorts, ExternalIPs, LoadBalancers bool
}
