// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel deletes the conntrack entries that package ctsync finds stale: the only part of it with sockets, a
// goroutine and a clock.
//
// In come what a commit offers and the entries that ctnetlink dumps; out go deletions and reports. Passes run in the
// goroutine of Syncer.Run on sockets of their own, so a commit never waits for one. The package never creates or changes
// an entry and never holds the table in memory: entries are decided on as they come, and stale ones deleted in batches
// by tuple, zone and ID. After a pass of d comes a rest of 3d, so that endless change costs a quarter of one CPU at most.
//
// # Cost
//
// Processor time of one pass that deletes 100 stale entries, and its memory (Linux 6.18, BenchmarkPass; "mixed" is a
// table in which one of ten entries is of UDP and translated). The stale entries go as the pass reaches them, half of
// them in half of its time:
//
//	entries             after one change    after many           all
//	10,000              5 ms, 0.1 MiB       17 ms, 2 MiB         17 ms, 2 MiB
//	1,000,000           1.7 s, 4 MiB        1.9 s, 4 MiB         1.7 s, 4 MiB
//	1,000,000, mixed    0.8 s, 3 MiB        0.7 s, 3 MiB         2.5 s, 4 MiB
//
// The kernel can filter by protocol, port and address (Linux 5.8), but it runs with soft interrupts off until a buffer
// of answers is full: 0.28 s in a table of 1,000,000 entries of which few match, in which one CPU receives no packets.
// So a table of more than 20,000 entries is read by filters that enough entries match (see ctsync.Due.Queries). Commits
// of nftables by another socket take 5 µs beside passes over 1,000,000 entries, as they do alone (median;
// BenchmarkCommit).
//
// The sockets are mdlayher/netlink's, at a fifth more processor time than sockets of our own (1.4 s instead of 1.7 s).
// The codec is our own: ti-mo/conntrack reads a dump as a whole, in 2.7 times the processor time and 1.5 GiB at
// 1,000,000 entries, and has neither the filter by tuple nor the ID in deletions. It is the oracle of the tests.
//
// An index kept by conntrack events was measured too. Listening to NEW and DESTROY costs 4.3 µs per new flow of the
// whole node (2.5 µs in the path of the packet, on top of 2.7 µs for the flow itself, and 1.7 µs for the listener), and
// the same again when it ends. A table of 1,000,000 UDP entries with 120 s to live turns over 8,300 per second: 7% of a
// CPU for ever, more than 40 MiB for the index, and a full dump whenever events were lost. A pass costs nothing while
// nothing changes. Hence passes.
//
// # TCP resets
//
// Deleting the entry of an established connection is enough if the client sends: its next packet passes the rules as a
// new connection (net.netfilter.nf_conntrack_tcp_loose, on by default), is sent to another endpoint, which does not know
// it, or to the reject rule, and both answer with a RST. A client that only reads waits for its keepalive.
// Options.Reset makes it notice at once: it is sent a SYN/ACK that fits no connection, which it answers with an ACK, and
// that is answered by the RST (see appendChallenge). With nf_conntrack_tcp_loose off, packets in mid-stream are invalid,
// no rule for new connections sees them, and the client is left to its timeouts either way.
package kernel
