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

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

const (
	// restFactor bounds the share of a CPU that passes take under endless change: a pass of d is followed by a rest of
	// 3d, so at most a quarter.
	restFactor = 3
	// burst is how much rest may be owed, so that a few changes one after the other do not wait for each other: ten
	// passes of 10 ms over a small table. Two families are two commits already.
	burst = 300 * time.Millisecond
)

// Options of a Syncer. The zero value works on UDP in the network namespace of the caller.
type Options struct {
	// Scope selects the flows that may be deleted.
	Scope ctsync.Scope
	// NetNS is the file descriptor of the network namespace to work in, 0 for that of the calling thread. It has to
	// stay open as long as the Syncer is used.
	NetNS int
	// Reset makes clients of deleted TCP flows notice at once: see the package documentation. It needs Scope.TCP and
	// CAP_NET_RAW.
	Reset bool
	// OnPass, if not nil, is called after each pass, from the goroutine of Run. It must not block.
	OnPass func(Pass)
	// OnStale, if not nil, is called for each flow that is about to be deleted, from the goroutine of Run and with
	// the lock of Update held: it must not block, nor call the Syncer.
	OnStale func(ctsync.Flow, ctsync.Reason)
}

// Pass is the report of one pass over the conntrack table, or of the failed attempt at one.
type Pass struct {
	Start    time.Time
	Duration time.Duration
	// Full means that all flows were checked, not only those of changed frontends.
	Full bool
	// Dumps is the number of dumps it took, Scanned the number of entries that the kernel returned.
	Dumps, Scanned int
	// Stale counts the entries to delete by reason, Failed those among them that could not be deleted. Entries that
	// were gone already count as deleted.
	Stale  [ctsync.NumReasons]int
	Failed int
	// Resets is the number of packets sent to clients (Options.Reset).
	Resets int
	// GivenUp counts checks that are dropped because every try failed; a later change or Resync takes them up again.
	GivenUp int
	// Err joins the errors. The pass is repeated if it is not nil, GivenUp apart.
	Err error
}

// Deleted returns the number of entries deleted in this pass.
func (p *Pass) Deleted() int {
	n := -p.Failed
	for _, stale := range p.Stale {
		n += stale
	}
	return n
}

// backend is the conntrack table as a pass needs it; see table.
type backend interface {
	dump(q ctsync.Query, show func([]ctsync.Flow) error) (scanned int, err error)
	remove(flows []ctsync.Flow) (left int, err error)
	entries() (int, error)
	close()
}

// Syncer deletes the conntrack entries that contradict what the frontends offer. Its methods may be called from any
// goroutine; none but Run waits for the kernel.
type Syncer struct {
	opts  Options
	caps  ctsync.Caps
	table backend
	raw   raw           // nil unless resets are wanted
	wake  chan struct{} // one slot: State has changed

	mu    sync.Mutex // guards state
	state *ctsync.State

	// Of the goroutine of Run.
	census ctsync.Census
	stale  []ctsync.Flow
	rest   time.Time // when all rest that is owed will be over
}

// New opens the sockets and probes the kernel. The Syncer does nothing until Run, and Run checks nothing until the
// first Resync. Needs CAP_NET_ADMIN.
func New(opts Options) (*Syncer, error) {
	t, err := openTable(opts.NetNS)
	if err != nil {
		return nil, err
	}
	caps, err := t.probe()
	s := newSyncer(opts, t, caps)
	if err == nil && opts.Reset && opts.Scope.TCP {
		s.raw, err = openRaw(opts.NetNS)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return s, nil
}

func newSyncer(opts Options, t backend, caps ctsync.Caps) *Syncer {
	return &Syncer{
		opts: opts, caps: caps, table: t, wake: make(chan struct{}, 1),
		state: ctsync.NewState(opts.Scope), stale: make([]ctsync.Flow, 0, batch),
	}
}

// Announce has to be called before a commit with what it adds or changes. Without it, a pass that runs between the
// commit and its Update would delete the first flows to a new endpoint, which costs a UDP client one more choice and a
// TCP client (Scope.TCP) its connection. It replaces the Announce before; a commit that fails needs no Update.
func (s *Syncer) Announce(changes []ctsync.Change) {
	s.change(func(now time.Time) { s.state.Announce(changes, now) })
}

// Update has to be called after a commit with what it added, changed and removed, in the order of the commits. Run
// looks for flows that became stale at once. A frontend that is not mentioned stays as it is.
//
// To find what became stale while no Syncer ran, pass the frontends and endpoints that the kernel's rules hold at
// start, then the wanted ones (with Removed for those that are gone), then call Resync.
func (s *Syncer) Update(changes []ctsync.Change) {
	s.change(func(now time.Time) { s.state.Update(changes, now) })
}

// SetNodePortAddrs replaces the addresses on which NodePorts are served. New ones cause a full pass.
func (s *Syncer) SetNodePortAddrs(addrs []netip.Addr) {
	s.change(func(now time.Time) { s.state.SetNodePortAddrs(addrs, now) })
}

// SetServiceCIDRs replaces the prefixes of ClusterIPs. They save passes: addresses in them that no Service has lead
// nowhere, so a new ClusterIP has no flows.
func (s *Syncer) SetServiceCIDRs(prefixes []netip.Prefix) {
	s.change(func(time.Time) { s.state.SetServiceCIDRs(prefixes) })
}

// Resync has all flows checked. The first call has to come once everything is known and committed; later ones after a
// repair of the rules, since flows that began without them are not translated.
func (s *Syncer) Resync() { s.change(s.state.CheckAll) }

// change applies f to the state and wakes Run.
func (s *Syncer) change(f func(now time.Time)) {
	s.mu.Lock()
	f(time.Now())
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run makes passes until ctx ends, then closes the sockets and returns nil. It must be called once.
func (s *Syncer) Run(ctx context.Context) error {
	defer s.table.close()
	defer s.raw.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		next := s.step(ctx)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// step makes one pass if one is due, and returns when it has to be called again; the zero time means when woken.
func (s *Syncer) step(ctx context.Context) (next time.Time) {
	now := time.Now()
	if begin := s.rest.Add(-burst); now.Before(begin) {
		return begin // what changes during the rest shares the next pass
	}
	s.mu.Lock()
	due, next := s.state.Due(now)
	s.mu.Unlock()
	if due.Empty() {
		return next
	}
	p := s.pass(ctx, &due)
	if ctx.Err() != nil {
		return time.Time{}
	}
	if s.rest.Before(p.Start) {
		s.rest = p.Start
	}
	s.rest = s.rest.Add((1 + restFactor) * p.Duration)
	s.mu.Lock()
	p.GivenUp = s.state.Done(due, p.Err == nil, p.Start, p.Start.Add(p.Duration))
	_, next = s.state.Due(now) // includes what became due during the pass
	s.mu.Unlock()
	if s.opts.OnPass != nil {
		s.opts.OnPass(p)
	}
	return next
}

// pass checks what is due.
func (s *Syncer) pass(ctx context.Context, due *ctsync.Due) Pass {
	p := Pass{Start: time.Now(), Full: due.Full}
	n, err := s.table.entries()
	if err != nil {
		n = 1 << 30 // the dumps of a large table are right for any size
	}
	for _, q := range due.Queries(s.caps, n, &s.census) {
		p.Err = errors.Join(p.Err, s.query(ctx, q, &p))
	}
	p.Duration = time.Since(p.Start)
	return p
}

// query makes one dump and deletes what is stale on the way. An interrupted dump is repeated.
func (s *Syncer) query(ctx context.Context, q ctsync.Query, p *Pass) error {
	var failures error // of deletions, which do not end a dump
	err := nl.Retry(ctx, func() error {
		p.Dumps++
		var seen ctsync.Census
		scanned, err := s.table.dump(q, func(flows []ctsync.Flow) error {
			if err := s.check(flows, &seen, p); err != nil && failures == nil {
				failures = err
			}
			return ctx.Err()
		})
		p.Scanned += scanned
		if err == nil {
			s.census.Replace(q, &seen)
		}
		return err
	})
	return errors.Join(err, failures)
}

// check deletes what is stale among up to a batch of flows. The lock is held for all of them: some 10 µs, which no
// Update notices.
func (s *Syncer) check(flows []ctsync.Flow, seen *ctsync.Census, p *Pass) error {
	s.stale = s.stale[:0]
	s.mu.Lock()
	for i := range flows {
		seen.Add(&flows[i])
		r := s.state.Reason(&flows[i])
		if r == ctsync.Keep {
			continue
		}
		p.Stale[r]++
		s.stale = append(s.stale, flows[i])
		if s.opts.OnStale != nil {
			s.opts.OnStale(flows[i], r)
		}
	}
	s.mu.Unlock()
	if len(s.stale) == 0 {
		return nil
	}
	left, err := s.table.remove(s.stale)
	p.Failed += left
	if err == nil { // an entry that is left would answer for the endpoint
		p.Resets += s.raw.reset(s.stale)
	}
	return err
}
