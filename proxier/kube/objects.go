// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// Proto is a transport protocol.
type Proto = nl.Proto

// The protocols of a Service.
const (
	TCP  = nl.TCP
	UDP  = nl.UDP
	SCTP = nl.SCTP
)

// Service is what the proxy uses of a Service. It is immutable: sources and sinks share it. There is none for a
// Service that is not to be proxied (headless, ExternalName, or with the label service-proxy-name).
//
// All addresses are unmapped, without a zone, and of a family that has a ClusterIP: as in kube-proxy, a family
// without one is not proxied at all.
type Service struct {
	Name Name
	UID  string
	// Created is the creation time in seconds since 1970 (the API's resolution); 0 if the object has none.
	Created int64
	Type    ServiceType
	// ClusterIPs are the first ClusterIP of each family, IPv4 first; the zero Addr where there is none.
	ClusterIPs [2]netip.Addr
	// Ports are in the order of the object. No two of them share a name, nor protocol and port, nor protocol and
	// NodePort: the first one stays.
	Ports []ServicePort
	// ExternalIPs and LoadBalancerIPs hold no duplicates, in the order of the object. LoadBalancerIPs are those of the
	// status whose ipMode is VIP or unset.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// SourceRanges are those of spec.loadBalancerSourceRanges, masked, of both families, also where this Service
	// has no ClusterIP: a Service all of whose ranges are of the other family is not one without ranges.
	SourceRanges []netip.Prefix
	// NoValidRange is set if there are source ranges and none is valid: then no client is admitted.
	NoValidRange bool
	// ExternalLocal and InternalLocal are set if the traffic policy is Local. ExternalLocal is set only where the
	// Service can be reached from outside: NodePort, LoadBalancer, or ClusterIP with external IPs.
	ExternalLocal, InternalLocal bool
	// NoLoadBalancerNodePorts is the negation of spec.allocateLoadBalancerNodePorts.
	NoLoadBalancerNodePorts bool
	// HealthCheckNodePort is set only for a LoadBalancer whose external policy is Local.
	HealthCheckNodePort uint16
	// Affinity is for how long a client keeps its endpoint (sessionAffinity ClientIP); 0 is no affinity.
	Affinity time.Duration
}

// ServiceType is spec.type, ExternalName excepted.
type ServiceType uint8

// The types of Services that are proxied.
const (
	ClusterIP ServiceType = iota
	NodePort
	LoadBalancer
)

// ServicePort is one port of a Service, in host byte order.
type ServicePort struct {
	Name  Sym // empty for the only port of a Service
	Proto Proto
	Port  uint16
	// NodePort is 0 where there is none. It counts whatever the type of the Service is.
	NodePort uint16
}

// Ref returns kind and name.
func (s *Service) Ref() Ref { return Ref{KindService, s.Name} }

// ClusterIP returns the ClusterIP of the family, the zero Addr if there is none.
func (s *Service) ClusterIP(ipv6 bool) netip.Addr { return s.ClusterIPs[familyIndex(ipv6)] }

func (s *Service) same(o Object) bool { return reflect.DeepEqual(Object(s), o) }

// familyIndex is the place of a family in an array of both.
func familyIndex(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// EndpointSlice is what the proxy uses of an EndpointSlice. It is immutable: sources and sinks share it. There is
// none for a slice of host names, of a headless Service, or of no Service.
type EndpointSlice struct {
	Name Name
	// Service is whose endpoints these are (label kubernetes.io/service-name); it is in the same namespace.
	Service Name
	// IPv6 is the family of all addresses.
	IPv6 bool
	// Changed is when the change began that this slice is the result of (annotation
	// endpoints.kubernetes.io/last-change-trigger-time); zero if unknown. A change of it alone is not delivered.
	Changed   time.Time
	Ports     []SlicePort
	Endpoints []Endpoint
}

// SlicePort is the port, in host byte order, at which the endpoints of a slice serve the Service's port of that name
// and protocol.
type SlicePort struct {
	Name  Sym
	Proto Proto
	Port  uint16
}

// Endpoint is one address of a slice, with its conditions: an unset ready or serving counts as true, an unset
// terminating as false.
type Endpoint struct {
	Addr                        netip.Addr // unmapped, without a zone
	Node                        Sym        // the node it runs on; empty if unknown
	Hints                       Hints
	Ready, Serving, Terminating bool
}

// Ref returns kind and name.
func (s *EndpointSlice) Ref() Ref { return Ref{KindEndpointSlice, s.Name} }

func (s *EndpointSlice) same(o Object) bool {
	other, ok := o.(*EndpointSlice)
	return ok && s.Name == other.Name && s.Service == other.Service && s.IPv6 == other.IPv6 &&
		slices.Equal(s.Ports, other.Ports) && slices.Equal(s.Endpoints, other.Endpoints)
}

// Node is what the proxy uses of the Node that it runs on. It is immutable.
type Node struct {
	Name Name // without a namespace
	UID  string
	// Addrs are the node's addresses, internal ones before external ones, in the order of the object. The first one
	// of a family is the node's address in it.
	Addrs []netip.Addr
	// PodCIDRs are the ranges of the pods on this node, masked.
	PodCIDRs []netip.Prefix
	// Zone is the label topology.kubernetes.io/zone.
	Zone string
	// Deleting is set while the object is being deleted, ToBeDeleted if the cluster autoscaler has chosen the node for
	// removal (taint ToBeDeletedByClusterAutoscaler).
	Deleting, ToBeDeleted bool
}

// Ref returns kind and name.
func (n *Node) Ref() Ref { return Ref{KindNode, n.Name} }

// Addr returns the node's address of a family, the zero Addr if it has none.
func (n *Node) Addr(ipv6 bool) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is6() == ipv6 {
			return a
		}
	}
	return netip.Addr{}
}

func (n *Node) same(o Object) bool { return reflect.DeepEqual(Object(n), o) }

// ServiceCIDR is a range, or one per family, that ClusterIPs are taken from. It is immutable.
type ServiceCIDR struct {
	Name     Name // without a namespace
	Prefixes []netip.Prefix
}

// Ref returns kind and name.
func (c *ServiceCIDR) Ref() Ref { return Ref{KindServiceCIDR, c.Name} }

func (c *ServiceCIDR) same(o Object) bool { return reflect.DeepEqual(Object(c), o) }

// interned is a value that many objects repeat, stored once and compared as a pointer. The zero interned holds the zero
// value. It is safe for concurrent use.
type interned[T comparable] struct{ h unique.Handle[T] }

func intern[T comparable](v T) (i interned[T]) {
	if v != i.get() { // not the zero value
		i.h = unique.Make(v)
	}
	return i
}

func (i interned[T]) get() (v T) {
	if i == (interned[T]{}) {
		return v
	}
	return i.h.Value()
}

// Sym is an interned string: the name of a node, a zone, a port. It is comparable.
type Sym struct{ interned[string] }

// Intern returns the Sym of s.
func Intern(s string) Sym { return Sym{intern(s)} }

// String returns the string that was interned.
func (s Sym) String() string { return s.get() }

// Hints are the zones and nodes that an endpoint should serve (topology hints), and the zone that it is in. Hints are
// comparable and one word long: endpoints with equal hints share them. The zero Hints has none.
type Hints struct{ interned[hints] }

// hints holds each list sorted and joined by commas, which neither a label value nor a node name contains: so it
// is comparable and can be interned.
type hints struct{ zones, nodes, own string }

// NewHints returns the hints for the zones and nodes given, in any order. Empty names are left out.
func NewHints(zones, nodes []string) Hints {
	return Hints{intern(hints{joinSet(zones), joinSet(nodes), ""})}
}

// In returns the hints of an endpoint that is in a zone itself.
func (h Hints) In(zone string) Hints {
	all := h.get()
	all.own = zone
	return Hints{intern(all)}
}

// Zone is the zone that the endpoint is in, empty if unknown. It is only displayed.
func (h Hints) Zone() string { return h.get().own }

func joinSet(names []string) string {
	names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(s string) bool { return s == "" })
	return strings.Join(slices.Compact(names), ",")
}

// HasZones reports whether any zone is named; HasNodes the same of nodes.
func (h Hints) HasZones() bool { return h.get().zones != "" }

// HasNodes reports whether any node is named.
func (h Hints) HasNodes() bool { return h.get().nodes != "" }

// ForZone reports whether zone is among those named. An empty zone never is.
func (h Hints) ForZone(zone string) bool { return inSet(h.get().zones, zone) }

// ForNode reports whether node is among those named. An empty node never is.
func (h Hints) ForNode(node string) bool { return inSet(h.get().nodes, node) }

func inSet(set, name string) bool {
	for set != "" && name != "" {
		var first string
		if first, set, _ = strings.Cut(set, ","); first == name {
			return true
		}
	}
	return false
}
