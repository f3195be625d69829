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

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// maxTries bounds the passes over one frontend that fail in a row, the first included.
	maxTries = 6
	// firstRetry is the pause after the first failure. It doubles, so that all tries together span
	// 50+100+200+400+800 ms, about as long as a node is short of memory for a moment.
	firstRetry = 50 * time.Millisecond
)

// check is one reason to read the conntrack table. It is replaced, not changed, when its frontend changes again, so
// that a pass that began earlier does not count for the new one.
type check struct {
	since, due time.Time
	step       int // in CheckTimes
	tries      int // that failed in a row
	// fresh means that flows from before our rules may exist, which the kernel's filter for translated flows hides.
	fresh bool
}

// everything is the key of the check of all frontends. No real frontend has an invalid address.
func everything() Frontend { return Frontend{} }

// State is what the frontends offer and which of them are to be checked. It is not safe for concurrent use, opens no
// socket and reads no clock.
type State struct {
	// CheckTimes are the times after a commit at which the frontends that it changed are checked. The first check is at
	// once. The others are for packets in flight: a packet that the old rules sent to the old endpoint enters the
	// conntrack table only when it leaves the last hook, and may do so in a part of the table that the first pass has
	// already read. Within one CPU's receive path that takes microseconds, so 25 ms are plenty; the last check is for
	// what was held up on the way: a preempted sender, or a verdict of a user space queue.
	CheckTimes []time.Duration

	scope  Scope
	offers map[Frontend]offer
	// former are the endpoints of removed frontends, until their last check.
	former        map[Frontend][]netip.AddrPort
	announced     map[Frontend][]netip.AddrPort
	nodePortAddrs map[netip.Addr]struct{}
	serviceCIDRs  []netip.Prefix
	checks        map[Frontend]*check
	started       bool // CheckAll was called
}

// NewState returns a State that offers nothing.
func NewState(scope Scope) *State {
	return &State{
		scope:      scope,
		offers:     map[Frontend]offer{},
		former:     map[Frontend][]netip.AddrPort{},
		announced:  map[Frontend][]netip.AddrPort{},
		checks:     map[Frontend]*check{},
		CheckTimes: []time.Duration{0, 25 * time.Millisecond, 500 * time.Millisecond},
	}
}

// Announce adds what a commit is about to offer: from now on, and until Update reports the commit, flows to these
// endpoints are right. It replaces what was announced before: what is not announced again belongs to a commit that
// failed, of which a part may have reached the kernel.
func (s *State) Announce(changes []Change, now time.Time) {
	was := s.announced
	s.announced = make(map[Frontend][]netip.AddrPort, len(changes))
	for i := range changes {
		if c := &changes[i]; !c.Removed && len(c.Endpoints) > 0 {
			s.announced[unmapped(c.Frontend)] = ordered(c.Endpoints)
		}
	}
	for front, endpoints := range was {
		if !slices.Equal(endpoints, s.announced[front]) {
			s.withdraw(front, endpoints, now)
		}
	}
}

// withdraw has flows checked that lead to endpoints of a frontend that may have been in the kernel for a while.
func (s *State) withdraw(front Frontend, endpoints []netip.AddrPort, now time.Time) {
	if !s.scope.covers(front.Proto) {
		return
	}
	if _, offered := s.offers[front]; !offered {
		s.former[front] = union(s.former[front], endpoints)
	}
	s.check(front, false, now)
}

// Update takes over what was committed. A frontend that is not mentioned stays as it is. The order of calls has to be
// that of the commits.
func (s *State) Update(changes []Change, now time.Time) {
	for i := range changes {
		c := &changes[i]
		front, stay := unmapped(c.Frontend), ordered(c.Endpoints)
		if c.Proto != UDP {
			stay = union(stay, ordered(c.Unready))
		}
		delete(s.announced, front)
		old, had := s.offers[front]
		if c.Removed {
			delete(s.offers, front)
			if had {
				s.withdraw(front, old.stay, now)
			}
			continue
		}
		s.offers[front] = offer{stay, c.Untranslated}
		fresh := !had || len(old.stay) == 0 || old.untranslated && !c.Untranslated
		if fresh && s.mayBeUntranslated(front) || !fresh && s.scope.covers(front.Proto) && lacks(stay, old.stay) {
			s.check(front, fresh, now)
		}
	}
	for front, endpoints := range s.announced {
		delete(s.announced, front)
		s.withdraw(front, endpoints, now)
	}
}

// mayBeUntranslated reports whether untranslated flows to a new frontend can exist and would be deleted. Addresses of
// the service CIDRs lead nowhere without a Service, so a new ClusterIP of a protocol out of scope needs no check: they
// are most of what is ever created, and each check costs a walk of the kernel's table.
func (s *State) mayBeUntranslated(front Frontend) bool {
	return s.scope.covers(front.Proto) || front.Proto == TCP &&
		!slices.ContainsFunc(s.serviceCIDRs, func(p netip.Prefix) bool { return p.Contains(front.Addr) })
}

// SetNodePortAddrs replaces the addresses on which NodePorts are served. A new one has everything checked.
func (s *State) SetNodePortAddrs(addrs []netip.Addr, now time.Time) {
	was := s.nodePortAddrs
	s.nodePortAddrs = make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		s.nodePortAddrs[a] = struct{}{}
		if _, known := was[a]; !known {
			s.check(everything(), true, now)
		}
	}
}

// SetServiceCIDRs replaces the prefixes of ClusterIPs.
func (s *State) SetServiceCIDRs(prefixes []netip.Prefix) { s.serviceCIDRs = prefixes }

// CheckAll has all flows checked. Until the first call nothing is, since what is not known yet counts as not offered.
func (s *State) CheckAll(now time.Time) {
	s.started = true
	s.check(everything(), true, now)
}

// check has a frontend checked, from the first of CheckTimes on.
func (s *State) check(front Frontend, fresh bool, now time.Time) {
	if !s.started {
		return
	}
	if was := s.checks[front]; was != nil {
		fresh = fresh || was.fresh
	}
	s.checks[front] = &check{since: now, due: now, fresh: fresh}
}

// Idle reports whether nothing is to be checked, now or later.
func (s *State) Idle() bool { return len(s.checks) == 0 }

// Due is what one pass over the conntrack table has to check.
type Due struct {
	checks map[Frontend]*check
	// Full means that all entries are checked, and Fresh that untranslated flows have to be seen.
	Full, Fresh bool
}

// Empty reports whether no pass is needed.
func (d *Due) Empty() bool { return len(d.checks) == 0 }

// Due returns what is due at now, and the time of the next check after that; the zero time means never.
func (s *State) Due(now time.Time) (d Due, next time.Time) {
	d.checks = map[Frontend]*check{}
	for front, c := range s.checks {
		switch {
		case !c.due.After(now):
			d.checks[front] = c
			d.Full = d.Full || front == everything()
			d.Fresh = d.Fresh || c.fresh
		case next.IsZero() || c.due.Before(next):
			next = c.due
		}
	}
	return d, next
}

// Done notes that the pass over d began at start and ended at end, with or without an error. It returns the number of
// checks that are given up.
func (s *State) Done(d Due, complete bool, start, end time.Time) (givenUp int) {
	for front, c := range d.checks {
		if s.checks[front] != c {
			continue // it changed during the pass and needs another one
		}
		if !complete {
			if c.tries++; c.tries < maxTries {
				c.due = end.Add(firstRetry << (c.tries - 1))
				continue
			}
			givenUp++
		} else if s.next(c, start) {
			continue
		}
		delete(s.checks, front)
		delete(s.former, front)
		if front == everything() { // what was removed before the first check of everything has no check of its own
			maps.DeleteFunc(s.former, func(f Frontend, _ []netip.AddrPort) bool { return s.checks[f] == nil })
		}
	}
	return givenUp
}

// next sets when c is due again and reports whether it is. A pass counts for every check that was due when it began.
func (s *State) next(c *check, start time.Time) bool {
	c.tries = 0
	for ; c.step < len(s.CheckTimes); c.step++ {
		if c.due = c.since.Add(s.CheckTimes[c.step]); c.due.After(start) {
			return true
		}
	}
	return false
}

// unmapped returns f with its address in the form that conntrack reports.
func unmapped(f Frontend) Frontend {
	f.Addr = f.Addr.Unmap()
	return f
}
