// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// routingDesc are the metrics of routing.
type routingDesc struct{ entries, wanted, repairs *prometheus.Desc }

func newRoutingDesc() routingDesc {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystemOwn, name), help, []string{"object"}, nil)
	}
	return routingDesc{
		entries: desc("routing_entries", "Addresses, routes, rules and neighbours of ours that are there"),
		wanted:  desc("routing_entries_wanted", "Addresses, routes, rules and neighbours of ours that should be there"),
		repairs: desc("routing_repairs_total", "Addresses, routes, rules and neighbours removed by others and put back"),
	}
}

// routingCollector reads routing's own counters when it is scraped: routing
// does not know of metrics.
type routingCollector struct {
	stats func() Routing
	desc  routingDesc
}

// Describe implements prometheus.Collector.
func (c *routingCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.desc.entries
	to <- c.desc.wanted
	to <- c.desc.repairs
}

// Collect implements prometheus.Collector.
func (c *routingCollector) Collect(to chan<- prometheus.Metric) {
	s := c.stats()
	for object, n := range s.Entries {
		to <- prometheus.MustNewConstMetric(c.desc.entries, prometheus.GaugeValue, float64(n), object)
	}
	for object, n := range s.Wanted {
		to <- prometheus.MustNewConstMetric(c.desc.wanted, prometheus.GaugeValue, float64(n), object)
	}
	for object, n := range s.Repaired {
		to <- prometheus.MustNewConstMetric(c.desc.repairs, prometheus.CounterValue, float64(n), object)
	}
}
