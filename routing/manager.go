// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// System is what a [Manager] needs of the kernel; [Kernel] is one. One goroutine at a time uses it.
type System interface {
	Read(ctx context.Context, table uint32) (State, error)
	Apply(ctx context.Context, have Set, ops []Op, name func(int) string) (now Set, err error)
	Watch() (Subscription, error)
}

// Subscription hears what changes.
type Subscription interface {
	// Run calls trigger whenever something of interest changed, or may have: notifications that were lost because
	// nobody read them in time are a trigger too. It returns nil when ctx ends, and an error when it can hear no more.
	// trigger must not block; interest is asked for every notification. Run is called once.
	Run(ctx context.Context, interest func() Interest, trigger func()) error
	// Close ends a subscription that does not run.
	Close()
}

// Times of the loop. The delay from a change to its repair is at most gather + gap + the time to read (0.3 ms, more on
// a node of many interfaces) and to apply: well within the 100 ms promised. The gap bounds the load too: however many
// notifications come, there are at most 1/gap, about 66 rounds a second.
const (
	gather    = 5 * time.Millisecond  // changes come in groups: a link that goes up brings a dozen
	gap       = 15 * time.Millisecond // from the end of one round to the next
	verify    = time.Minute           // a round without a reason, should a trigger ever be lost
	retryMin  = 100 * time.Millisecond
	retryMax  = 10 * time.Second
	resubWait = time.Second // until a broken subscription is made anew
)

// Manager keeps the kernel as a [Config] says: it reads, plans, applies, and does so again whenever something changed.
//
// Run owns all state; the other methods may be called from any goroutine at any time.
type Manager struct {
	sys      System
	log      *slog.Logger
	kick     chan struct{} // capacity 1: "look again"
	synced   chan struct{} // closed after the first round without an error
	interest atomic.Pointer[Interest]

	mu    sync.Mutex // for the fields below
	next  *Config    // a configuration that is not taken over yet
	hold  bool       // see Hold
	stats Stats

	// Only Run uses what follows.
	config  Config
	devices map[string]int
	have    Set // what the last round left behind; nil before the first
	patient patience
	retry   time.Duration
}

// Stats tells how it goes. Counters only grow.
type Stats struct {
	Entries  map[Kind]int    // now there, of those that we own
	Wanted   map[Kind]int    // that should be there
	Repaired map[Kind]uint64 // put back after somebody else had removed or changed them
	Added    uint64          // operations that succeeded, repairs included
	Removed  uint64
	Failed   uint64    // operations that the kernel refused
	Deferred int       // repairs held back now because somebody keeps undoing them
	Rounds   uint64    // times the kernel was read
	Problems []Problem // of the last round
	Synced   time.Time // end of the last round without an error
}

// New returns a Manager for a configuration, or a [*RefusedError] that says what is wrong with it. log may be nil.
func New(sys System, c Config, log *slog.Logger) (*Manager, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{sys: sys, log: log, config: c, kick: make(chan struct{}, 1), synced: make(chan struct{})}
	m.interest.Store(&Interest{})
	m.stats.Repaired = make(map[Kind]uint64, int(kinds))
	m.hold = len(c.ServiceCIDRs) == 0
	return m, nil
}

// Update hands over a new configuration. It returns a [*RefusedError] if it is wrong in itself; then, and as long as
// the node has something against it that it has not against the old one, the old one stays in force.
func (m *Manager) Update(c Config) error {
	c, err := c.Normalize()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.next = &c
	m.mu.Unlock()
	m.Trigger()
	return nil
}

// Hold says that the configuration is not complete yet: until one from Update is in force, entries are only added where nothing
// of ours is, and none is changed or removed. So a restart disturbs nothing while parts of the configuration are still
// being listed. New does it by itself where the service CIDRs are not known.
func (m *Manager) Hold() {
	m.mu.Lock()
	m.hold = true
	m.mu.Unlock()
}

// Trigger asks for a round soon. It never blocks.
func (m *Manager) Trigger() {
	select {
	case m.kick <- struct{}{}:
	default: // one is pending, and it will see this change too
	}
}

// Synced is closed when everything that the node allows was applied for the first time.
func (m *Manager) Synced() <-chan struct{} { return m.synced }

// Stats returns a copy of the counters.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Entries, s.Wanted, s.Repaired = cloneMap(s.Entries), cloneMap(s.Wanted), cloneMap(s.Repaired)
	s.Problems = slices.Clone(s.Problems)
	return s
}

// Check reads the node and returns a [*RefusedError] if the configuration cannot be used on it. It changes nothing.
func (m *Manager) Check(ctx context.Context) error {
	s, err := m.sys.Read(ctx, m.config.Steering.Table)
	if err != nil {
		return err
	}
	limit := Waiting
	if m.config.Wait {
		limit = Conflict
	}
	return refusal(Plan(m.config, s, nil).Problems, limit)
}

// Run applies the configuration and keeps it applied until ctx ends; then it returns nil and leaves everything in
// place, so that traffic survives a restart. It refuses as Check does before it changes anything, and returns an error
// if the very first round finds that it may not write.
func (m *Manager) Run(ctx context.Context) error {
	sub, err := m.sys.Watch()
	if err != nil {
		return err
	}
	if err := m.Check(ctx); err != nil {
		sub.Close()
		return err
	}
	var listener sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer listener.Wait()
	defer cancel()
	listener.Go(func() { m.listen(ctx, sub) })

	for first := true; ; first = false {
		wait, err := m.round(ctx)
		if first && denied(err) {
			return fmt.Errorf("routing: CAP_NET_ADMIN is needed: %w", err)
		}
		if !m.rest(ctx, wait) {
			return nil
		}
	}
}

// listen hears notifications until ctx ends, and subscribes anew when that fails.
func (m *Manager) listen(ctx context.Context, sub Subscription) {
	for {
		err := sub.Run(ctx, func() Interest { return *m.interest.Load() }, m.Trigger)
		for sub = nil; sub == nil; {
			if ctx.Err() != nil {
				return
			}
			m.log.Warn("routing cannot hear changes", "err", err)
			if !sleep(ctx, resubWait) {
				return
			}
			sub, err = m.sys.Watch()
		}
		m.Trigger() // for what was missed in between
	}
}

// rest waits until there is a reason for the next round, and tells whether there is to be one.
func (m *Manager) rest(ctx context.Context, wait time.Duration) bool {
	end := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-m.kick:
		if !sleep(ctx, max(gather, gap-time.Since(end))) {
			return false
		}
		select { // what was gathered meanwhile is seen by this round
		case <-m.kick:
		default:
		}
	}
	return true
}

// sleep waits for d, or until ctx ends, and tells which.
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

func cloneMap[V any](m map[Kind]V) map[Kind]V {
	out := make(map[Kind]V, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func denied(err error) bool {
	var op *OpError
	return errors.As(err, &op) && op.denied()
}
