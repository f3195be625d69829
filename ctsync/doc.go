// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package ctsync decides which conntrack entries keep a client on an endpoint that no longer serves it.
//
// The nat rules see only the first packet of a flow; all others follow its conntrack entry. A datagram client that
// keeps sending keeps its entry alive, and so stays on an endpoint for ever, whether the endpoint exists or not. Once
// the entry is deleted, the next packet passes the rules again.
//
// In come the frontends (address, protocol, port) that are ours, the endpoints that their flows may stay on, and
// conntrack entries. Out come the reason why an entry has to go, and the dumps that show all entries in question. The
// package knows nothing of Kubernetes or nftables, opens no socket and reads no clock; package kernel below it does the
// input and output.
//
// # What is deleted
//
//   - A flow to a frontend of ours that was translated to none of its endpoints, or that has none.
//   - A flow to a frontend that was removed, if it leads to an endpoint that this frontend had.
//   - A flow to a frontend of ours that was never translated: it is older than our rules. Of TCP only connection
//     attempts, since an answered connection works and would break.
//
// UDP is always in scope, SCTP and TCP if Scope has them. Everything else stays: entries of other conntrack zones; flows
// to addresses that are not ours, even if translated by another program; NodePort flows to addresses that take no NodePorts; flows to
// endpoints that serve, though a changed traffic policy would send new flows elsewhere (as with kube-proxy; see
// Change.Endpoints); connections to endpoints that are not ready, but still listed.
//
// # When
//
// Update, after a commit, makes the changed frontends due for a check at once, and again after 25 and 500 ms for packets
// that were in flight during the commit. All that is due shares one pass. A pass that failed is tried again, up to 6
// times. CheckAll makes everything due; nothing is before the first CheckAll.
package ctsync
