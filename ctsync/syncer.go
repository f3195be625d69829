// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxDumps bounds how often one pass repeats a dump that was interrupted.
	maxDumps = 4
	// restFactor and maxRest bound the share of a CPU that passes take under endless change: a pass of d is followed
	// by a rest of 3d, so at most a quarter; but no change waits longer than maxRest for its pass to begin.
	restFactor = 3
	maxRest    = 2 * time.Second
	// burst is how much rest may be owed, so that a few changes one after the other do not wait for each other: ten
	// passes of 10 ms over a small table. Two families are two commits already.
	burst = 300 * time.Millisecond
)

// Options of a Syncer. The zero value judges UDP in the network namespace of the caller.
type Options struct {
	// Scope says which flows may be judged.
	Scope Scope
	// NetNS is the file descriptor of the network namespace to work in, 0 for that of the calling thread. It must
	// stay open as long as the Syncer lives.
	NetNS int
	// Reset lets clients of TCP flows that were deleted notice at once: see the package documentation. It needs
	// Scope.TCP and CAP_NET_RAW.
	Reset bool
	// OnPass, if not nil, is called after each pass, from the goroutine of Run. It must not block.
	OnPass func(Pass)
	// OnStale, if not nil, is called for each flow that is about to be deleted, from the goroutine of Run and with
	// the lock of Update held: it must not block, nor call the Syncer.
	OnStale func(Flow, Reason)
}

// Pass reports one pass over the conntrack table, or the failed attempt at one.
type Pass struct {
	// Start is when the pass began, Duration how long it took.
	Start    time.Time
	Duration time.Duration
	// Full says that everything was judged, not only what concerns Frontends changed frontends.
	Full      bool
	Frontends int
	// Dumps is the number of dumps it took, Scanned the number of entries that the kernel returned.
	Dumps, Scanned int
	// Stale counts the entries to delete by reason, Failed those among them that could not be deleted. Entries that
	// were gone already count as deleted.
	Stale  [reasons]int
	Failed int
	// Resets is the number of TCP clients that were told (Options.Reset).
	Resets int
	// GivenUp counts concerns that are dropped because every try failed; a later change or Resync takes them up again.
	GivenUp int
	// Err is the first error. The pass is repeated if it is not nil, GivenUp apart.
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

// backend is the kernel's table as a pass needs it.
type backend interface {
	dump(q *query, show func([]Flow) error) (scanned int, err error)
	remove(flows []Flow) (failed int, err error)
	entries() (int, error)
	close()
}

// Syncer keeps the conntrack table true to what frontends offer. Its methods may be called from any goroutine; none
// but Run waits for the kernel.
type Syncer struct {
	opts   Options
	caps   Caps
	kernel backend
	raw    *raw // nil unless resets are wanted

	mu    sync.Mutex // guards table and idle
	table *table
	idle  chan struct{} // closed while there is nothing left to look at

	wake chan struct{} // one slot: there may be something new to look at

	// Of the goroutine of Run.
	stale []Flow
	rest  time.Time // until when all rest that is owed would last
}

// New opens the sockets and finds out what the kernel can do. The Syncer does nothing until Run, and Run judges nothing
// until the first Resync. Needs CAP_NET_ADMIN.
func New(opts Options) (*Syncer, error) {
	k, err := openKernel(opts.NetNS)
	if err != nil {
		return nil, err
	}
	caps, err := k.probe()
	if err != nil {
		k.close()
		return nil, err
	}
	s := newSyncer(opts, k, caps)
	if opts.Reset && opts.Scope.TCP {
		if s.raw, err = openRaw(opts.NetNS); err != nil {
			k.close()
			return nil, err
		}
	}
	return s, nil
}

// newSyncer returns a Syncer over any conntrack table.
func newSyncer(opts Options, k backend, caps Caps) *Syncer {
	idle := make(chan struct{})
	close(idle)
	return &Syncer{
		opts: opts, caps: caps, kernel: k,
		table: newTable(opts.Scope), idle: idle,
		wake:  make(chan struct{}, 1),
		stale: make([]Flow, 0, deleteBatch),
	}
}

// Caps returns the dump filters that the kernel has.
func (s *Syncer) Caps() Caps { return s.caps }

// Announce says what a commit is about to offer, before it is sent to the kernel: from then on flows to the new
// endpoints are right. Without it, a pass that runs between the commit and its Update would take the first flows to a
// new endpoint for stale, which costs a UDP client one more choice, and a TCP client (Scope.TCP) its connection. A
// commit that fails needs nothing more.
func (s *Syncer) Announce(changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.announce(changes)
}

// Update says what was committed to the kernel. Flows that the changes made stale are looked for at once and deleted
// by Run. The order of calls is the order of truth; a frontend that is not mentioned stays as it is.
//
// To find what went stale while nobody watched, feed the frontends and endpoints that the kernel's rules still hold at
// start, then the wanted ones (with Removed for those that are no more), then call Resync.
func (s *Syncer) Update(changes []Change) {
	s.change(func(now time.Time) { s.table.update(changes, now) })
}

// SetNodeAddrs replaces the addresses on which NodePorts are served. New ones cause a full pass.
func (s *Syncer) SetNodeAddrs(addrs []netip.Addr) {
	s.change(func(now time.Time) { s.table.setNodes(addrs, now) })
}

// SetServiceCIDRs replaces the prefixes of which every address is ours, used by Service or not. Translated flows to
// addresses in them that no frontend has are stale. It takes effect with the next pass.
func (s *Syncer) SetServiceCIDRs(prefixes []netip.Prefix) {
	s.change(func(time.Time) { s.table.owned = prefixes })
}

// Resync judges all entries. It must be called once everything is known and committed, and not before, since what is
// not known counts as not offered; nothing is judged until then.
func (s *Syncer) Resync() {
	s.change(s.table.lookAtAll)
}

// change applies f to the table and wakes Run.
func (s *Syncer) change(f func(now time.Time)) {
	s.mu.Lock()
	f(time.Now())
	if s.table.concerned() {
		select {
		case <-s.idle:
			s.idle = make(chan struct{})
		default:
		}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wait returns when there is nothing left to look at: every change was followed by its last pass, or given up.
func (s *Syncer) Wait(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run makes passes until ctx ends, then closes the sockets and returns nil. It must be called once.
func (s *Syncer) Run(ctx context.Context) error {
	defer s.close()
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

// close closes the sockets.
func (s *Syncer) close() {
	s.kernel.close()
	if s.raw != nil {
		s.raw.close()
	}
}

// step makes one pass if one is due, and returns when it shall be called again; the zero time means when woken.
func (s *Syncer) step(ctx context.Context) (next time.Time) {
	now := time.Now()
	if begin := s.rest.Add(-burst); now.Before(begin) {
		return begin // woken in the rest: what is new waits with the others
	}
	s.mu.Lock()
	r, next := s.table.take(now)
	s.mu.Unlock()
	if r.empty() {
		return next
	}
	p := s.pass(ctx, &r)
	if ctx.Err() != nil {
		return time.Time{}
	}
	s.mu.Lock()
	p.GivenUp = s.table.done(r, p.Err == nil, p.Start, p.Start.Add(p.Duration))
	s.mu.Unlock()
	if s.rest.Before(p.Start) {
		s.rest = p.Start
	}
	s.rest = s.rest.Add(p.Duration + min(restFactor*p.Duration, maxRest)) // a pass is no rest
	if s.opts.OnPass != nil {
		s.opts.OnPass(p)
	}
	s.mu.Lock() // again: who waits for the end shall find the last pass reported
	defer s.mu.Unlock()
	if !s.table.concerned() {
		s.becomeIdle()
	}
	_, next = s.table.take(now) // what became due since has its time in next
	return next
}

// becomeIdle lets Wait return. s.mu must be held.
func (s *Syncer) becomeIdle() {
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

// pass looks at what r asks for.
func (s *Syncer) pass(ctx context.Context, r *round) Pass {
	p := Pass{Start: time.Now(), Full: r.full != nil, Frontends: len(r.fronts)}
	n, err := s.kernel.entries()
	if err != nil {
		n = maxFiltered + 1 // as if the table were large: that plan is right for any size
	}
	for _, q := range plan(r, s.caps, n, &s.opts.Scope) {
		if err := s.query(ctx, &q, &p); err != nil && p.Err == nil {
			p.Err = err
		}
	}
	p.Duration = time.Since(p.Start)
	return p
}

// query makes one dump, again while it is interrupted, and deletes what is stale on the way.
func (s *Syncer) query(ctx context.Context, q *query, p *Pass) (err error) {
	for range maxDumps {
		var scanned int
		var failure error
		p.Dumps++
		scanned, err = s.kernel.dump(q, func(flows []Flow) error {
			if e := s.judge(flows, p); failure == nil {
				failure = e
			}
			return ctx.Err()
		})
		p.Scanned += scanned
		if e := s.flush(p); failure == nil {
			failure = e
		}
		if err = errors.Join(err, failure); !errors.Is(err, errInterrupted) {
			break
		}
	}
	return err
}

// judge judges the entries of one datagram. The lock is held for them together: 170 judgements take some 20 µs, which
// no Update notices, and 170 times less locking.
func (s *Syncer) judge(flows []Flow, p *Pass) error {
	var err error
	for len(flows) > 0 {
		flows = s.judgeSome(flows, p)
		if len(s.stale) < cap(s.stale) {
			break
		}
		if e := s.flush(p); err == nil {
			err = e
		}
	}
	return err
}

// judgeSome judges until the batch of stale flows is full, and returns the flows that are left.
func (s *Syncer) judgeSome(flows []Flow, p *Pass) []Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range flows {
		r := s.table.judge(&flows[i])
		if r == Keep {
			continue
		}
		p.Stale[r]++
		if s.opts.OnStale != nil {
			s.opts.OnStale(flows[i], r)
		}
		if s.stale = append(s.stale, flows[i]); len(s.stale) == cap(s.stale) {
			return flows[i+1:]
		}
	}
	return nil
}

// flush deletes the batch of stale flows.
func (s *Syncer) flush(p *Pass) error {
	if len(s.stale) == 0 {
		return nil
	}
	failed, err := s.kernel.remove(s.stale)
	p.Failed += failed
	if s.raw != nil && err == nil { // what could not be deleted would answer for the dead
		p.Resets += s.raw.nudge(s.stale)
	}
	s.stale = s.stale[:0]
	return err
}
