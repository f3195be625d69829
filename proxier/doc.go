// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxier is the control loop: it keeps the tables of the kernel equal to what Services and EndpointSlices ask for.
//
// In come objects (a [kube.Sink]), the addresses of the node's interfaces, and notifications that another program changed
// the tables. Out go transactions of nf_tables, and after each of them what was committed: to conntrack (package ctsync),
// the localhost forwarder, the health check servers, metrics and Events.
//
//	tracker -> planner -> tables -> listeners
//	(objects)  (decision    (change, or      (flows, localhost,
//	            per Service) comparison)      health, metrics)
//
// One goroutine, that of [Proxier.Run], owns all that is known of the kernel. Notifications name the Service to look at
// again and carry no data. What was committed is remembered after the commit and never before; after an error that leaves
// the state of the kernel open the tables are read and compared. Nothing is removed before all sources have listed.
//
// The package does not read or write the network configuration, conntrack or the API itself, and no file calls one above it.
package proxier
