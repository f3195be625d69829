// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// describe gathers a registry and writes every metric of ours as one line:
// name, type, labels, buckets.
func describe(t *testing.T, m *Metrics) []string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if len(f.GetMetric()) == 0 {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		line := fmt.Sprintf("%s %s {%s}", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ","))
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			b := h.GetBucket()
			line += fmt.Sprintf(" %d buckets %g..%g", len(b), b[0].GetUpperBound(), b[len(b)-1].GetUpperBound())
		}
		out = append(out, line)
	}
	return out
}

// everything lets each method make an observation.
func everything(m *Metrics) {
	m.EndpointChanges(3, 2)
	m.ServiceChanges(1, 1)
	m.HealthzServed(200)
	m.LivezServed(503)
	m.Invalid("File", 2)
	m.SetAside("default", "wide", "too-large", 1)
	m.RoutingFrom(func() Routing {
		return Routing{Entries: map[string]int{"route": 3}, Wanted: map[string]int{"route": 4}, Repaired: map[string]uint64{"route": 5}, Problems: map[string]int{"waiting": 6}}
	})
	m.DropCountersFrom(func() []DropCounter {
		return []DropCounter{{v1.IPv4Protocol, true, "no-endpoints", 8}, {v1.IPv6Protocol, false, "source-ranges", 9}}
	})
	m.ConnectionsFrom(func(fn func(Connected)) {
		fn(Connected{v1.IPv4Protocol, "default", "web", "http", "TCP", "10.96.0.10:80", 10})
		fn(Connected{v1.IPv4Protocol, "default", "web", "http", "TCP", ":30080", 11})
	})
	m.LocalhostFrom(func() Localhost {
		return Localhost{ListenersIPv4: 1, ListenersIPv6: 2, Connections: 3, Clients: 4, Failures: 5, Refused: 6, Forgotten: 7}
	})
	m.SourcesFrom(func() []Source {
		return []Source{{"Service", true, time.Unix(1700000000, 0)}, {"EndpointSlice", false, time.Time{}}}
	})
	m.ConfigValid(false)
	m.ConntrackPass(ConntrackPass{Took: time.Millisecond, Scanned: 100, Failed: 1, Resets: 2, Deleted: map[v1.IPFamily]map[string]int{
		v1.IPv4Protocol: {"endpoint-gone": 2, "frontend-gone": 1},
	}})
	f := m.Family(v1.IPv4Protocol)
	at := time.Unix(1700000000, 500000000)
	f.Queued(at)
	f.Synced(Synced{Full: true, Took: 3 * time.Millisecond, At: at})
	f.Synced(Synced{Full: true, Took: 3 * time.Millisecond, At: at})
	f.Synced(Synced{Took: time.Millisecond, At: at})
	f.SyncFailed()
	f.CleanupFailed()
	f.NetworkProgrammed(2 * time.Second)
	f.NoLocalEndpoints(4, 5)
	f.Transaction(time.Millisecond, 2, 300)
	f.Elements("services", 7)
	f.DriftRepaired("element", 3)
	f.Affinity(10, 0.5)
	f.AffinityFull()
}

// TestNames holds names, types, labels and buckets. The lines that begin with
// kubeproxy are an interface: dashboards and alerts are written against them.
func TestNames(t *testing.T) {
	m := New(v1.IPv4Protocol)
	everything(m)
	want := strings.Split(strings.TrimSpace(`
kubeproxy_conntrack_reconciler_deleted_entries_total counter {ip_family}
kubeproxy_conntrack_reconciler_sync_duration_seconds histogram {ip_family} 15 buckets 0.001..16.384
kubeproxy_network_programming_duration_seconds histogram {ip_family} 81 buckets 0..300
kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total counter {}
kubeproxy_nftables_localhost_nodeport_listeners gauge {ip_family}
kubeproxy_proxy_healthz_total counter {code}
kubeproxy_proxy_livez_total counter {code}
kubeproxy_sync_full_proxy_rules_duration_seconds histogram {ip_family} 15 buckets 0.001..16.384
kubeproxy_sync_partial_proxy_rules_duration_seconds histogram {ip_family} 15 buckets 0.001..16.384
kubeproxy_sync_proxy_rules_duration_seconds histogram {ip_family} 15 buckets 0.001..16.384
kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge {}
kubeproxy_sync_proxy_rules_endpoint_changes_total counter {}
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge {ip_family}
kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge {ip_family}
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter {ip_family}
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter {ip_family}
kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge {ip_family,traffic_policy}
kubeproxy_sync_proxy_rules_service_changes_pending gauge {}
kubeproxy_sync_proxy_rules_service_changes_total counter {}
nftproxy_affinity_clients gauge {ip_family}
nftproxy_affinity_map_fill_ratio gauge {ip_family}
nftproxy_affinity_map_full_total counter {ip_family}
nftproxy_config_last_reload_successful gauge {}
nftproxy_conntrack_delete_failures_total counter {}
nftproxy_conntrack_deleted_entries_total counter {ip_family,reason}
nftproxy_conntrack_resets_total counter {}
nftproxy_conntrack_scanned_entries_total counter {}
nftproxy_drift_repairs_total counter {ip_family,object}
nftproxy_dropped_total counter {ip_family,reason}
nftproxy_elements gauge {ip_family,map}
nftproxy_localhost_nodeport_connections gauge {protocol}
nftproxy_localhost_nodeport_refused_total counter {protocol}
nftproxy_objects_invalid gauge {kind}
nftproxy_objects_set_aside gauge {kind}
nftproxy_objects_set_aside_total counter {kind}
nftproxy_refused_total counter {ip_family,reason}
nftproxy_routing_entries gauge {object}
nftproxy_routing_entries_wanted gauge {object}
nftproxy_routing_problems gauge {severity}
nftproxy_routing_repairs_total counter {object}
nftproxy_service_connections_total counter {address,ip_family,namespace,port,protocol,service}
nftproxy_service_set_aside gauge {namespace,reason,service}
nftproxy_source_connected gauge {kind}
nftproxy_source_last_contact_timestamp_seconds gauge {kind}
nftproxy_transaction_bytes_total counter {ip_family}
nftproxy_transaction_duration_seconds histogram {ip_family} 15 buckets 5e-05..0.8192
nftproxy_transaction_elements histogram {ip_family} 9 buckets 1..65536
`), "\n")
	if d := cmp.Diff(want, describe(t, m)); d != "" {
		t.Errorf("metrics (-want +got):\n%s", d)
	}
}

// TestValues checks that each method reaches its series.
func TestValues(t *testing.T) {
	m := New(v1.IPv4Protocol, v1.IPv6Protocol)
	everything(m)
	m.Family("IPvNone").SyncFailed() // counted nowhere, and no panic
	body := scrape(t, m.Handler(Debug{}))
	for _, line := range []string{
		`kubeproxy_sync_proxy_rules_endpoint_changes_total 3`,
		`kubeproxy_sync_proxy_rules_endpoint_changes_pending 2`,
		`kubeproxy_sync_proxy_rules_service_changes_total 1`,
		`kubeproxy_proxy_livez_total{code="503"} 1`,
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 3`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.7000000005e+09`,
		`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.7000000005e+09`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 4`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 5`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="2"} 1`,
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 3`,
		`nftproxy_conntrack_deleted_entries_total{ip_family="IPv4",reason="endpoint-gone"} 2`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"} 1`,
		`nftproxy_conntrack_scanned_entries_total 100`,
		`nftproxy_service_connections_total{address=":30080",ip_family="IPv4",namespace="default",port="http",protocol="TCP",service="web"} 11`,
		`nftproxy_refused_total{ip_family="IPv4",reason="no-endpoints"} 8`,
		`nftproxy_dropped_total{ip_family="IPv6",reason="source-ranges"} 9`,
		`nftproxy_service_set_aside{namespace="default",reason="too-large",service="wide"} 1`,
		`nftproxy_routing_entries{object="route"} 3`,
		`nftproxy_routing_entries_wanted{object="route"} 4`,
		`nftproxy_routing_repairs_total{object="route"} 5`,
		`nftproxy_routing_problems{severity="waiting"} 6`,
		`nftproxy_elements{ip_family="IPv4",map="services"} 7`,
		`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} 1`,
		`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} 2`,
		`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total 5`,
		`nftproxy_localhost_nodeport_connections{protocol="TCP"} 3`,
		`nftproxy_localhost_nodeport_connections{protocol="UDP"} 4`,
		`nftproxy_localhost_nodeport_refused_total{protocol="TCP"} 6`,
		`nftproxy_localhost_nodeport_refused_total{protocol="UDP"} 7`,
		`nftproxy_source_connected{kind="Service"} 1`,
		`nftproxy_source_connected{kind="EndpointSlice"} 0`,
		`nftproxy_source_last_contact_timestamp_seconds{kind="Service"} 1.7e+09`,
		`nftproxy_source_last_contact_timestamp_seconds{kind="EndpointSlice"} 0`,
		`nftproxy_config_last_reload_successful 0`,
		// Series of a family without events are there, at 0.
		`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1`,
		`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0`,
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 0`,
		`kubeproxy_proxy_healthz_total{code="503"} 0`,
		`nftproxy_objects_invalid{kind="File"} 2`,
		`nftproxy_objects_invalid{kind="EndpointSlice"} 0`,
		`nftproxy_drift_repairs_total{ip_family="IPv6",object="table"} 0`,
		`nftproxy_conntrack_deleted_entries_total{ip_family="IPv6",reason="untranslated"} 0`,
	} {
		if !slices.Contains(body, line) {
			t.Errorf("no line %q", line)
		}
	}
	for _, prefix := range []string{"go_goroutines ", "process_resident_memory_bytes ", "kubernetes_build_info{"} {
		if !slices.ContainsFunc(body, func(l string) bool { return strings.HasPrefix(l, prefix) }) {
			t.Errorf("no metric %q", prefix)
		}
	}
}

// scrape reads /metrics as lines.
func scrape(t *testing.T, h http.Handler) []string {
	t.Helper()
	status, body := page(t, h, http.MethodGet, "/metrics", "")
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d %s", status, body)
	}
	return strings.Split(body, "\n")
}

func page(t *testing.T, h http.Handler, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	out, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(out)
}

func TestPages(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	h := New(v1.IPv4Protocol).Handler(Debug{
		Configz: map[string]any{"kubeproxy.config.k8s.io": map[string]string{"mode": "nftables"}},
		Flags:   map[string]string{"v": "2", "config": "/etc/x"},
		Status: &Status{Version: "v0.1.0", GoVersion: "go1.26", Started: start,
			Now: func() time.Time { return start.Add(90*time.Second + 1) }},
	})
	for path, want := range map[string]string{
		"/healthz":   "ok",
		"/proxyMode": "nftables",
		"/configz":   `{"kubeproxy.config.k8s.io":{"mode":"nftables"}}`,
		"/flagz":     header("flagz") + "config=/etc/x\nv=2\n",
		"/statusz": header("statusz") + "Started: Fri Nov 20 12:00:00 UTC 2026\nUp: 1m30s\nGo version: go1.26\nBinary version: v0.1.0\n" +
			"Paths: /configz /flagz /healthz /metrics /metrics/slis /proxyMode /statusz\n",
	} {
		if status, got := page(t, h, http.MethodGet, path, ""); status != http.StatusOK || got != want {
			t.Errorf("%s: %d %q, want %q", path, status, got, want)
		}
	}
	if _, body := page(t, h, http.MethodGet, "/metrics/slis", ""); !strings.Contains(body, `kubernetes_healthcheck{name="ping",type="healthz"} 1`) {
		t.Errorf("/metrics/slis does not know of the ping:\n%s", body)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/flags/v", "/nothing"} {
		if status, _ := page(t, h, http.MethodGet, path, ""); status != http.StatusNotFound {
			t.Errorf("%s without profiling: %d", path, status)
		}
	}
}

func TestProfilingPages(t *testing.T) {
	var level string
	h := New().Handler(Debug{Profiling: true, SetVerbosity: func(s string) (string, error) {
		if s == "x" {
			return "", errors.New("not a number")
		}
		level = s
		return "level " + s, nil
	}})
	for _, c := range []struct {
		method, path, body string
		status             int
		answer             string
	}{
		{http.MethodPut, "/debug/flags/v", "4\n", http.StatusOK, "level 4"},
		{http.MethodPut, "/debug/flags/v", "x", http.StatusBadRequest, "not a number"},
		{http.MethodGet, "/debug/flags/v", "", http.StatusNotAcceptable, "only PUT"},
		{http.MethodGet, "/debug/pprof/goroutine?debug=1", "", http.StatusOK, "goroutine profile"},
		{http.MethodGet, "/debug/pprof/symbol", "", http.StatusOK, "num_symbols"},
	} {
		status, body := page(t, h, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(body, c.answer) {
			t.Errorf("%s %s %q: %d %q, want %d with %q", c.method, c.path, c.body, status, body, c.status, c.answer)
		}
	}
	if level != "4" {
		t.Errorf("level is %q", level)
	}
}

func TestConfigzError(t *testing.T) {
	h := New().Handler(Debug{Configz: map[string]any{"bad": json.Number("x")}})
	if status, _ := page(t, h, http.MethodGet, "/configz", ""); status != http.StatusInternalServerError {
		t.Errorf("a document that does not encode: %d", status)
	}
}

// TestLabelsFromObjects: names that the API server would refuse neither fail a
// scrape nor reach it unescaped, and a series that exists twice costs no other.
func TestLabelsFromObjects(t *testing.T) {
	m := New(v1.IPv4Protocol)
	m.SetAside("default", "cut \xe2\x82", "refused", 1)
	m.SetAside("default", "esc \x1b[2J", "refused", 2)
	m.ConnectionsFrom(func(fn func(Connected)) {
		fn(Connected{v1.IPv4Protocol, "default", "web \xff", "http", "TCP", ":1", 10})
		fn(Connected{v1.IPv4Protocol, "default", "web \xff", "http", "TCP", ":1", 11})
		fn(Connected{v1.IPv4Protocol, "default", "web", "http", "TCP", ":2", 12})
	})
	body := scrape(t, m.Handler(Debug{}))
	for _, line := range []string{
		`nftproxy_service_set_aside{namespace="default",reason="refused",service="cut ��"} 1`,
		`nftproxy_service_set_aside{namespace="default",reason="refused",service="esc �[2J"} 1`,
		`nftproxy_service_connections_total{address=":2",ip_family="IPv4",namespace="default",port="http",protocol="TCP",service="web"} 12`,
		`kubeproxy_sync_proxy_rules_service_changes_total 0`,
	} {
		if !slices.Contains(body, line) {
			t.Errorf("no line %q", line)
		}
	}
}

// TestHotPathAllocates nothing per change: the loop calls these for each.
func TestHotPathAllocates(t *testing.T) {
	m := New(v1.IPv4Protocol)
	f := m.Family(v1.IPv4Protocol)
	now := time.Now()
	n := testing.AllocsPerRun(100, func() {
		m.EndpointChanges(1, 1)
		m.ServiceChanges(1, 1)
		f.Queued(now)
		f.Synced(Synced{Took: time.Millisecond, At: now})
		f.Transaction(time.Millisecond, 2, 300)
		f.NetworkProgrammed(time.Second)
		f.NoLocalEndpoints(1, 1)
	})
	if n != 0 {
		t.Errorf("%v allocations per change, want 0", n)
	}
}
