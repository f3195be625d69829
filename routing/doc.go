// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package routing keeps the few addresses, routes, rules and neighbours that a node needs beside its
// nftables tables: a way for host processes to Service addresses, the masquerade subnet, the steering of
// marked packets to the pod gateway, and the routes of hand-off to a balancer behind a device.
//
// The flow is one way:
//
//	Config + State -> Plan (pure) -> Diff (pure) -> Kernel.Apply -> kernel
//	                    ^                                  |
//	                    +----- Watch: "look again" --------+
//
// Laws, each held by a test:
//
//   - Only entries that carry our protocol number ([Protocol]) are ever changed or removed. What others
//     made stays as it is, also where it stands in our way: that is reported, never fought over.
//   - Additions come before removals, and a more specific route before a less specific one, because the
//     kernel's routing tables are not transactional: packets pass between any two of our messages.
//   - What is remembered is what the kernel confirmed, also after partial failure.
//   - Notifications are triggers, not data: every round reads the kernel again.
//   - IPv4 and IPv6 take the same code path; only the codec (wire.go) knows the difference.
//
// The package knows neither Kubernetes nor nftables. Marks, DNAT and masquerading that belong to the
// modes are nftables' part; docs/routing.md shows both halves hop by hop.
package routing
