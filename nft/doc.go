// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package nft is the dataplane of nftproxy: two nftables tables, one for IPv4 and one for IPv6, whose
// chains, rules and sets do not depend on how many Services there are.
//
// In comes a [Service], one port of a Kubernetes Service in one family, and the [Content] of a table. Out goes the list of
// transactions ([Batch]) that leads from one to the other: [Table.Reconcile] compares everything, [Table.Plan] costs the
// change. [Elements] are what a Service needs of a handful of named sets and maps, [Skeleton] is everything else in the
// table, and [Content.Differences] lists what is not as it should be. Package nft/kernel reads and commits.
//
// The package is pure: equal input, equal output. It imports no socket, clock or environment. It builds rules from the
// expressions of github.com/google/nftables; sets, elements and their comparison are its own, because that library holds no
// comparable elements.
//
// # How a packet is processed
//
// A verdict map would make the kernel validate the whole table at each change, so what grows holds plain
// data only, and a register does not survive from one rule to the next. The value that has to travel
// from a lookup to the next rule is therefore kept in the packet's priority (skb->priority), which only
// the first packet of a connection passes through here, and which is cleared in postrouting:
//
//	services   VIP                -> program     (what is to be done with this VIP)
//	policies   program            -> jump chain  (which puts another program in its place; static)
//	programs   program            -> goto chain  (static)
//	cluster-3                       priority = random 0..2, then
//	endpoints  VIP . slot         -> address . port, and DNAT
//
// A sticky view has a map of clients and one chain, which finds the client's endpoint id; what it needs besides is in chains
// and maps that all sticky views share:
//
//	affinity-7       client       -> id
//	endpoints-by-id  VIP . id     -> address . port, and DNAT
//	sticky-draws     affinity-7   -> draw-3      (for a client that is not known)
//	draw-3                           priority = random 0..2, then
//	endpoint-ids     VIP . slot   -> id
//
// A program, a view's slot and an affinity id are 32 bits of nft type classid, which nft prints as two
// hexadecimal halves: see [Program].
//
// Source ranges of load balancers are elements VIP . source of one hash set per prefix length, which rules look up with the
// masked source: a set of intervals for all Services would cost the square of its size to change.
//
// # Races
//
// A set lookup sees a commit at once, while a packet may already have been sent to a chain by the state
// before it. So a balancer whose slot is gone tries slot 0, which exists whenever any slot does.
package nft
