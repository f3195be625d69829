// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// kubeProxyMetrics are the metrics that kube-proxy v1.36 and v1.37 define.
const kubeProxyMetrics = `sync_proxy_rules_duration_seconds sync_full_proxy_rules_duration_seconds
sync_partial_proxy_rules_duration_seconds sync_proxy_rules_last_timestamp_seconds
sync_proxy_rules_last_queued_timestamp_seconds network_programming_duration_seconds
sync_proxy_rules_endpoint_changes_pending sync_proxy_rules_endpoint_changes_total
sync_proxy_rules_service_changes_pending sync_proxy_rules_service_changes_total
sync_proxy_rules_nftables_sync_failures_total sync_proxy_rules_nftables_cleanup_failures_total
sync_proxy_rules_no_local_endpoints_total proxy_healthz_total proxy_livez_total
conntrack_reconciler_sync_duration_seconds conntrack_reconciler_deleted_entries_total
sync_proxy_rules_iptables_restore_failures_total sync_proxy_rules_iptables_partial_restore_failures_total
sync_proxy_rules_iptables_total sync_proxy_rules_iptables_last
iptables_ct_state_invalid_dropped_packets_total iptables_localhost_nodeports_accepted_packets_total
nftables_localhost_nodeport_rejected_packets_total nftables_localhost_nodeport_listeners
nftables_localhost_nodeport_listener_creation_failures_total`

// TestCompatibilityOfMetrics: every metric of ours and of kube-proxy has a row
// in docs/compatibility.md, which says n/a for those that are not served and
// for no other.
func TestCompatibilityOfMetrics(t *testing.T) {
	m := New(v1.IPv4Protocol)
	everything(m)
	served := map[string]bool{}
	for _, line := range describe(t, m) {
		name, _, _ := strings.Cut(line, " ")
		served[name] = true
	}
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `((?:kube|nft)proxy_[a-z_]+)` \\| (same|better|n/a) \\|")
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		rows[match[1]] = match[2]
	}
	known := map[string]bool{}
	for _, name := range strings.Fields(kubeProxyMetrics) {
		known["kubeproxy_"+name] = true
	}
	for name := range served {
		known[name] = true
	}
	for name := range known {
		if rows[name] == "" {
			t.Errorf("no row for %s", name)
		} else if (rows[name] == "n/a") == served[name] {
			t.Errorf("%s is %s on the page, and served: %v", name, rows[name], served[name])
		}
	}
	for name := range rows {
		if !known[name] {
			t.Errorf("a row for %s, which does not exist", name)
		}
	}
}
