// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
	"time"
)

// Proto is an IP protocol number (IANA) of those that a Service can have.
type Proto uint8

// The protocols of a Service.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the name that the API uses.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown protocol"
}

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
	// NoValidRange tells that there are source ranges and none could be read: then nobody is admitted.
	NoValidRange bool
	// ExternalLocal and InternalLocal tell that the traffic policy is Local. ExternalLocal is set only where the
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

// Equal tells whether the proxy would do the same for both.
func (s *Service) Equal(o *Service) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name && s.UID == o.UID && s.Created == o.Created && s.Type == o.Type &&
		s.ClusterIPs == o.ClusterIPs &&
		s.ExternalLocal == o.ExternalLocal && s.InternalLocal == o.InternalLocal &&
		s.NoLoadBalancerNodePorts == o.NoLoadBalancerNodePorts &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && s.Affinity == o.Affinity &&
		slices.Equal(s.Ports, o.Ports) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && s.NoValidRange == o.NoValidRange
}

func (s *Service) same(o Object) bool {
	other, ok := o.(*Service)
	return ok && s.Equal(other)
}

// familyIndex is the place of a family in an array of both.
func familyIndex(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}
