// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package routing plans the few addresses, routes, rules and neighbours that a node needs beside its nftables tables:
// routes from host processes to Service addresses, the masquerade subnet, the steering of marked packets to the pod
// gateway, and the routes of hand-off to a balancer behind a device.
//
// In come a [Config] and the [State] of a node, out go the entries that should exist ([Plan]), the operations that
// lead there ([Diff]), and problems in words. Package routing/kernel reads the state, carries the operations out and
// repeats both whenever something changes:
//
//	Config + State -> Plan -> Diff -> kernel.Apply -> the kernel
//	            ^                                         |
//	            +---- notification: read again -----------+
//
// Laws, each held by a test:
//
//   - Only entries that carry our protocol number ([Protocol]) are ever changed or removed. Entries of others stay,
//     also where they are in the way: that is reported as a conflict.
//   - Additions come before removals, and a more specific route before a less specific one, because the kernel's
//     routing tables are not transactional: packets pass between any two messages.
//   - What is in conflict is set aside alone; the rest is planned.
//   - IPv4 and IPv6 take the same code path.
//
// The package never opens a socket, reads no clock, and knows neither Kubernetes nor nftables. Marks, DNAT,
// masquerading and the refusal of what has no route to the balancer are rules of package nft; docs/routing.md shows
// both halves hop by hop.
package routing
