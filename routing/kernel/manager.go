// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/nftproxy/nftproxy/routing"
)

// System is what a [Manager] needs of the kernel; [Kernel] is one. One goroutine at a time uses it.
type System interface {
	Read(ctx context.Context, c routing.Config) (routing.State, error)
	Apply(ctx context.Context, have routing.Set, ops []routing.Op, name func(int) string) (now routing.Set, err error)
	Watch() (Subscription, error)
}

// Subscription receives notifications of changes.
type Subscription interface {
	// Run calls trigger whenever something of interest has changed, or may have: lost notifications are a trigger
	// too. It returns nil when ctx ends, and an error when it can receive no more. trigger must not block; interest is
	// called for every notification. Run must be called exactly once: it closes the subscription.
	Run(ctx context.Context, interest func() Interest, trigger func()) error
}

// The times of the loop: all pauses, retries and rates are here.
//
// The delay from a change to its repair is at most gather + gap + the time to read (0.3 ms, more on a node with many
// interfaces) and to apply. The gap bounds the load too: whatever the number of notifications, there are at most
// 1/(gather+gap) = 50 rounds a second.
const (
	gather    = 5 * time.Millisecond  // changes come in groups: a link that goes up causes a dozen
	gap       = 15 * time.Millisecond // from the end of one round to the next
	verify    = time.Minute           // a round without a trigger, in case one was lost
	retryMin  = 100 * time.Millisecond
	retryMax  = 10 * time.Second // a failed round is repeated after 0.1, 0.2, ... 10 s
	resubWait = time.Second      // until a broken subscription is opened again

	// An entry is put back 32 times at once, enough for any rearrangement of a network by hand or script, and once a
	// second after that: two programs that disagree about an entry cost each other no noticeable load.
	repairBurst  = 32
	repairPeriod = time.Second
)

// Manager keeps the kernel as a [routing.Config] demands: it reads, plans, applies, and repeats whenever something has
// changed. Devices, addresses and gateways that are missing are waited for.
//
// Run owns all state; the other methods may be called from any goroutine at any time.
type Manager struct {
	// OnProblems, if not nil, is called with the problems of a round whenever they differ from those of the last one,
	// by the goroutine of Run. Set it before Run. It must not call the Manager.
	OnProblems func([]routing.Problem)

	sys      System
	log      *slog.Logger
	kick     chan struct{} // capacity 1: a round is due
	interest atomic.Pointer[Interest]

	mu      sync.Mutex // guards the fields below
	next    *routing.Config
	refused []routing.Problem // of the last configuration that was wrong in itself
	stats   Stats

	// Only Run uses what follows.
	config  routing.Config
	partial bool // the service CIDRs are not known yet, so nothing is changed or removed
	devices map[string]int
	have    routing.Set // the result of the last round; nil before the first
	limits  map[routing.Entry]*rate.Limiter
	retry   time.Duration
}

// Stats are the counters and the state of the last round. Counters only grow.
type Stats struct {
	Entries  map[routing.Kind]int    // that exist, of those that we own
	Wanted   map[routing.Kind]int    // that should exist, without those that wait for a device
	Repaired map[routing.Kind]uint64 // put back after another program had removed or changed them
	Added    uint64                  // operations that succeeded, repairs included
	Removed  uint64
	Failed   uint64            // operations that the kernel refused
	Deferred int               // repairs that the rate limit holds back now
	Rounds   uint64            // times the kernel was read
	Problems []routing.Problem // of the last round; what waits for a device is one
}

// New returns a Manager for a configuration, or a [*routing.RefusedError] if that is wrong in itself. log may be nil.
func New(sys System, c routing.Config, log *slog.Logger) (*Manager, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		sys: sys, log: log, config: c, partial: len(c.ServiceCIDRs) == 0,
		kick: make(chan struct{}, 1), limits: map[routing.Entry]*rate.Limiter{},
	}
	m.interest.Store(&Interest{})
	m.stats.Repaired = map[routing.Kind]uint64{}
	return m, nil
}

// Update replaces the configuration. Until the first one whose service CIDRs are known, entries are only added where
// nothing of ours is, so that a restart disturbs nothing. A configuration that is wrong in itself is refused with a
// [*routing.RefusedError] and reported as a problem until the next Update; the old one stays in force.
func (m *Manager) Update(c routing.Config) error {
	c, err := c.Normalize()
	m.mu.Lock()
	m.refused = nil
	var refused *routing.RefusedError
	if errors.As(err, &refused) {
		for _, p := range refused.Problems {
			p.Text = "new configuration not in force: " + p.Text
			m.refused = append(m.refused, p)
		}
	} else {
		m.next = &c
	}
	m.mu.Unlock()
	m.Trigger()
	return err
}

// Trigger causes a round soon. It never blocks.
func (m *Manager) Trigger() {
	select {
	case m.kick <- struct{}{}:
	default: // one is due already, and it will see this change too
	}
}

// Stats returns a copy of the counters.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Entries, s.Wanted, s.Repaired = maps.Clone(s.Entries), maps.Clone(s.Wanted), maps.Clone(s.Repaired)
	s.Problems = slices.Clone(s.Problems)
	return s
}

// Check reads the node and returns a [*routing.RefusedError] if the configuration is in conflict with it. What is only
// missing is no conflict. It changes nothing.
func (m *Manager) Check(ctx context.Context) error {
	s, err := m.sys.Read(ctx, m.config)
	if err != nil {
		return err
	}
	return routing.Plan(m.config, s, nil).Refused()
}

// Run applies the configuration and keeps it applied until ctx ends; then it returns nil and leaves everything in
// place, so that traffic survives a restart. It returns an error if the kernel cannot be watched, or if the first round
// lacks the privilege to read or write.
func (m *Manager) Run(ctx context.Context) error {
	sub, err := m.sys.Watch()
	if err != nil {
		return err
	}
	var watcher sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer watcher.Wait()
	defer cancel()
	watcher.Go(func() { m.watch(ctx, sub) })

	for first := true; ; first = false {
		wait, err := m.round(ctx)
		denied := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
		if first && denied && ctx.Err() == nil {
			return fmt.Errorf("routing needs CAP_NET_ADMIN: %w", err)
		}
		if !m.rest(ctx, wait) {
			return nil
		}
	}
}

// watch receives notifications until ctx ends, and subscribes again when that fails.
func (m *Manager) watch(ctx context.Context, sub Subscription) {
	for {
		err := sub.Run(ctx, func() Interest { return *m.interest.Load() }, m.Trigger)
		for sub = nil; sub == nil; {
			if ctx.Err() != nil {
				return
			}
			m.log.Warn("Routing receives no notifications", "err", err)
			if !sleep(ctx, resubWait) {
				return
			}
			sub, err = m.sys.Watch()
		}
		m.Trigger() // for what was missed in between
	}
}

// rest waits until there is a reason for the next round. It reports false when ctx has ended.
func (m *Manager) rest(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-m.kick:
	}
	if !sleep(ctx, gather+gap) {
		return false
	}
	select { // this round sees what was gathered meanwhile
	case <-m.kick:
	default:
	}
	return true
}

// sleep waits for d. It reports false when ctx has ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round reads the kernel, plans, and applies what is missing. It returns the time until the next round if nothing
// happens.
func (m *Manager) round(ctx context.Context) (wait time.Duration, err error) {
	m.mu.Lock()
	if m.next != nil {
		m.config, m.next, m.partial = *m.next, nil, false
	}
	refused := m.refused
	m.mu.Unlock()

	s, err := m.sys.Read(ctx, m.config)
	if err != nil {
		m.log.Error("Routing round failed", "err", err)
		m.have = nil // unknown: what is missing next time does not count as a repair
		return m.backOff(), err
	}
	r := routing.Plan(m.config, s, m.devices)
	r.Problems = append(r.Problems, refused...)
	m.devices = r.Devices
	in := InterestIn(r.Want, m.config)
	m.interest.Store(&in)

	have := s.Have()
	ops := routing.Diff(have, r.Want)
	if m.partial {
		ops = slices.DeleteFunc(ops, func(op routing.Op) bool { return op.Verb != routing.Add })
	}
	ops, deferred, wait := m.limit(ops, r.Want)
	now, err := m.sys.Apply(ctx, have, ops, s.Name)
	m.count(s, r, ops, now, deferred, err)
	m.have = now
	if err != nil {
		return min(wait, m.backOff()), err
	}
	m.retry = 0
	return wait, nil
}

// limit leaves out additions over the rate limit of their entry, and returns their number and the time until the next
// one is allowed. Limits of entries that are not wanted any more are dropped.
func (m *Manager) limit(ops []routing.Op, want routing.Set) (out []routing.Op, deferred int, wait time.Duration) {
	maps.DeleteFunc(m.limits, func(e routing.Entry, _ *rate.Limiter) bool { return !want.Has(e) })
	wait = verify
	now := time.Now()
	for _, op := range ops {
		if op.Verb != routing.Remove {
			l := m.limits[op.Entry]
			if l == nil {
				l = rate.NewLimiter(rate.Every(repairPeriod), repairBurst)
				m.limits[op.Entry] = l
			}
			r := l.ReserveN(now, 1)
			if d := r.DelayFrom(now); d > 0 {
				r.CancelAt(now)
				deferred++
				wait = min(wait, d)
				continue
			}
		}
		out = append(out, op)
	}
	return out, deferred, wait
}

// backOff returns the time until the next attempt after a failure.
func (m *Manager) backOff() time.Duration {
	m.retry = min(max(2*m.retry, retryMin), retryMax)
	return m.retry
}

// count updates the counters after a round and logs operations and changes of problems.
func (m *Manager) count(s routing.State, r routing.Result, ops []routing.Op, now routing.Set, deferred int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := &m.stats
	st.Rounds++
	for _, op := range ops {
		removal := op.Verb == routing.Remove
		if removal == now.Has(op.Entry) {
			st.Failed++
			continue
		}
		if removal {
			st.Removed++
		} else {
			st.Added++
		}
		repair := !removal && m.have.Has(op.Entry)
		if repair {
			st.Repaired[op.Entry.Kind()]++
		}
		m.log.Info("Routing", "op", op.Verb.String(), "entry", op.Entry.Text(s.Name), "repair", repair)
	}
	// A loose filter that is not wanted belongs to others.
	maps.DeleteFunc(now, func(e routing.Entry, _ struct{}) bool { return e.Kind() == routing.KindSysctl && !r.Want.Has(e) })
	st.Wanted, st.Entries, st.Deferred = r.Want.Counts(), now.Counts(), deferred
	found := append(r.Problems, taken(err)...)
	for _, p := range found {
		if !slices.Contains(st.Problems, p) {
			m.log.Warn("Routing problem", "severity", p.Severity.String(), "problem", p.Text)
		}
	}
	for _, p := range st.Problems {
		if !slices.Contains(found, p) {
			m.log.Info("Routing problem gone", "problem", p.Text)
		}
	}
	if m.OnProblems != nil && !slices.Equal(found, st.Problems) {
		m.OnProblems(found)
	}
	st.Problems = found
	if err != nil && m.retry == 0 { // the first of a series
		m.log.Error("Routing round failed", "err", err)
	}
}

// taken turns refusals because of an entry of others into problems: the operator decides which one stays.
func taken(err error) (out []routing.Problem) {
	joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	for _, e := range joined.Unwrap() {
		var op *OpError
		if errors.As(e, &op) && errors.Is(op.Err, syscall.EEXIST) {
			out = append(out, routing.Problem{
				Severity: routing.Conflict, Text: op.Text + ": others hold that place: remove theirs, or move ours",
			})
		}
	}
	return out
}
