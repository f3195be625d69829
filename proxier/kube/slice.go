// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
	"time"
)

// EndpointSlice is what the proxy uses of an EndpointSlice. It is immutable: sources and sinks share it. There is
// none for a slice of host names, of a headless Service, or of no Service.
type EndpointSlice struct {
	Name Name
	// Service is whose endpoints these are (label kubernetes.io/service-name); it is in the same namespace.
	Service Name
	// IPv6 is the family of all addresses.
	IPv6 bool
	// Changed is when the change began that this slice is the result of (annotation
	// endpoints.kubernetes.io/last-change-trigger-time); zero if not told. Equal does not look at it.
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

// Endpoint is one address of a slice, with the conditions that the object tells or leaves open: an unknown ready or
// serving counts as true, an unknown terminating as false.
type Endpoint struct {
	Addr                        netip.Addr // unmapped, without a zone
	Node                        Sym        // the node it runs on; empty if not told
	Hints                       Hints
	Ready, Serving, Terminating bool
}

// Ref returns kind and name.
func (s *EndpointSlice) Ref() Ref { return Ref{KindEndpointSlice, s.Name} }

// Equal tells whether the proxy would do the same for both.
func (s *EndpointSlice) Equal(o *EndpointSlice) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name && s.Service == o.Service && s.IPv6 == o.IPv6 &&
		slices.Equal(s.Ports, o.Ports) && slices.Equal(s.Endpoints, o.Endpoints)
}

func (s *EndpointSlice) same(o Object) bool {
	other, ok := o.(*EndpointSlice)
	return ok && s.Equal(other)
}
