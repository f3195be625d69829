// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package ctsync deletes conntrack entries that keep a client on an endpoint that no longer serves it.
//
// The nat rules see only the first packet of a flow; all others follow its conntrack entry. A datagram client that
// keeps sending keeps the entry alive, and so stays on an endpoint for ever, whether it exists or not. ctsync knows
// nothing of Kubernetes or of nftables: it is told which frontends (address, protocol, port) are ours and which
// endpoints their flows may stay on, and deletes what contradicts that. The next packet then meets the rules anew.
//
// # What goes
//
//   - A flow to a frontend of ours whose answers come from none of its endpoints, or which has none.
//   - A flow to a frontend that was removed, if it goes to an endpoint which that frontend had; and a translated flow
//     to an address of the service CIDRs that no frontend has.
//   - A flow to a frontend of ours that was never translated: it was born before our rules. Of TCP only connection
//     attempts, since an answered connection works and would break.
//
// UDP is always judged, SCTP and TCP if Scope says so. Everything else stays: flows to endpoints that serve, though a
// changed traffic policy would send new flows elsewhere (as with kube-proxy; the caller decides, see
// Change.Endpoints); flows to addresses that are not ours; NodePort flows to other addresses than the node's own.
//
// # When
//
// Update, called after a commit, makes the changed frontends a concern of the next pass; passes run in a goroutine of
// their own on sockets of their own, so a commit never waits. Each concern is looked at again after 25 and 500 ms
// for packets that were in flight during the commit. All concerns that are due share one pass. After a pass of d comes
// a rest of 3d, so that endless change costs a quarter of one CPU at most. A pass that failed is tried again, up to 6
// times. Resync judges everything; nothing is judged before the first Resync.
//
// # How, and what it costs
//
// A pass streams a dump and judges entry by entry, with a decoder that allocates nothing, and deletes in batches of 64
// by tuple, zone and ID. (ti-mo/conntrack, which reads a dump as a whole and has neither the tuple filter nor the ID
// in deletions, is the oracle of the tests.) Measured on Linux 6.18 with 2 cores (BenchmarkPass), 100 entries of the
// table being stale:
//
//	entries    after one change            after many, or all
//	10,000     6 ms, 0.1 MiB               17 ms, 0.2 MiB
//	1,000,000  1.6 s, 1.6 MiB              1.6 s, 1.6 MiB
//
// The kernel can filter by protocol, port and address (5.8), which makes the first number; but it runs with soft
// interrupts off until a buffer is full of matching entries, for 0.28 s in a table of 1,000,000 of which few match, in
// which one CPU receives no packets. So tables of more than 20,000 entries are dumped with coarser filters, about 170
// entries at a time. Commits of nftables by another socket take 5 µs beside passes over 1,000,000 entries as they do
// alone (median; BenchmarkCommit).
//
// An index kept by conntrack events was measured too. Listening to NEW and DESTROY costs 4.3 µs per new flow of the
// whole node (2.5 µs in the path of the packet, on top of 2.7 µs for the flow itself, and 1.7 µs for the listener),
// and the same again when it ends; a socket filter that drops all messages of no interest still leaves 0.9 µs of
// it, because the kernel builds each message first. A table of 1,000,000 UDP entries with 120 s to live turns over
// 8,300 per second: 7% of a CPU for ever, more than 40 MiB for the index, and a full dump whenever events were lost.
// A pass costs nothing while nothing changes. Hence passes.
//
// # TCP resets
//
// Deleting the entry of an established connection is enough if the client sends: its next packet meets the rules as a
// new connection (net.netfilter.nf_conntrack_tcp_loose, on by default), is sent to another endpoint, which knows
// nothing of it, or to the reject rule, and both answer with a RST. A client that only reads waits for its
// keepalive. Options.Reset makes it notice at once: it is sent a SYN/ACK that fits no connection, which it answers with
// an ACK, and that meets the RST (see appendNudge). With nf_conntrack_tcp_loose off, packets in mid-stream are
// invalid, no rule for new connections sees them, and the client is left to its timeouts either way.
package ctsync
