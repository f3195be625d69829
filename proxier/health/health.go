// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package health answers the health checks of load balancers, kubelets and users: /healthz and /livez of the proxy, and
// one small server per Service with a health check node port. It also runs the HTTP server of the metrics, with the
// same limits on what clients can hold.
//
// In come what the loop queued and committed (Proxy) and which Services need a server (Listeners); out go HTTP answers.
// The package never looks at objects of the API or at the kernel's tables.
//
// The JSON, the header and the meaning are kube-proxy's, with two exceptions: /healthz answers 503 until every family
// has committed its first sync, and its "healthy" is false whenever the status is 503.
package health

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Proxy is the health of the proxy. The loop reports what it queued and what it committed. All methods are safe for
// concurrent use and do not block on I/O.
type Proxy struct {
	now   func() time.Time
	limit time.Duration

	mu       sync.Mutex
	families map[v1.IPFamily]*family
	node     Node
	degraded map[string]string // see SetDegraded
}

// family is the sync state of one IP family.
type family struct {
	// queued is when the oldest change was queued that no batch has taken, and taken the same for the batch that is
	// being applied. Zero: none.
	queued, taken time.Time
	// synced is the end of the last successful sync. Zero: none yet.
	synced time.Time
}

// oldest is when the oldest change was queued that the kernel does not have.
func (f *family) oldest() time.Time {
	if f.taken.IsZero() || (!f.queued.IsZero() && f.queued.Before(f.taken)) {
		return f.queued
	}
	return f.taken
}

// Node is the part of the Node object that eligibility depends on.
type Node struct {
	// Known is set once the proxy's own Node object was received.
	Known bool
	// Deleting is set when it has a deletionTimestamp.
	Deleting bool
	// ScaledDown is set when it has the taint TaintScaleDown.
	ScaledDown bool
}

// TaintScaleDown is the taint by which the cluster autoscaler announces that it will delete a node.
const TaintScaleDown = "ToBeDeletedByClusterAutoscaler"

// New makes the health of a proxy of the given families. limit is the age of the oldest unapplied change at which the
// proxy becomes unhealthy: twice the sync period (Config.UnhealthyAfter). now is the clock, time.Now outside tests.
func New(limit time.Duration, now func() time.Time, families ...v1.IPFamily) *Proxy {
	p := &Proxy{now: now, limit: limit, families: map[v1.IPFamily]*family{}, degraded: map[string]string{}}
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

// Taken notes that a batch took every change queued so far. What is queued from now on is not covered by the next
// Synced. Optional: without it Synced covers all, which hides the age of what was queued while the batch ran.
func (p *Proxy) Taken(f v1.IPFamily) {
	p.with(f, func(s *family) {
		s.taken, s.queued = s.oldest(), time.Time{}
	})
}

// Synced notes that the kernel has everything that the last batch took. After a failure nothing is called: the changes
// grow older until a retry succeeds.
func (p *Proxy) Synced(f v1.IPFamily) {
	p.with(f, func(s *family) {
		if s.taken.IsZero() {
			s.queued = time.Time{}
		}
		s.taken, s.synced = time.Time{}, p.now()
	})
}

// with changes the state of one family, if the proxy runs it.
func (p *Proxy) with(f v1.IPFamily, change func(*family)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.families[f]; ok {
		change(s)
	}
}

// SetNode replaces what is known of the proxy's own Node.
func (p *Proxy) SetNode(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = n
}

// SetDegraded sets or, with an empty text, removes a condition that is shown in the answers and does not change their
// status: restarting the proxy, or taking the node out of a load balancer, would not help. The text is readable by
// every client of the health port: no content of files, no addresses.
func (p *Proxy) SetDegraded(condition, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.degraded[condition] = text; text == "" {
		delete(p.degraded, condition)
	}
}

// state is the health at one moment.
type state struct {
	now time.Time
	// healthy is that no family has a change older than the limit. One that never synced is not late, as in kube-proxy:
	// restarting a proxy that waits for its first lists would not help.
	healthy  bool
	ready    bool // every family has synced once
	eligible bool // load balancers may send new connections to the node
	// updated is the latest of the families' last syncs.
	updated  time.Time
	families map[v1.IPFamily]familyStatus // those that have synced once
	degraded []string
}

// snapshot computes the state.
func (p *Proxy) snapshot() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := state{now: p.now(), healthy: true, ready: true, families: map[v1.IPFamily]familyStatus{}}
	st.eligible = p.node.Known && !p.node.Deleting && !p.node.ScaledDown
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
	for _, condition := range slices.Sorted(maps.Keys(p.degraded)) {
		st.degraded = append(st.degraded, condition+": "+p.degraded[condition])
	}
	return st
}

// familyStatus is one family's entry of the answer.
type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answer is the JSON of /healthz and /livez: kube-proxy's keys and types, with Synced and Degraded added.
type answer struct {
	LastUpdated  time.Time                    `json:"lastUpdated"`
	CurrentTime  time.Time                    `json:"currentTime"`
	NodeEligible *bool                        `json:"nodeEligible,omitempty"`
	Healthy      bool                         `json:"healthy"`
	Synced       bool                         `json:"synced"`
	Degraded     []string                     `json:"degraded,omitempty"`
	Status       map[v1.IPFamily]familyStatus `json:"status,omitempty"`
}

// Counter counts the answers given, by HTTP status.
type Counter struct{ Healthz, Livez func(status int) }

// Handler serves /healthz and /livez. /livez is 200 while no family is late. /healthz is 200 if also the node is
// eligible and every family has synced once: load balancers and rollouts wait for a node that serves.
func (p *Proxy) Handler(count Counter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		st := p.snapshot()
		reply(w, st, st.healthy && st.ready && st.eligible, &st.eligible, count.Healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		st := p.snapshot()
		reply(w, st, st.healthy, nil, count.Livez)
	})
	return mux
}

// reply writes the answer. In a good one the state is current, however long ago the last change was: older load
// balancers look at lastUpdated.
func reply(w http.ResponseWriter, st state, good bool, eligible *bool, count func(int)) {
	a := answer{
		LastUpdated: st.updated, CurrentTime: st.now, NodeEligible: eligible,
		Healthy: good, Synced: st.ready, Degraded: st.degraded, Status: st.families,
	}
	status := http.StatusServiceUnavailable
	if good {
		status = http.StatusOK
		a.LastUpdated = st.now
	}
	if count != nil {
		count(status)
	}
	writeJSON(w, status, a)
}

// writeJSON writes a value that always encodes (no channels, no cycles).
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}
