// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// settleTimes are the times after a commit at which the frontends it changed are looked at. The first look is at once. The
// others close the race with packets in flight: a packet that the old rules sent to the old endpoint enters the
// conntrack table only when it leaves the last hook, and may do so in a part of the table that the first pass has
// already read. Within one CPU's receive path that takes microseconds, so 25 ms are plenty; the last look is for what
// was held up on the way: a preempted sender, or a verdict of a user space queue.
var settleTimes = []time.Duration{0, 25 * time.Millisecond, 500 * time.Millisecond}

const (
	// maxTries bounds the passes over one frontend that fail in a row, the first included.
	maxTries = 6
	// firstRetry is the pause after the first failure; each further one doubles it, so that all tries together
	// span 50+100+200+400+800 ms, about what a short loss of memory on the node lasts.
	firstRetry = 50 * time.Millisecond
)

// concern is one reason to look at the conntrack table. It is replaced, never changed, when its frontend changes
// again, so that a pass that began before can tell.
type concern struct {
	born, due    time.Time
	round, tries int
	// fresh says that flows from before our rules may be there, which no status filter can tell from others.
	fresh bool
}

// table is the state of a Syncer without its socket and clock. It is not safe for concurrent use.
type table struct {
	view
	concerns map[Frontend]*concern
	// full, if not nil, is the concern of everything.
	full    *concern
	started bool
	// settle are the settleTimes in use; tests that are not about them have shorter ones.
	settle []time.Duration
}

// newTable returns a table that offers nothing.
func newTable(scope Scope) *table {
	return &table{
		view: view{
			scope:     scope,
			offers:    map[Frontend]offer{},
			former:    map[Frontend][]netip.AddrPort{},
			announced: map[Frontend][]netip.AddrPort{},
		},
		concerns: map[Frontend]*concern{},
		settle:   settleTimes,
	}
}

// announce widens what is acceptable until the next update of the same frontends.
func (t *table) announce(changes []Change) {
	for _, c := range changes {
		if !c.Removed && len(c.Endpoints) > 0 {
			t.announced[unmapped(c.Frontend)] = ordered(c.Endpoints)
		}
	}
}

// update takes over what the changes say.
func (t *table) update(changes []Change, now time.Time) {
	for _, c := range changes {
		c.Frontend, c.Endpoints = unmapped(c.Frontend), ordered(c.Endpoints)
		delete(t.announced, c.Frontend)
		old, had := t.offers[c.Frontend]
		if c.Removed {
			if had {
				t.remove(c.Frontend, old, now)
			}
			continue
		}
		fresh := !had || len(old.endpoints) == 0 || old.untranslated && !c.Untranslated
		t.offers[c.Frontend] = offer{c.Endpoints, c.Untranslated}
		if fresh && t.mayPassBy(c.Frontend) || !fresh && t.scope.covers(c.Proto) && lost(old.endpoints, c.Endpoints) {
			t.look(c.Frontend, fresh, now)
		}
	}
}

// remove takes a frontend away. Its endpoints are remembered until the last look at them.
func (t *table) remove(front Frontend, old offer, now time.Time) {
	delete(t.offers, front)
	if !t.scope.covers(front.Proto) {
		return
	}
	t.former[front] = union(t.former[front], old.endpoints)
	t.look(front, false, now)
}

// mayPassBy says whether untranslated flows to a new frontend are possible and would be judged. Addresses of the
// service CIDRs lead nowhere without a Service, so a new ClusterIP of a protocol that is not covered needs no look:
// they are most of what is ever created, and each look costs a walk of the kernel's table.
func (t *table) mayPassBy(front Frontend) bool {
	return t.scope.covers(front.Proto) || front.Proto == TCP && !t.owns(front.Addr)
}

// look makes the frontend a concern, anew if it is one already. Nothing is looked at before the first full look.
func (t *table) look(front Frontend, fresh bool, now time.Time) {
	if !t.started {
		return
	}
	if was, ok := t.concerns[front]; ok {
		fresh = fresh || was.fresh
	}
	t.concerns[front] = &concern{born: now, due: now, fresh: fresh}
}

// lookAtAll makes everything a concern.
func (t *table) lookAtAll(now time.Time) {
	t.started = true
	t.full = &concern{born: now, due: now, fresh: true}
}

// setNodes replaces the node's own addresses. Flows to addresses that are new have never been judged by NodePorts.
func (t *table) setNodes(addrs []netip.Addr, now time.Time) {
	was := t.nodes
	t.nodes = make(map[netip.Addr]struct{}, len(addrs))
	grown := false
	for _, a := range addrs {
		a = a.Unmap().WithZone("") // conntrack knows neither mapped addresses nor scopes
		t.nodes[a] = struct{}{}
		if _, ok := was[a]; !ok {
			grown = true
		}
	}
	if grown && t.started {
		t.lookAtAll(now)
	}
}

// round is what one pass looks at. A nil front stands for everything.
type round struct {
	fronts   []Frontend
	concerns []*concern
	full     *concern
}

// fresh says whether the pass has to see untranslated flows.
func (r *round) fresh() bool {
	return r.full != nil || slices.ContainsFunc(r.concerns, func(c *concern) bool { return c.fresh })
}

// take returns all that is due at now, and when the next will be; the zero time means never.
func (t *table) take(now time.Time) (r round, next time.Time) {
	earliest := func(due time.Time) {
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	for front, c := range t.concerns {
		if c.due.After(now) {
			earliest(c.due)
			continue
		}
		r.fronts, r.concerns = append(r.fronts, front), append(r.concerns, c)
	}
	if t.full != nil {
		if t.full.due.After(now) {
			earliest(t.full.due)
		} else {
			r.full = t.full
		}
	}
	return r, next
}

// empty says whether there is nothing to look at.
func (r *round) empty() bool { return r.full == nil && len(r.fronts) == 0 }

// done takes note that a pass that began at start ended at now, completely or not. It returns the number of concerns
// that are given up. Concerns that were replaced meanwhile are left alone: they need a pass of their own.
func (t *table) done(r round, complete bool, start, now time.Time) (givenUp int) {
	for i, front := range r.fronts {
		c := r.concerns[i]
		if t.concerns[front] != c {
			continue
		}
		over, lost := t.advance(c, complete, start, now)
		if lost {
			givenUp++
		}
		if over {
			delete(t.concerns, front)
			delete(t.former, front)
		}
	}
	if c := r.full; c != nil && t.full == c {
		over, lost := t.advance(c, complete, start, now)
		if lost {
			givenUp++
		}
		if over {
			t.full = nil
			// Those that were removed before the first full look have no concern of their own.
			maps.DeleteFunc(t.former, func(f Frontend, _ []netip.AddrPort) bool { return t.concerns[f] == nil })
		}
	}
	return givenUp
}

// advance sets when c is due next. A pass counts for every look that was due when it began.
func (t *table) advance(c *concern, complete bool, start, now time.Time) (over, lost bool) {
	if !complete {
		if c.tries++; c.tries >= maxTries {
			return true, true
		}
		c.due = now.Add(firstRetry << (c.tries - 1))
		return false, false
	}
	c.tries = 0
	for c.round < len(t.settle) && !c.born.Add(t.settle[c.round]).After(start) {
		c.round++
	}
	if c.round == len(t.settle) {
		return true, false
	}
	c.due = c.born.Add(t.settle[c.round])
	return false, false
}

// ordered returns the endpoints in order, which lets a judgement among 100,000 take 17 steps. It copies only if they
// are not.
func ordered(endpoints []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(endpoints, netip.AddrPort.Compare) {
		return endpoints
	}
	return slices.SortedFunc(slices.Values(endpoints), netip.AddrPort.Compare)
}

// has says whether the ordered endpoints contain e.
func has(endpoints []netip.AddrPort, e netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(endpoints, e, netip.AddrPort.Compare)
	return ok
}

// lost says whether an endpoint of old is missing from now. Both are ordered.
func lost(old, now []netip.AddrPort) bool {
	for _, e := range old {
		for len(now) > 0 && now[0].Compare(e) < 0 {
			now = now[1:]
		}
		if len(now) == 0 || now[0] != e {
			return true
		}
	}
	return false
}

// union returns the endpoints of a and b in order. It changes neither.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	if len(a) == 0 {
		return b
	}
	return slices.Compact(ordered(slices.Concat(a, b)))
}

// unmapped returns f with its address in the form that conntrack reports.
func unmapped(f Frontend) Frontend {
	f.Addr = f.Addr.Unmap()
	return f
}

// concerned says whether there is anything to look at, now or later.
func (t *table) concerned() bool { return t.full != nil || len(t.concerns) > 0 }
