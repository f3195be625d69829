// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"errors"
	"slices"
	"time"
)

// round reads the kernel, plans, and applies what is missing. It returns how long to wait for the next round if
// nothing happens.
func (m *Manager) round(ctx context.Context) (wait time.Duration, err error) {
	s, err := m.sys.Read(ctx, m.config.Steering.Table)
	if err != nil {
		m.log.Error("routing round failed", "err", err)
		m.have = nil // unknown: what is missing next time is not called a repair
		return m.backOff(), err
	}
	r := m.takeOver(s)
	in := InterestIn(r.Want, m.config.Steering.Table)
	m.interest.Store(&in)
	m.patient.keep(r.Want)

	have := s.Have()
	ops, deferred, wait := m.affordable(m.held(Diff(have, r.Want)), time.Now())
	now, err := m.sys.Apply(ctx, have, ops, s.Name)
	m.account(s, r, ops, now, deferred, err)
	m.have = now
	if err != nil {
		return min(wait, m.backOff()), err
	}
	m.retry = 0
	return wait, nil
}

// takeOver plans, with the new configuration if there is one and the node has nothing against it that it has not
// against the old one.
func (m *Manager) takeOver(s State) Result {
	m.mu.Lock()
	next := m.next
	m.mu.Unlock()
	old := Plan(m.config, s, m.devices)
	if next == nil {
		m.devices = old.Devices
		return old
	}
	r := Plan(*next, s, m.devices)
	for _, p := range r.Problems {
		if p.Severity == Conflict && !slices.Contains(old.Problems, p) {
			old.Problems = append(old.Problems, Problem{Conflict, "new configuration not in force: " + p.Text})
			m.devices = old.Devices
			return old
		}
	}
	m.config, m.devices = *next, r.Devices
	m.mu.Lock()
	m.hold = false
	if m.next == next { // else a newer one came meanwhile, and a trigger with it
		m.next = nil
	}
	m.mu.Unlock()
	return r
}

// held leaves out all but additions as long as the configuration is not complete.
func (m *Manager) held(ops []Op) []Op {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hold {
		return ops
	}
	return slices.DeleteFunc(ops, func(op Op) bool { return op.Verb != Add })
}

// affordable leaves out additions that somebody keeps undoing, and tells their number and when to try again.
func (m *Manager) affordable(ops []Op, now time.Time) (out []Op, deferred int, wait time.Duration) {
	wait = verify
	for _, op := range ops {
		if op.Verb != Remove {
			if ok, next := m.patient.allow(op.Entry, now); !ok {
				deferred++
				wait = min(wait, next.Sub(now))
				continue
			}
		}
		out = append(out, op)
	}
	return out, deferred, wait
}

// backOff returns the time until the next attempt after a failure: doubling, and bounded.
func (m *Manager) backOff() time.Duration {
	m.retry = min(max(2*m.retry, retryMin), retryMax)
	return m.retry
}

// account counts a round and logs what is worth it.
func (m *Manager) account(s State, r Result, ops []Op, now Set, deferred int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := &m.stats
	st.Rounds++
	for _, op := range ops {
		done := op.Verb == Remove && !now.Has(op.Entry) || op.Verb != Remove && now.Has(op.Entry)
		switch {
		case !done:
			st.Failed++
			continue
		case op.Verb == Remove:
			st.Removed++
		default:
			st.Added++
		}
		repair := op.Verb != Remove && m.have.Has(op.Entry)
		if repair {
			st.Repaired[op.Entry.Kind()]++
		}
		m.log.Info("routing", "op", op.Verb.String(), "entry", op.Entry.Text(s.Name), "repair", repair)
	}
	st.Wanted = r.Want.Counts()
	st.Entries = owned(now, r.Want).Counts()
	st.Deferred = deferred
	m.report(append(r.Problems, taken(err)...), err)
}

// report logs problems when they appear or go, and remembers them. m.mu must be held.
func (m *Manager) report(found []Problem, err error) {
	st := &m.stats
	for _, p := range found {
		if !slices.Contains(st.Problems, p) {
			m.log.Warn("routing problem", "severity", p.Severity.String(), "problem", p.Text)
		}
	}
	for _, p := range st.Problems {
		if !slices.Contains(found, p) {
			m.log.Info("routing problem gone", "problem", p.Text)
		}
	}
	st.Problems = found
	if err != nil {
		m.log.Error("routing round failed", "err", err)
		return
	}
	st.Synced = time.Now()
	select {
	case <-m.synced:
	default:
		close(m.synced)
	}
}

// taken turns refusals by something of others into problems: what is to be done is the operator's to decide.
func taken(err error) []Problem {
	var out []Problem
	for _, e := range flatten(err) {
		var op *OpError
		if errors.As(e, &op) && op.Taken() {
			out = append(out, Problem{Conflict, op.Text + ": others hold that place: remove theirs, or move ours"})
		}
	}
	return out
}

// flatten returns the errors that were joined into err.
func flatten(err error) []error {
	for err != nil {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			return many.Unwrap()
		}
		inner := errors.Unwrap(err)
		if inner == nil {
			return []error{err}
		}
		err = inner
	}
	return nil
}

// owned returns the entries of now without loose filters that we did not want, which are nobody's.
func owned(now, want Set) Set {
	out := Set{}
	for e := range now {
		if e.Kind() != KindSysctl || want.Has(e) {
			out[e] = struct{}{}
		}
	}
	return out
}

// Cleanup removes every entry that carries our protocol number, whoever of us made it, and nothing else; a filter that
// was loosened stays loose. It returns the number of entries removed.
func Cleanup(ctx context.Context, sys System) (removed int, err error) {
	s, err := sys.Read(ctx, 0)
	if err != nil {
		return 0, err
	}
	now, err := sys.Apply(ctx, s.Ours, Diff(s.Ours, Set{}), s.Name)
	return len(s.Ours) - len(now), err
}

// Line is one of our entries as a reader wants it.
type Line struct {
	Kind   string `json:"kind"`
	Family string `json:"family"`
	Text   string `json:"text"`
}

// Dump returns our entries as they are in the kernel, whoever of us made them: addresses, neighbours, routes, rules.
func Dump(ctx context.Context, sys System) ([]Line, error) {
	s, err := sys.Read(ctx, 0)
	if err != nil {
		return nil, err
	}
	out := make([]Line, 0, len(s.Ours))
	for _, e := range s.Ours.Sorted() {
		out = append(out, Line{e.Kind().String(), e.Family().String(), e.Text(s.Name)})
	}
	return out, nil
}
