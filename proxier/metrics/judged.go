// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Judged is how many packets were refused or dropped for one reason.
type Judged struct {
	Family  v1.IPFamily
	Refused bool
	Reason  string
	Packets uint64
}

// JudgedFrom adds the metrics of packets that are refused and dropped, which are read from stats at each scrape. Call it at
// most once.
func (m *Metrics) JudgedFrom(stats func() []Judged) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystemOwn, name), help, []string{familyLabel, "reason"}, nil)
	}
	m.registry.RawMustRegister(&judgedCollector{stats,
		desc("refused_total", "Packets to addresses of Services that were answered with a reset or an ICMP error, by reason"),
		desc("dropped_total", "Packets to addresses of Services that were dropped in silence, by reason")})
}

// judgedCollector reads the kernel's counters when it is scraped.
type judgedCollector struct {
	stats            func() []Judged
	refused, dropped *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *judgedCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.refused
	to <- c.dropped
}

// Collect implements prometheus.Collector.
func (c *judgedCollector) Collect(to chan<- prometheus.Metric) {
	for _, j := range c.stats() {
		desc := c.dropped
		if j.Refused {
			desc = c.refused
		}
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(j.Packets), string(j.Family), j.Reason)
	}
}
