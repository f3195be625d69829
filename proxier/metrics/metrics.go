// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics counts what the proxy does and serves it: kube-proxy's own
// metric names with their types, labels and buckets as far as they mean
// something here, nftproxy's beside them, and the debug server on 10249.
//
// Metrics is the face that the loop sees: one method per event, nothing of
// Prometheus. All methods are safe for concurrent use and allocate nothing
// unless they say so.
package metrics

import (
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
)

// Metrics holds every metric of one proxy in a registry of its own.
type Metrics struct {
	registry metrics.KubeRegistry
	families map[v1.IPFamily]*Family
	v        *vectors
	aside    asideServices
}

// New makes the metrics for the given families, with every series present at 0
// so that rates can be taken from the first event on.
func New(families ...v1.IPFamily) *Metrics {
	m := &Metrics{
		registry: metrics.NewKubeRegistry(),
		families: map[v1.IPFamily]*Family{},
		v:        newVectors(),
		aside:    asideServices{reason: map[[2]string]string{}},
	}
	m.registry.MustRegister(m.v.all()...)
	for _, f := range families {
		m.families[f] = newFamily(m.v, string(f))
	}
	return m
}

// Family returns the metrics of one family. A family that New was not told of
// gets a Family that counts into no series, so the caller never sees nil.
func (m *Metrics) Family(f v1.IPFamily) *Family {
	if fam, ok := m.families[f]; ok {
		return fam
	}
	return newFamily(newVectors(), string(f))
}

// EndpointChanges adds n EndpointSlice changes seen and sets how many wait for
// the next transaction.
func (m *Metrics) EndpointChanges(n, pending int) {
	m.v.endpointChanges.Add(float64(n))
	m.v.endpointPending.Set(float64(pending))
}

// ServiceChanges is EndpointChanges for Services.
func (m *Metrics) ServiceChanges(n, pending int) {
	m.v.serviceChanges.Add(float64(n))
	m.v.servicePending.Set(float64(pending))
}

// HealthzServed counts an answer of /healthz by its HTTP status.
func (m *Metrics) HealthzServed(status int) {
	m.v.healthz.WithLabelValues(strconv.Itoa(status)).Inc()
}

// LivezServed counts an answer of /livez by its HTTP status.
func (m *Metrics) LivezServed(status int) {
	m.v.livez.WithLabelValues(strconv.Itoa(status)).Inc()
}

// SetAside sets how many objects are set aside now because the kernel or the
// build refused them, by kind ("Service", "manifest").
func (m *Metrics) SetAside(kind string, now int) {
	m.v.setAside.WithLabelValues(kind).Set(float64(now))
}

// SetAsideEvent counts one object that was set aside, by kind.
func (m *Metrics) SetAsideEvent(kind string) {
	m.v.setAsideTotal.WithLabelValues(kind).Inc()
}

// ConntrackPass is what one pass over the conntrack table reports. A pass looks
// at both families at once.
type ConntrackPass struct {
	Took    time.Duration
	Scanned int // entries that the kernel showed
	Failed  int // entries whose deletion failed and is retried
	Resets  int // TCP clients that were told by a reset
	// Deleted counts the deleted entries by family and reason.
	Deleted map[v1.IPFamily]map[string]int
}

// ConntrackPass records one pass. Its duration counts for every family.
func (m *Metrics) ConntrackPass(p ConntrackPass) {
	m.v.ctScanned.Add(float64(p.Scanned))
	m.v.ctFailed.Add(float64(p.Failed))
	m.v.ctResets.Add(float64(p.Resets))
	for name, f := range m.families {
		f.s.ctDuration.Observe(p.Took.Seconds())
		for reason, n := range p.Deleted[name] {
			f.s.ctDeleted.Add(float64(n))
			f.s.ctDeletedBy.WithLabelValues(f.s.name, reason).Add(float64(n))
		}
	}
}

// Routing is what routing reports when it is asked, by kind of object
// ("address", "route", "rule", "neighbour", "sysctl").
type Routing struct {
	Entries  map[string]int    // there now
	Wanted   map[string]int    // that should be there
	Repaired map[string]uint64 // put back after somebody removed or changed them; only grows
}

// RoutingFrom adds the metrics of routing, which are read from stats at each
// scrape. Call it at most once.
func (m *Metrics) RoutingFrom(stats func() Routing) {
	m.registry.RawMustRegister(&routingCollector{stats: stats, desc: newRoutingDesc()})
}

// Synced is what a successful sync reports.
type Synced struct {
	// Full is set when the sync compared everything with the kernel, as the
	// first one does and every one after a failure.
	Full bool
	// Took is the time from the close of the batch to the kernel's answer.
	Took time.Duration
	// At is when it ended.
	At time.Time
}

// Family are the metrics of one IP family, with their series resolved once.
type Family struct{ s series }

// Queued notes that a change was queued at the given time.
func (f *Family) Queued(at time.Time) { f.s.lastQueued.Set(unixSeconds(at)) }

// Synced records a successful sync.
func (f *Family) Synced(s Synced) {
	d := s.Took.Seconds()
	f.s.sync.Observe(d)
	if s.Full {
		f.s.syncFull.Observe(d)
	} else {
		f.s.syncPartial.Observe(d)
	}
	f.s.lastSync.Set(unixSeconds(s.At))
}

// SyncFailed counts a transaction that the kernel refused.
func (f *Family) SyncFailed() { f.s.syncFailures.Inc() }

// CleanupFailed counts a failed removal of leftovers.
func (f *Family) CleanupFailed() { f.s.cleanupFailures.Inc() }

// NetworkProgrammed observes the time from an endpoint's change, as the
// EndpointSlice tells it, to its commit.
func (f *Family) NetworkProgrammed(d time.Duration) { f.s.programming.Observe(d.Seconds()) }

// NoLocalEndpoints sets how many Service ports have endpoints but none on this
// node, for internal and for external traffic under policy Local.
func (f *Family) NoLocalEndpoints(internal, external int) {
	f.s.noLocalInternal.Set(float64(internal))
	f.s.noLocalExternal.Set(float64(external))
}

// Transaction records one transaction sent: its time in the kernel, its set
// elements added and deleted, and the bytes on the wire.
func (f *Family) Transaction(took time.Duration, elements, bytes int) {
	f.s.txDuration.Observe(took.Seconds())
	f.s.txElements.Observe(float64(elements))
	f.s.txBytes.Add(float64(bytes))
}

// Elements sets how many elements of ours a map or set of the table holds.
// Resolves one label: call it per sync, not per element.
func (f *Family) Elements(set string, n int) {
	f.s.elements.WithLabelValues(f.s.name, set).Set(float64(n))
}

// DriftRepaired counts elements, chains or tables that somebody else changed
// and that were put right, by what they are ("table", "chain", "element").
func (f *Family) DriftRepaired(what string, n int) {
	f.s.drift.WithLabelValues(f.s.name, what).Add(float64(n))
}

// Affinity sets how many clients are remembered in all affinity maps, and the
// fill of the fullest map from 0 to 1.
func (f *Family) Affinity(clients int, fullest float64) {
	f.s.affinityClients.Set(float64(clients))
	f.s.affinityFill.Set(fullest)
}

// AffinityFull counts observations of an affinity map at its size: from then
// on new clients of that Service port are balanced without being remembered.
func (f *Family) AffinityFull() { f.s.affinityFull.Inc() }

// unixSeconds is a gauge's usual form of a point in time.
func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
