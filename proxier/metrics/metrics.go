// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics counts what the proxy does and serves it: kube-proxy's own metric names with their types, labels and
// buckets as far as they mean something here, nftproxy's beside them, and the debug server on 10249.
//
// In come one method call per event (Metrics, Family) and functions that are called at each scrape (sampled.go); out
// come HTTP pages. The package reads no kernel and no object of the API.
//
// All methods are safe for concurrent use, and allocate nothing unless their comment says so.
package metrics

import (
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
)

// The two prefixes: kube-proxy's names, which dashboards know, and nftproxy's.
const (
	kubeproxy = "kubeproxy"
	nftproxy  = "nftproxy"
)

const familyLabel = "ip_family"

// Metrics holds every metric of one proxy in a registry of its own.
type Metrics struct {
	registry metrics.KubeRegistry
	families map[v1.IPFamily]*Family

	endpointChanges, serviceChanges metrics.CounterMetric
	endpointPending, servicePending metrics.GaugeMetric
	healthz, livez                  *metrics.CounterVec
	configValid                     metrics.GaugeMetric

	invalid       *metrics.GaugeVec
	setAside      *metrics.GaugeVec
	setAsideTotal *metrics.CounterVec
	serviceAside  *metrics.GaugeVec
	mu            sync.Mutex
	named         map[[2]string]string // Services in serviceAside: namespace, name to reason

	conntrackDeleted                                   *metrics.CounterVec
	conntrackScanned, conntrackFailed, conntrackResets metrics.CounterMetric
}

// Family are the metrics of one IP family.
type Family struct {
	name                              string
	sync, syncFull, syncPartial       metrics.ObserverMetric
	lastSync, lastQueued              metrics.GaugeMetric
	programming                       metrics.ObserverMetric
	syncFailures, cleanupFailures     metrics.CounterMetric
	noLocalInternal, noLocalExternal  metrics.GaugeMetric
	conntrackDuration                 metrics.ObserverMetric
	conntrackDeleted                  metrics.CounterMetric
	transactions, transactionElements metrics.ObserverMetric
	transactionBytes                  metrics.CounterMetric
	elements                          *metrics.GaugeVec
	drift                             *metrics.CounterVec
	affinityClients, affinityFill     metrics.GaugeMetric
	affinityFull                      metrics.CounterMetric
}

// New makes the metrics for the given families, with every series present at 0 so that rates can be computed from the
// first event on.
func New(families ...v1.IPFamily) *Metrics {
	m := &Metrics{registry: metrics.NewKubeRegistry(), families: map[v1.IPFamily]*Family{}, named: map[[2]string]string{}}

	// kube-proxy's. Names, labels and buckets must not change (docs/compatibility.md).
	syncBuckets := metrics.ExponentialBuckets(0.001, 2, 15) // 1 ms doubling to 16 s
	sync := m.histogram(kubeproxy, "sync_proxy_rules_duration_seconds", "Time of a successful sync", syncBuckets, familyLabel)
	syncFull := m.histogram(kubeproxy, "sync_full_proxy_rules_duration_seconds", "Time of a successful sync that compared everything with the kernel", syncBuckets, familyLabel)
	syncPartial := m.histogram(kubeproxy, "sync_partial_proxy_rules_duration_seconds", "Time of a successful sync that sent only what changed", syncBuckets, familyLabel)
	lastSync := m.gauge(kubeproxy, "sync_proxy_rules_last_timestamp_seconds", "Time of the last successful sync, in Unix seconds", familyLabel)
	lastQueued := m.gauge(kubeproxy, "sync_proxy_rules_last_queued_timestamp_seconds", "Time when a change was last queued, in Unix seconds", familyLabel)
	// Fine below a minute, coarse to 5 min. MergeBuckets puts a bucket of 0 before them, in kube-proxy as here.
	programming := m.histogram(kubeproxy, "network_programming_duration_seconds", "Time from the change of an endpoint to its commit on this node", metrics.MergeBuckets(
		metrics.LinearBuckets(0.25, 0.25, 2), // 0.25, 0.5
		metrics.LinearBuckets(1, 1, 59),      // 1 .. 59
		metrics.LinearBuckets(60, 5, 12),     // 60 .. 115
		metrics.LinearBuckets(120, 30, 7),    // 120 .. 300
	), familyLabel)
	m.endpointPending = m.gauge(kubeproxy, "sync_proxy_rules_endpoint_changes_pending", "EndpointSlice changes that wait for the next transaction").WithLabelValues()
	m.endpointChanges = m.counter(kubeproxy, "sync_proxy_rules_endpoint_changes_total", "EndpointSlice changes received").WithLabelValues()
	m.servicePending = m.gauge(kubeproxy, "sync_proxy_rules_service_changes_pending", "Service changes that wait for the next transaction").WithLabelValues()
	m.serviceChanges = m.counter(kubeproxy, "sync_proxy_rules_service_changes_total", "Service changes received").WithLabelValues()
	syncFailures := m.counter(kubeproxy, "sync_proxy_rules_nftables_sync_failures_total", "Transactions that the kernel refused", familyLabel)
	cleanupFailures := m.counter(kubeproxy, "sync_proxy_rules_nftables_cleanup_failures_total", "Removals of leftovers that failed", familyLabel)
	noLocal := m.gauge(kubeproxy, "sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local and endpoints on other nodes only", "traffic_policy", familyLabel)
	m.healthz = m.counter(kubeproxy, "proxy_healthz_total", "Answers of /healthz by HTTP status", "code")
	m.livez = m.counter(kubeproxy, "proxy_livez_total", "Answers of /livez by HTTP status", "code")
	conntrackDuration := m.histogram(kubeproxy, "conntrack_reconciler_sync_duration_seconds", "Time of one pass over the conntrack table", syncBuckets, familyLabel)
	conntrackDeleted := m.counter(kubeproxy, "conntrack_reconciler_deleted_entries_total", "Conntrack entries deleted because their endpoint no longer serves", familyLabel)

	// nftproxy's. Transactions: 50 us doubling to 0.8 s (one change takes 0.1 ms, a staged chunk 20 ms); 1 times 4 to
	// 65536 elements (one endpoint is 2, a staged chunk thousands).
	transactions := m.histogram(nftproxy, "transaction_duration_seconds", "Time of one nftables transaction in the kernel", metrics.ExponentialBuckets(0.00005, 2, 15), familyLabel)
	transactionElements := m.histogram(nftproxy, "transaction_elements", "Set elements added and deleted by one nftables transaction", metrics.ExponentialBuckets(1, 4, 9), familyLabel)
	transactionBytes := m.counter(nftproxy, "transaction_bytes_total", "Bytes of nftables transactions sent", familyLabel)
	elements := m.gauge(nftproxy, "elements", "Elements of nftproxy's maps and sets", familyLabel, "map")
	drift := m.counter(nftproxy, "drift_repairs_total", "Objects of nftproxy's tables that another program changed and that were repaired", familyLabel, "object")
	affinityClients := m.gauge(nftproxy, "affinity_clients", "Clients remembered by session affinity", familyLabel)
	affinityFill := m.gauge(nftproxy, "affinity_map_fill_ratio", "Fill of the fullest session affinity map, 0 to 1", familyLabel)
	affinityFull := m.counter(nftproxy, "affinity_map_full_total", "Observations of a full session affinity map, whose new clients are not remembered", familyLabel)
	m.invalid = m.gauge(nftproxy, "objects_invalid", "Objects and manifest files with fields that cannot be used; the other fields are used", "kind")
	m.setAside = m.gauge(nftproxy, "objects_set_aside", "Objects that are not served because they were refused", "kind")
	m.setAsideTotal = m.counter(nftproxy, "objects_set_aside_total", "Objects set aside because they were refused", "kind")
	m.serviceAside = m.gauge(nftproxy, "service_set_aside", "1 for each Service that is set aside, by reason; at most 100 are named", "namespace", "service", "reason")
	m.conntrackScanned = m.counter(nftproxy, "conntrack_scanned_entries_total", "Conntrack entries examined").WithLabelValues()
	m.conntrackDeleted = m.counter(nftproxy, "conntrack_deleted_entries_total", "Conntrack entries deleted, by reason", familyLabel, "reason")
	m.conntrackFailed = m.counter(nftproxy, "conntrack_delete_failures_total", "Conntrack entries whose deletion failed and is retried").WithLabelValues()
	m.conntrackResets = m.counter(nftproxy, "conntrack_resets_total", "TCP resets sent to clients of deleted entries").WithLabelValues()
	m.configValid = m.gauge(nftproxy, "config_last_reload_successful", "1 if the configuration files are valid as they are now; 0 if a change was invalid and the previous configuration is in use").WithLabelValues()
	m.configValid.Set(1)

	for _, code := range []string{"200", "503"} {
		m.healthz.WithLabelValues(code)
		m.livez.WithLabelValues(code)
	}
	for _, kind := range []string{"Service", "EndpointSlice", "Node", "ServiceCIDR", "File"} {
		m.invalid.WithLabelValues(kind)
	}
	m.setAside.WithLabelValues("Service")
	m.setAsideTotal.WithLabelValues("Service")
	for _, family := range families {
		f := string(family)
		for _, object := range []string{"table", "chain", "element"} {
			drift.WithLabelValues(f, object)
		}
		for _, reason := range []string{"endpoint-gone", "no-endpoints", "frontend-gone", "untranslated"} { // ctsync.Reason
			m.conntrackDeleted.WithLabelValues(f, reason)
		}
		m.families[family] = &Family{
			name: f,
			sync: sync.WithLabelValues(f), syncFull: syncFull.WithLabelValues(f), syncPartial: syncPartial.WithLabelValues(f),
			lastSync: lastSync.WithLabelValues(f), lastQueued: lastQueued.WithLabelValues(f),
			programming:  programming.WithLabelValues(f),
			syncFailures: syncFailures.WithLabelValues(f), cleanupFailures: cleanupFailures.WithLabelValues(f),
			noLocalInternal: noLocal.WithLabelValues("internal", f), noLocalExternal: noLocal.WithLabelValues("external", f),
			conntrackDuration: conntrackDuration.WithLabelValues(f), conntrackDeleted: conntrackDeleted.WithLabelValues(f),
			transactions: transactions.WithLabelValues(f), transactionElements: transactionElements.WithLabelValues(f),
			transactionBytes: transactionBytes.WithLabelValues(f),
			elements:         elements, drift: drift,
			affinityClients: affinityClients.WithLabelValues(f), affinityFill: affinityFill.WithLabelValues(f),
			affinityFull: affinityFull.WithLabelValues(f),
		}
	}
	return m
}

// histogram, gauge and counter make and register a metric.
func (m *Metrics) histogram(prefix, name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	v := metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: prefix, Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(prefix, name, help string, labels ...string) *metrics.GaugeVec {
	v := metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: prefix, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) counter(prefix, name, help string, labels ...string) *metrics.CounterVec {
	v := metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: prefix, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	m.registry.MustRegister(v)
	return v
}

// Family returns the metrics of one family. For a family that New was not given it returns one that is not served, so
// that the caller never gets nil.
func (m *Metrics) Family(f v1.IPFamily) *Family {
	if fam, ok := m.families[f]; ok {
		return fam
	}
	return New(f).families[f]
}

// EndpointChanges adds n EndpointSlice changes received and sets how many wait for the next transaction.
func (m *Metrics) EndpointChanges(n, pending int) {
	m.endpointChanges.Add(float64(n))
	m.endpointPending.Set(float64(pending))
}

// ServiceChanges is EndpointChanges for Services.
func (m *Metrics) ServiceChanges(n, pending int) {
	m.serviceChanges.Add(float64(n))
	m.servicePending.Set(float64(pending))
}

// HealthzServed and LivezServed count an answer by its HTTP status.
func (m *Metrics) HealthzServed(status int) { m.healthz.WithLabelValues(strconv.Itoa(status)).Inc() }
func (m *Metrics) LivezServed(status int)   { m.livez.WithLabelValues(strconv.Itoa(status)).Inc() }

// ConfigValid sets whether the configuration files are valid as they are now.
func (m *Metrics) ConfigValid(valid bool) { m.configValid.Set(number(valid)) }

// Invalid sets how many objects, or manifest files, have invalid fields now, by kind ("Service", "File").
func (m *Metrics) Invalid(kind string, now int) { m.invalid.WithLabelValues(kind).Set(float64(now)) }

// maxNamed limits the series that name Services: their number is up to whoever may create Services.
const maxNamed = 100

// SetAside records that a Service was set aside, and why ("refused", "too-large", "no-room"), or, with an empty reason,
// that it no longer is; now is how many are set aside. Up to 100 Services are named.
func (m *Metrics) SetAside(namespace, name, reason string, now int) {
	m.setAside.WithLabelValues("Service").Set(float64(now))
	if reason != "" {
		m.setAsideTotal.WithLabelValues("Service").Inc()
	}
	namespace, name = printable(namespace), printable(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{namespace, name}
	was, named := m.named[key]
	if was == reason {
		return
	}
	if named {
		m.serviceAside.Delete(map[string]string{"namespace": namespace, "service": name, "reason": was})
		delete(m.named, key)
	}
	if reason != "" && len(m.named) < maxNamed {
		m.named[key] = reason
		m.serviceAside.WithLabelValues(namespace, name, reason).Set(1)
	}
}

// ConntrackPass is the result of one pass over the conntrack table. A pass covers both families at once.
type ConntrackPass struct {
	Took    time.Duration
	Scanned int // entries that the kernel showed
	Failed  int // entries whose deletion failed and is retried
	Resets  int // TCP resets sent to clients
	// Deleted counts the deleted entries by family and reason.
	Deleted map[v1.IPFamily]map[string]int
}

// ConntrackPass records one pass. Its duration counts for every family.
func (m *Metrics) ConntrackPass(p ConntrackPass) {
	m.conntrackScanned.Add(float64(p.Scanned))
	m.conntrackFailed.Add(float64(p.Failed))
	m.conntrackResets.Add(float64(p.Resets))
	for name, f := range m.families {
		f.conntrackDuration.Observe(p.Took.Seconds())
		for reason, n := range p.Deleted[name] {
			f.conntrackDeleted.Add(float64(n))
			m.conntrackDeleted.WithLabelValues(f.name, reason).Add(float64(n))
		}
	}
}

// Synced is the result of a successful sync.
type Synced struct {
	// Full is set when the sync compared everything with the kernel, as the first one does and every one after a
	// failure.
	Full bool
	// Took is the time from the close of the batch to the kernel's answer.
	Took time.Duration
	// At is when it ended.
	At time.Time
}

// Queued notes that a change was queued at the given time.
func (f *Family) Queued(at time.Time) { f.lastQueued.Set(unixSeconds(at)) }

// Synced records a successful sync.
func (f *Family) Synced(s Synced) {
	kind := f.syncPartial
	if s.Full {
		kind = f.syncFull
	}
	f.sync.Observe(s.Took.Seconds())
	kind.Observe(s.Took.Seconds())
	f.lastSync.Set(unixSeconds(s.At))
}

// SyncFailed counts a transaction that the kernel refused.
func (f *Family) SyncFailed() { f.syncFailures.Inc() }

// CleanupFailed counts a failed removal of leftovers.
func (f *Family) CleanupFailed() { f.cleanupFailures.Inc() }

// NetworkProgrammed observes the time from an endpoint's change, as the EndpointSlice's annotation records it, to its
// commit.
func (f *Family) NetworkProgrammed(d time.Duration) { f.programming.Observe(d.Seconds()) }

// NoLocalEndpoints sets how many Service ports have endpoints but none on this node, for internal and for external
// traffic under policy Local.
func (f *Family) NoLocalEndpoints(internal, external int) {
	f.noLocalInternal.Set(float64(internal))
	f.noLocalExternal.Set(float64(external))
}

// Transaction records one transaction sent: its time in the kernel, its set elements added and deleted, and the bytes
// on the wire.
func (f *Family) Transaction(took time.Duration, elements, bytes int) {
	f.transactions.Observe(took.Seconds())
	f.transactionElements.Observe(float64(elements))
	f.transactionBytes.Add(float64(bytes))
}

// Elements sets how many elements a map or set of the table holds. It resolves one label: call it per sync, not per
// element.
func (f *Family) Elements(set string, n int) {
	f.elements.WithLabelValues(f.name, set).Set(float64(n))
}

// DriftRepaired counts objects that another program changed and that were repaired, by kind ("table", "chain",
// "element").
func (f *Family) DriftRepaired(object string, n int) {
	f.drift.WithLabelValues(f.name, object).Add(float64(n))
}

// Affinity sets how many clients are remembered in all affinity maps, and the fill of the fullest map from 0 to 1.
func (f *Family) Affinity(clients int, fullest float64) {
	f.affinityClients.Set(float64(clients))
	f.affinityFill.Set(fullest)
}

// AffinityFull counts observations of an affinity map at its size: from then on new clients of that Service port are
// balanced without being remembered.
func (f *Family) AffinityFull() { f.affinityFull.Inc() }

// unixSeconds is a point in time as a gauge has it; the zero time is 0.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// number is a condition as a gauge has it.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// printable replaces what is not valid UTF-8 or not printable in a label value: the first makes a whole scrape fail,
// the second controls terminals. It allocates only where something is replaced.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
