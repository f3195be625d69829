// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// watchGroups are the multicast groups of rtnetlink that tell of changes to what we have or build on. The settings
// group tells of rp_filter. Changes of groups that a namespace does not have are never heard, which is right.
var watchGroups = [...]uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV4_NETCONF,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV6_NETCONF,
}

// Interest says which notifications matter. Links, addresses, rules and settings always do; routes and neighbours
// are too many on a busy node (every resolution is a notification) and matter only if they touch what is ours.
//
// It decides only whether to look again, never what is there.
type Interest struct {
	Table uint32                // the steering table, in which foreign routes matter too
	Dsts  map[netip.Prefix]bool // destinations of our routes: others may replace them
	Hops  map[netip.Addr]bool   // addresses of our neighbours
}

// InterestIn returns what matters for the entries of a plan.
func InterestIn(want Set, table uint32) Interest {
	in := Interest{Table: table, Dsts: map[netip.Prefix]bool{}, Hops: map[netip.Addr]bool{}}
	for e := range want {
		switch e := e.(type) {
		case Route:
			in.Dsts[e.Dst] = true
		case Neighbour:
			in.Hops[e.Addr] = true
		}
	}
	return in
}

// concerns tells whether a notification is a reason to look again.
func (in Interest) concerns(typ uint16, body []byte) bool {
	switch typ {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		r, protocol, ok := decodeRoute(body)
		return ok && (protocol == Protocol || in.Dsts[r.Dst] || in.Table != 0 && r.Table == in.Table)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, ours, _, ok := decodeNeighbour(body)
		return ok && (ours || in.Hops[n.Addr])
	}
	return true
}

func concernsAny(in Interest, messages []syscall.NetlinkMessage) bool {
	for _, m := range messages {
		if in.concerns(m.Header.Type, m.Data) {
			return true
		}
	}
	return false
}
