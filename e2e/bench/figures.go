// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// figure is a line of the table: a quantile of what was measured.
type figure struct {
	name  string // in the JSON
	title string
	of    string // the samples
	q     float64
	unit  unit
}

type unit int

const (
	seconds unit = iota
	mebibytes
	number
	share
	ratio
)

// figures are the lines of the table for some rates of churn.
func figures(rates []int) []figure {
	all := []figure{
		{"cold_start", "cold start: process start to last VIP answering", "cold_start", 0.5, seconds},
		{"cold_start_cpu", "processor time of a cold start", "cold_start_cpu", 0.5, seconds},
		{"transaction", "longest transaction of a cold start, at most", "transaction", 1, seconds},
		{"change_p50", "API write to first packet on the new endpoint, p50", "change", 0.5, seconds},
		{"change_p90", "… p90", "change", 0.9, seconds},
		{"change_p99", "… p99", "change", 0.99, seconds},
		{"write", "of which the API write itself", "change_write", 0.5, seconds},
		{"cpu_per_change", "processor time of one change", "cpu_per_change", 0.5, seconds},
		{"cpu_per_1000_changes", "… of 1,000 changes", "cpu_per_1000_changes", 0.5, seconds},
		{"new_service_p50", "new Service to first answer, p50", "new_service", 0.5, seconds},
		{"new_service_p90", "… p90", "new_service", 0.9, seconds},
		{"new_service_p99", "… p99", "new_service", 0.99, seconds},
		{"memory", "resident memory, settled", "memory", 0.5, mebibytes},
		{"memory_peak", "resident memory, peak of the cold start, with children", "peak", 0.5, mebibytes},
		{"kernel_memory", "kernel memory of the tables, charged to the proxy's cgroup", "kernel_memory", 0.5, mebibytes},
		{"kernel_memory_meminfo", "… of the whole machine's, by /proc/meminfo", "kernel_memory_meminfo", 0.5, mebibytes},
		{"idle_cpu", "processor, idle", "idle_cpu", 0.5, share},
		{"received_cold", "from the API server in a cold start", "cold_start_received", 0.5, mebibytes},
		{"received_per_change", "… per change, bytes", "received_per_change", 0.5, number},
		{"elements_per_change", "elements sent per change", "elements_per_change", 0.5, number},
		{"bytes_per_change", "bytes sent to the kernel per change", "bytes_per_change", 0.5, number},
		{"kernel_per_change", "time of the transaction", "kernel_per_change", 0.5, seconds},
	}
	for _, r := range rates {
		of := func(what string) string { return fmt.Sprintf("churn_%d_%s", r, what) }
		all = append(all,
			figure{of("reached"), fmt.Sprintf("%d changes/s wanted: reached", r), of("reached"), 0.5, number},
			figure{of("lag_p50"), fmt.Sprintf("under %d changes/s: API write to first packet, p50", r), of("lag"), 0.5, seconds},
			figure{of("lag_p99"), "… p99", of("lag"), 0.99, seconds},
			figure{of("write"), "of which the API write itself, p50", of("lag_write"), 0.5, seconds},
			figure{of("cpu"), "… processor used", of("cpu"), 0.5, share})
	}
	all = append(all,
		figure{"restart", "warm restart to first change in effect", "restart", 0.5, seconds},
		figure{"restart_changed", "… with 1% of the Services changed meanwhile", "restart_changed", 0.5, seconds},
		figure{"restart_changed_elements", "… elements written", "restart_changed_elements", 1, number},
		figure{"restart_ready", "warm restart, nothing changed: ready", "restart_ready", 0.5, seconds},
		figure{"restart_elements", "… elements written", "restart_elements", 1, number})
	for _, p := range []struct{ name, title string }{
		{"cluster_ip", "a ClusterIP"}, {"direct", "the direct path beside it"},
		{"node_port", "a NodePort, from outside"}, {"direct_outside", "the direct path beside it"},
	} {
		all = append(all,
			figure{p.name + "_rate", "new connections/s through " + p.title, p.name + "_rate", 0.5, number},
			figure{p.name + "_first_p50", "… handshake, p50", p.name + "_first", 0.5, seconds},
			figure{p.name + "_first_p99", "… p99", p.name + "_first", 0.99, seconds})
	}
	return append(all,
		figure{"cluster_ip_share", "connections through a ClusterIP / direct", "cluster_ip_share", 0.5, share},
		figure{"node_port_share", "connections through a NodePort / direct", "node_port_share", 0.5, share},
		figure{"cluster_ip_throughput", "one stream through a ClusterIP, GiB/s", "cluster_ip_throughput", 0.5, ratio},
		figure{"direct_throughput", "… direct", "direct_throughput", 0.5, ratio},
		figure{"throughput_share", "… share", "throughput_share", 0.5, share})
}
