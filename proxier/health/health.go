// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package health answers the health checks of load balancers, kubelets and
// users: /healthz and /livez of the proxy, and one small server per Service
// with a health check node port.
//
// The JSON, the header and the meaning are kube-proxy's, but for one point:
// /healthz answers 503 until every family has committed its first sync.
package health

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Proxy is the health of the proxy. The loop tells it what it queued and what
// it committed; any number of goroutines may ask. All methods are safe for
// concurrent use and do not block on I/O.
type Proxy struct {
	now   func() time.Time
	limit time.Duration

	mu       sync.Mutex
	families map[v1.IPFamily]*family
	node     Node
}

// family is the sync state of one IP family.
type family struct {
	// queued is when the oldest change was queued that no batch has taken, and
	// taken the same for the batch that is being applied. Zero: none.
	queued, taken time.Time
	// synced is the end of the last successful sync. Zero: none yet.
	synced time.Time
}

// oldest is the age of the oldest change that the kernel does not have.
func (f *family) oldest() time.Time {
	if f.taken.IsZero() || (!f.queued.IsZero() && f.queued.Before(f.taken)) {
		return f.queued
	}
	return f.taken
}

// Node is what eligibility depends on.
type Node struct {
	// Known is set once the own Node object was seen.
	Known bool
	// Deleting is set when it has a deletionTimestamp.
	Deleting bool
	// ScaledDown is set when it has the taint TaintScaleDown.
	ScaledDown bool
}

// TaintScaleDown is the taint by which the cluster autoscaler announces that it
// will delete a node.
const TaintScaleDown = "ToBeDeletedByClusterAutoscaler"

// eligible reports whether load balancers may send new connections to the node.
func (n Node) eligible() bool { return n.Known && !n.Deleting && !n.ScaledDown }

// New makes the health of a proxy of the given families. limit is the age of
// the oldest unapplied change from which on the proxy is unhealthy: twice the
// sync period (Config.UnhealthyAfter). now is the clock, time.Now outside tests.
func New(limit time.Duration, now func() time.Time, families ...v1.IPFamily) *Proxy {
	p := &Proxy{now: now, limit: limit, families: map[v1.IPFamily]*family{}}
	for _, f := range families {
		p.families[f] = &family{}
	}
	return p
}

// Queued notes that a change of the family waits to be applied.
func (p *Proxy) Queued(f v1.IPFamily) {
	p.with(f, func(s *family) {
		if s.queued.IsZero() {
			s.queued = p.now()
		}
	})
}

// Taken notes that a batch took every change queued so far. What is queued
// from now on is not covered by the next Synced. Optional: without it Synced
// covers all, which hides the age of what came in while the batch ran.
func (p *Proxy) Taken(f v1.IPFamily) {
	p.with(f, func(s *family) {
		s.taken, s.queued = s.oldest(), time.Time{}
	})
}

// Synced notes that the kernel has everything that the last batch took. After
// a failure nothing is called: the changes grow older until a retry succeeds.
func (p *Proxy) Synced(f v1.IPFamily) {
	p.with(f, func(s *family) {
		if s.taken.IsZero() {
			s.queued = time.Time{}
		}
		s.taken, s.synced = time.Time{}, p.now()
	})
}

// SetNode replaces what is known of the own Node.
func (p *Proxy) SetNode(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = n
}

// Healthy reports whether no family has a change older than the limit. A family
// that never synced is not late, as in kube-proxy: restarting a proxy that is
// still waiting for its first lists would not help. See Ready.
func (p *Proxy) Healthy() bool { return p.snapshot().healthy }

// Ready reports whether every family has committed its first sync.
func (p *Proxy) Ready() bool { return p.snapshot().ready }

// with changes the state of one family. A family that New was not told of has
// no state: nothing happens.
func (p *Proxy) with(f v1.IPFamily, change func(*family)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.families[f]; ok {
		change(s)
	}
}

// state is the health at one moment.
type state struct {
	now      time.Time
	healthy  bool // no family is late
	ready    bool // every family has synced once
	eligible bool
	// updated is the latest of the families' last syncs.
	updated  time.Time
	families map[v1.IPFamily]familyStatus // those that have synced once
}

// snapshot computes the state.
func (p *Proxy) snapshot() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := state{now: p.now(), healthy: true, ready: true, eligible: p.node.eligible(),
		families: map[v1.IPFamily]familyStatus{}}
	for name, f := range p.families {
		if f.synced.IsZero() {
			st.ready = false
			continue
		}
		oldest := f.oldest()
		inTime := oldest.IsZero() || st.now.Sub(oldest) < p.limit
		st.healthy = st.healthy && inTime
		st.families[name] = familyStatus{LastUpdated: f.synced, Healthy: inTime}
		if f.synced.After(st.updated) {
			st.updated = f.synced
		}
	}
	return st
}
