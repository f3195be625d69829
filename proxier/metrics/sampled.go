// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// The metrics of this file are read at each scrape, from counters of the kernel and of packages that do not import this
// one. Each ...From method may be called once, and only where the thing is in use.

// series is one metric of a sample.
type series struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newSeries(kind prometheus.ValueType, prefix, name, help string, labels ...string) series {
	return series{prometheus.NewDesc(prometheus.BuildFQName("", prefix, name), help, labels, nil), kind}
}

// send delivers one value; the labels are in the order of the series.
type send func(s series, value float64, labels ...string)

// sample is a prometheus.Collector made of a function.
type sample struct {
	all  []series
	read func(send)
}

// Describe implements prometheus.Collector.
func (s sample) Describe(to chan<- *prometheus.Desc) {
	for _, one := range s.all {
		to <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (s sample) Collect(to chan<- prometheus.Metric) {
	s.read(func(one series, value float64, labels ...string) {
		for i := range labels {
			labels[i] = printable(labels[i])
		}
		metric, err := prometheus.NewConstMetric(one.desc, one.kind, value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(one.desc, err) // reported with the scrape; the other series are served
		}
		to <- metric
	})
}

func (m *Metrics) sample(read func(send), all ...series) {
	m.registry.RawMustRegister(sample{all, read})
}

// Source is the state of the source of one kind of object.
type Source struct {
	Kind        string // "Service"
	Connected   bool   // the last list or watch succeeded
	LastContact time.Time
}

// SourcesFrom adds the metrics of the sources of objects.
func (m *Metrics) SourcesFrom(stats func() []Source) {
	connected := newSeries(prometheus.GaugeValue, nftproxy, "source_connected", "1 if objects of this kind are being received, 0 if the source cannot be reached or refuses", "kind")
	contact := newSeries(prometheus.GaugeValue, nftproxy, "source_last_contact_timestamp_seconds", "Time of the last list or event from the source, in Unix seconds; 0 if there was none", "kind")
	m.sample(func(send send) {
		for _, s := range stats() {
			send(connected, number(s.Connected), s.Kind)
			send(contact, unixSeconds(s.LastContact), s.Kind)
		}
	}, connected, contact)
}

// Routing is the state of routing by kind of object ("address", "route", "rule", "neighbour", "sysctl").
type Routing struct {
	Entries  map[string]int    // present now
	Wanted   map[string]int    // that should be present
	Repaired map[string]uint64 // restored after another program removed or changed them; only grows
	Problems map[string]int    // now, by severity ("note", "waiting", "conflict")
}

// RoutingFrom adds the metrics of routing.
func (m *Metrics) RoutingFrom(stats func() Routing) {
	entries := newSeries(prometheus.GaugeValue, nftproxy, "routing_entries", "Addresses, routes, rules and neighbours of nftproxy that are present", "object")
	wanted := newSeries(prometheus.GaugeValue, nftproxy, "routing_entries_wanted", "Addresses, routes, rules and neighbours of nftproxy that should be present", "object")
	repairs := newSeries(prometheus.CounterValue, nftproxy, "routing_repairs_total", "Addresses, routes, rules and neighbours removed by another program and restored", "object")
	problems := newSeries(prometheus.GaugeValue, nftproxy, "routing_problems", "What keeps routing from being complete: waiting for a missing device or address, or in conflict with an object of others", "severity")
	m.sample(func(send send) {
		s := stats()
		for severity, n := range s.Problems {
			send(problems, float64(n), severity)
		}
		for object, n := range s.Entries {
			send(entries, float64(n), object)
		}
		for object, n := range s.Wanted {
			send(wanted, float64(n), object)
		}
		for object, n := range s.Repaired {
			send(repairs, float64(n), object)
		}
	}, entries, wanted, repairs, problems)
}

// DropCounter is the number of packets that were refused or dropped for one reason.
type DropCounter struct {
	Family  v1.IPFamily
	Refused bool // answered with a reset or an ICMP error
	Reason  string
	Packets uint64
}

// DropCountersFrom adds the metrics of packets that are refused and dropped.
func (m *Metrics) DropCountersFrom(stats func() []DropCounter) {
	refused := newSeries(prometheus.CounterValue, nftproxy, "refused_total", "Packets to addresses of Services that were answered with a reset or an ICMP error, by reason", familyLabel, "reason")
	dropped := newSeries(prometheus.CounterValue, nftproxy, "dropped_total", "Packets to addresses of Services that were dropped silently, by reason", familyLabel, "reason")
	m.sample(func(send send) {
		for _, c := range stats() {
			if c.Refused {
				send(refused, float64(c.Packets), string(c.Family), c.Reason)
			} else {
				send(dropped, float64(c.Packets), string(c.Family), c.Reason)
			}
		}
	}, refused, dropped)
}

// Connected is the number of new connections to one address of a Service port.
type Connected struct {
	Family                   v1.IPFamily
	Namespace, Service, Port string // Port is the name of the Service's port, empty if it has none
	Protocol                 string
	Address                  string // "10.96.0.10:80", or ":30080" for a NodePort
	Packets                  uint64
}

// ConnectionsFrom adds the metric of connections to each address of each Service. stats passes them one by one; no two
// may have equal labels.
func (m *Metrics) ConnectionsFrom(stats func(func(Connected))) {
	connections := newSeries(prometheus.CounterValue, nftproxy, "service_connections_total", "New connections to an address of a Service, including those that were refused",
		familyLabel, "namespace", "service", "port", "protocol", "address")
	m.sample(func(send send) {
		stats(func(c Connected) {
			send(connections, float64(c.Packets), string(c.Family), c.Namespace, c.Service, c.Port, c.Protocol, c.Address)
		})
	}, connections)
}

// Localhost is the state of the forwarder of NodePorts on loopback addresses.
type Localhost struct {
	ListenersIPv4, ListenersIPv6 int
	Connections, Clients         int    // TCP connections and UDP clients now
	Failures                     uint64 // to open a listener
	Refused, Forgotten           uint64 // TCP connections and UDP clients above the limits
}

// LocalhostFrom adds the metrics of NodePorts on loopback addresses. The first two are kube-proxy v1.37's.
func (m *Metrics) LocalhostFrom(stats func() Localhost) {
	listeners := newSeries(prometheus.GaugeValue, kubeproxy, "nftables_localhost_nodeport_listeners", "Open listeners of NodePorts on loopback addresses", familyLabel)
	failures := newSeries(prometheus.CounterValue, kubeproxy, "nftables_localhost_nodeport_listener_creation_failures_total", "Listeners of NodePorts on loopback addresses that could not be opened, retries included")
	open := newSeries(prometheus.GaugeValue, nftproxy, "localhost_nodeport_connections", "TCP connections and UDP clients of NodePorts on loopback addresses", "protocol")
	refused := newSeries(prometheus.CounterValue, nftproxy, "localhost_nodeport_refused_total", "TCP connections reset and UDP clients dropped because there were too many", "protocol")
	m.sample(func(send send) {
		s := stats()
		send(listeners, float64(s.ListenersIPv4), "IPv4")
		send(listeners, float64(s.ListenersIPv6), "IPv6")
		send(failures, float64(s.Failures))
		send(open, float64(s.Connections), "TCP")
		send(open, float64(s.Clients), "UDP")
		send(refused, float64(s.Refused), "TCP")
		send(refused, float64(s.Forgotten), "UDP")
	}, listeners, failures, open, refused)
}
