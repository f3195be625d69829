// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"k8s.io/component-base/metrics"
)

// The two prefixes: kube-proxy's names, which dashboards know, and our own.
const (
	subsystemKube = "kubeproxy"
	subsystemOwn  = "nftproxy"
)

const familyLabel = "ip_family"

// vectors are all metrics of the package. The first group is kube-proxy's:
// names, labels and buckets must not change (docs/compatibility.md).
type vectors struct {
	sync, syncFull, syncPartial   *metrics.HistogramVec
	lastSync, lastQueued          *metrics.GaugeVec
	programming                   *metrics.HistogramVec
	endpointPending               *metrics.Gauge
	endpointChanges               *metrics.Counter
	servicePending                *metrics.Gauge
	serviceChanges                *metrics.Counter
	syncFailures, cleanupFailures *metrics.CounterVec
	noLocal                       *metrics.GaugeVec
	healthz, livez                *metrics.CounterVec
	ctDuration                    *metrics.HistogramVec
	ctDeleted                     *metrics.CounterVec

	txDuration, txElements *metrics.HistogramVec
	txBytes                *metrics.CounterVec
	elements               *metrics.GaugeVec
	drift                  *metrics.CounterVec
	setAside               *metrics.GaugeVec
	setAsideTotal          *metrics.CounterVec
	asideService           *metrics.GaugeVec
	affinityClients        *metrics.GaugeVec
	affinityFill           *metrics.GaugeVec
	affinityFull           *metrics.CounterVec
	ctDelR                 *metrics.CounterVec
	ctScanned, ctFailed    *metrics.Counter
	ctResets               *metrics.Counter
}

// series are one family's children of the vectors, resolved once.
type series struct {
	name                          string
	sync, syncFull, syncPartial   metrics.ObserverMetric
	lastSync, lastQueued          metrics.GaugeMetric
	programming                   metrics.ObserverMetric
	syncFailures, cleanupFailures metrics.CounterMetric
	noLocalInternal               metrics.GaugeMetric
	noLocalExternal               metrics.GaugeMetric
	txDuration, txElements        metrics.ObserverMetric
	txBytes                       metrics.CounterMetric
	elements                      *metrics.GaugeVec
	drift                         *metrics.CounterVec
	affinityClients, affinityFill metrics.GaugeMetric
	affinityFull                  metrics.CounterMetric
	ctDuration                    metrics.ObserverMetric
	ctDeleted                     metrics.CounterMetric
	ctDeletedBy                   *metrics.CounterVec
}

// newVectors makes all metrics, not yet registered.
func newVectors() *vectors {
	v := &vectors{}
	v.makeSync()
	v.makeChanges()
	v.makeConntrack()
	v.makeTransaction()
	v.makeRepairs()
	return v
}

// syncBuckets are kube-proxy's: 1 ms doubling to 16 s.
func syncBuckets() []float64 { return metrics.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets are kube-proxy's: fine below a minute, coarse to 5 min.
// MergeBuckets puts a bucket of 0 before them, in kube-proxy as here.
func programmingBuckets() []float64 {
	return metrics.MergeBuckets(
		metrics.LinearBuckets(0.25, 0.25, 2), // 0.25, 0.5
		metrics.LinearBuckets(1, 1, 59),      // 1 .. 59
		metrics.LinearBuckets(60, 5, 12),     // 60 .. 115
		metrics.LinearBuckets(120, 30, 7),    // 120 .. 300
	)
}

// makeSync makes the metrics of a sync.
func (v *vectors) makeSync() {
	v.sync = histogram(subsystemKube, "sync_proxy_rules_duration_seconds", "Time of a successful sync", syncBuckets(), familyLabel)
	v.syncFull = histogram(subsystemKube, "sync_full_proxy_rules_duration_seconds", "Time of a successful sync that compared everything with the kernel", syncBuckets(), familyLabel)
	v.syncPartial = histogram(subsystemKube, "sync_partial_proxy_rules_duration_seconds", "Time of a successful sync that sent only what changed", syncBuckets(), familyLabel)
	v.lastSync = gauge(subsystemKube, "sync_proxy_rules_last_timestamp_seconds", "When a sync last succeeded, in Unix seconds", familyLabel)
	v.lastQueued = gauge(subsystemKube, "sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last queued, in Unix seconds", familyLabel)
	v.programming = histogram(subsystemKube, "network_programming_duration_seconds", "Time from the change of an endpoint to its commit on this node", programmingBuckets(), familyLabel)
	v.syncFailures = counter(subsystemKube, "sync_proxy_rules_nftables_sync_failures_total", "Transactions that the kernel refused", familyLabel)
	v.cleanupFailures = counter(subsystemKube, "sync_proxy_rules_nftables_cleanup_failures_total", "Removals of leftovers that failed", familyLabel)
	v.noLocal = gauge(subsystemKube, "sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local and endpoints on other nodes only", "traffic_policy", familyLabel)
	v.healthz = counter(subsystemKube, "proxy_healthz_total", "Answers of /healthz by HTTP status", "code")
	v.livez = counter(subsystemKube, "proxy_livez_total", "Answers of /livez by HTTP status", "code")
}

// makeChanges makes the metrics without labels.
func (v *vectors) makeChanges() {
	v.endpointPending = metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystemKube, Name: "sync_proxy_rules_endpoint_changes_pending",
		Help: "EndpointSlice changes that wait for the next transaction", StabilityLevel: metrics.ALPHA})
	v.endpointChanges = metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystemKube, Name: "sync_proxy_rules_endpoint_changes_total",
		Help: "EndpointSlice changes seen", StabilityLevel: metrics.ALPHA})
	v.servicePending = metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystemKube, Name: "sync_proxy_rules_service_changes_pending",
		Help: "Service changes that wait for the next transaction", StabilityLevel: metrics.ALPHA})
	v.serviceChanges = metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystemKube, Name: "sync_proxy_rules_service_changes_total",
		Help: "Service changes seen", StabilityLevel: metrics.ALPHA})
}

// makeConntrack makes the metrics of conntrack passes.
func (v *vectors) makeConntrack() {
	v.ctDuration = histogram(subsystemKube, "conntrack_reconciler_sync_duration_seconds", "Time of one pass over the conntrack table", syncBuckets(), familyLabel)
	v.ctDeleted = counter(subsystemKube, "conntrack_reconciler_deleted_entries_total", "Conntrack entries deleted because their endpoint no longer serves", familyLabel)
	v.ctScanned = plainCounter("conntrack_scanned_entries_total", "Conntrack entries judged")
	v.ctDelR = counter(subsystemOwn, "conntrack_deleted_entries_total", "Conntrack entries deleted, by reason", familyLabel, "reason")
	v.ctFailed = plainCounter("conntrack_delete_failures_total", "Conntrack entries whose deletion failed and is retried")
	v.ctResets = plainCounter("conntrack_resets_total", "TCP clients of deleted entries that were told by a reset")
}

// makeTransaction makes the metrics of what is sent to the kernel.
func (v *vectors) makeTransaction() {
	// 50 us doubling to 0.8 s: one change takes 0.1 ms, a staged chunk 20 ms.
	v.txDuration = histogram(subsystemOwn, "transaction_duration_seconds", "Time of one nftables transaction in the kernel", metrics.ExponentialBuckets(0.00005, 2, 15), familyLabel)
	// 1 times 4 to 65536: one endpoint is 2 elements, a staged chunk thousands.
	v.txElements = histogram(subsystemOwn, "transaction_elements", "Set elements added and deleted by one nftables transaction", metrics.ExponentialBuckets(1, 4, 9), familyLabel)
	v.txBytes = counter(subsystemOwn, "transaction_bytes_total", "Bytes of nftables transactions sent", familyLabel)
	v.elements = gauge(subsystemOwn, "elements", "Elements of our maps and sets", familyLabel, "map")
	v.affinityClients = gauge(subsystemOwn, "affinity_clients", "Clients remembered by session affinity", familyLabel)
	v.affinityFill = gauge(subsystemOwn, "affinity_map_fill_ratio", "Fill of the fullest session affinity map, 0 to 1", familyLabel)
	v.affinityFull = counter(subsystemOwn, "affinity_map_full_total", "Observations of a full session affinity map, whose new clients are not remembered", familyLabel)
}

// makeRepairs makes the metrics of what went wrong and was put right.
func (v *vectors) makeRepairs() {
	v.drift = counter(subsystemOwn, "drift_repairs_total", "Objects of our nftables tables changed by others and put right", familyLabel, "object")
	v.setAside = gauge(subsystemOwn, "objects_set_aside", "Objects not served because they were refused", "kind")
	v.asideService = gauge(subsystemOwn, "service_set_aside", "Services that are set aside: 1, by why. At most 100 are named", "namespace", "service", "reason")
	v.setAsideTotal = counter(subsystemOwn, "objects_set_aside_total", "Objects set aside because they were refused", "kind")
}

// all lists the metrics for registration.
func (v *vectors) all() []metrics.Registerable {
	return []metrics.Registerable{
		v.sync, v.syncFull, v.syncPartial, v.lastSync, v.lastQueued, v.programming,
		v.endpointPending, v.endpointChanges, v.servicePending, v.serviceChanges,
		v.syncFailures, v.cleanupFailures, v.noLocal, v.healthz, v.livez, v.ctDuration, v.ctDeleted,
		v.txDuration, v.txElements, v.txBytes, v.elements, v.drift, v.setAside, v.setAsideTotal, v.asideService,
		v.affinityClients, v.affinityFill, v.affinityFull, v.ctScanned, v.ctDelR, v.ctFailed, v.ctResets,
	}
}

// newFamily resolves the series of one family, which also makes them exist.
func newFamily(v *vectors, name string) *Family {
	return &Family{s: series{
		name: name,
		sync: v.sync.WithLabelValues(name), syncFull: v.syncFull.WithLabelValues(name), syncPartial: v.syncPartial.WithLabelValues(name),
		lastSync: v.lastSync.WithLabelValues(name), lastQueued: v.lastQueued.WithLabelValues(name),
		programming:  v.programming.WithLabelValues(name),
		syncFailures: v.syncFailures.WithLabelValues(name), cleanupFailures: v.cleanupFailures.WithLabelValues(name),
		noLocalInternal: v.noLocal.WithLabelValues("internal", name), noLocalExternal: v.noLocal.WithLabelValues("external", name),
		txDuration: v.txDuration.WithLabelValues(name), txElements: v.txElements.WithLabelValues(name), txBytes: v.txBytes.WithLabelValues(name),
		elements: v.elements, drift: v.drift,
		affinityClients: v.affinityClients.WithLabelValues(name), affinityFill: v.affinityFill.WithLabelValues(name),
		affinityFull: v.affinityFull.WithLabelValues(name),
		ctDuration:   v.ctDuration.WithLabelValues(name), ctDeleted: v.ctDeleted.WithLabelValues(name),
		ctDeletedBy: v.ctDelR,
	}}
}

func histogram(subsystem, name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
		Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
}

func gauge(subsystem, name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA}, labels)
}

func counter(subsystem, name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA}, labels)
}

func plainCounter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystemOwn, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA})
}
