// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Localhost is what the forwarder of NodePorts on loopback addresses reports when it is asked.
type Localhost struct {
	ListenersIPv4, ListenersIPv6 int
	Connections, Clients         int    // TCP connections and UDP clients now
	Failures                     uint64 // of opening a listener
	Refused, Forgotten           uint64 // TCP connections and UDP clients over the limits
}

// LocalhostFrom adds the metrics of NodePorts on loopback addresses, which are read from stats at each scrape.
// Call it at most once, and only where they are served.
func (m *Metrics) LocalhostFrom(stats func() Localhost) {
	m.registry.RawMustRegister(&localhostCollector{stats: stats, desc: newLocalhostDesc()})
}

// localhostDesc are the metrics of NodePorts on loopback addresses. The first two are kube-proxy v1.37's.
type localhostDesc struct{ listeners, failures, open, refused *prometheus.Desc }

func newLocalhostDesc() localhostDesc {
	desc := func(subsystem, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystem, name), help, labels, nil)
	}
	return localhostDesc{
		listeners: desc(subsystemKube, "nftables_localhost_nodeport_listeners", "Open listeners of NodePorts on loopback addresses", familyLabel),
		failures:  desc(subsystemKube, "nftables_localhost_nodeport_listener_creation_failures_total", "Listeners of NodePorts on loopback addresses that could not be opened, retries included"),
		open:      desc(subsystemOwn, "localhost_nodeport_connections", "TCP connections and UDP clients of NodePorts on loopback addresses", "protocol"),
		refused:   desc(subsystemOwn, "localhost_nodeport_refused_total", "TCP connections reset and UDP clients forgotten because there were too many", "protocol"),
	}
}

// localhostCollector reads the forwarder's own counters when it is scraped.
type localhostCollector struct {
	stats func() Localhost
	desc  localhostDesc
}

// Describe implements prometheus.Collector.
func (c *localhostCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.desc.listeners, c.desc.failures, c.desc.open, c.desc.refused} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *localhostCollector) Collect(to chan<- prometheus.Metric) {
	s := c.stats()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, label ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, label...)
	}
	send(c.desc.listeners, prometheus.GaugeValue, float64(s.ListenersIPv4), "IPv4")
	send(c.desc.listeners, prometheus.GaugeValue, float64(s.ListenersIPv6), "IPv6")
	send(c.desc.failures, prometheus.CounterValue, float64(s.Failures))
	send(c.desc.open, prometheus.GaugeValue, float64(s.Connections), "TCP")
	send(c.desc.open, prometheus.GaugeValue, float64(s.Clients), "UDP")
	send(c.desc.refused, prometheus.CounterValue, float64(s.Refused), "TCP")
	send(c.desc.refused, prometheus.CounterValue, float64(s.Forgotten), "UDP")
}
