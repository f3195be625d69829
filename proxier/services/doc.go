// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package services decides what a Service means on this node: which addresses it takes, which endpoints its packets may go to,
// and which sources may send them. In come a Service with its EndpointSlices and the facts of the node (package kube), out go the
// Service ports of the dataplane (package nft). The package opens no socket, reads no clock and remembers nothing but claims.
//
// [Build] is pure and looks at one Service only; its cost follows that Service's ports and endpoints. What depends
// on other Services is who gets an address and port that several of them claim: [Index] decides that.
package services
