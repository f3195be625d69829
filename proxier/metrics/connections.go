// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Connected is how many new connections one address of a Service port had.
type Connected struct {
	Family                   v1.IPFamily
	Namespace, Service, Port string // Port is the name of the Service's port, empty if it has none
	Protocol                 string
	Address                  string // "10.96.0.10:80", or ":30080" for a NodePort
	Packets                  uint64
}

// ConnectionsFrom adds the metric of connections to each address of each Service, which stats reads and hands to a function
// one by one at each scrape: no two may have equal labels. Call it at most once, and only where they are counted.
func (m *Metrics) ConnectionsFrom(stats func(func(Connected))) {
	m.registry.RawMustRegister(&connectionsCollector{stats, prometheus.NewDesc(
		prometheus.BuildFQName("", subsystemOwn, "service_connections_total"),
		"New connections to an address of a Service, those included that were refused",
		[]string{familyLabel, "namespace", "service", "port", "protocol", "address"}, nil)})
}

// connectionsCollector reads the kernel's counters when it is scraped.
type connectionsCollector struct {
	stats func(func(Connected))
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *connectionsCollector) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *connectionsCollector) Collect(to chan<- prometheus.Metric) {
	c.stats(func(n Connected) {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(n.Packets),
			string(n.Family), n.Namespace, n.Service, n.Port, n.Protocol, n.Address)
	})
}
