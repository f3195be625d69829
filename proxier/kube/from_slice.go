// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// FromEndpointSlice converts an EndpointSlice. It returns nil for one that the proxy has no use for: of host names,
// of a headless Service (label service.kubernetes.io/headless), or without the label that names its Service. Each
// error is a *FieldError, whose field, and the endpoint or port around it, was left out. The object is not kept nor
// changed.
func FromEndpointSlice(o *discovery.EndpointSlice) (*EndpointSlice, []error) {
	service := o.Labels[discovery.LabelServiceName]
	if _, headless := o.Labels[v1.IsHeadlessService]; headless || service == "" || o.AddressType == discovery.AddressTypeFQDN {
		return nil, nil
	}
	name := nameOf(o)
	c := sliceConv{
		problems: problems{ref: Ref{KindEndpointSlice, name}},
		s: &EndpointSlice{
			Name:    name,
			Service: Name{name.Namespace, service},
			IPv6:    o.AddressType == discovery.AddressTypeIPv6,
		},
	}
	if !c.s.IPv6 && o.AddressType != discovery.AddressTypeIPv4 {
		c.add(errUnknown, o.AddressType, "addressType")
		return nil, c.errs
	}
	if at, ok := o.Annotations[v1.EndpointsLastChangeTriggerTime]; ok {
		c.s.Changed, _ = time.Parse(time.RFC3339Nano, at) // only a metric needs it
	}
	c.ports(o.Ports)
	c.endpoints(o.Endpoints)
	return c.s, c.errs
}

// sliceConv is an EndpointSlice in the making.
type sliceConv struct {
	problems
	s *EndpointSlice // on its own: it stays, the rest does not
}

// ports converts the ports. One without a name or number means any port, which a Service cannot use.
func (c *sliceConv) ports(list []discovery.EndpointPort) {
	for i, o := range list {
		if o.Name == nil || o.Port == nil || *o.Port == 0 {
			continue
		}
		var proto Proto = TCP
		var err error
		if o.Protocol != nil {
			proto, err = parseProto(*o.Protocol)
		}
		if err != nil {
			c.add(err, *o.Protocol, "ports[%d].protocol", i)
			continue
		}
		port, err := parsePort(*o.Port)
		if err != nil {
			c.add(err, *o.Port, "ports[%d].port", i)
			continue
		}
		c.s.Ports = append(c.s.Ports, SlicePort{Intern(*o.Name), proto, port})
	}
}

func (c *sliceConv) endpoints(list []discovery.Endpoint) {
	if len(list) == 0 {
		return
	}
	c.s.Endpoints = make([]Endpoint, 0, len(list))
	for i := range list {
		o := &list[i]
		addr, ok := c.address(i, o.Addresses)
		if !ok {
			continue
		}
		e := Endpoint{
			Addr:        addr,
			Hints:       fromHints(o.Hints),
			Ready:       o.Conditions.Ready == nil || *o.Conditions.Ready,
			Serving:     o.Conditions.Serving == nil || *o.Conditions.Serving,
			Terminating: o.Conditions.Terminating != nil && *o.Conditions.Terminating,
		}
		if o.NodeName != nil {
			e.Node = Intern(*o.NodeName)
		}
		if o.Zone != nil && *o.Zone != "" {
			e.Hints = e.Hints.In(*o.Zone)
		}
		c.s.Endpoints = append(c.s.Endpoints, e)
	}
}

// address returns the first address of an endpoint; the API says that all of them reach the same pod.
func (c *sliceConv) address(i int, list []string) (netip.Addr, bool) {
	if len(list) == 0 {
		c.add(errMissing, nil, "endpoints[%d].addresses", i)
		return netip.Addr{}, false
	}
	a, err := parseRoutable(list[0])
	if err == nil && a.Is6() != c.s.IPv6 {
		err = errFamily
	}
	if err != nil {
		c.add(err, list[0], "endpoints[%d].addresses[0]", i)
		return netip.Addr{}, false
	}
	return a, true
}

func fromHints(o *discovery.EndpointHints) Hints {
	if o == nil {
		return Hints{}
	}
	var zones, nodes []string
	for _, z := range o.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range o.ForNodes {
		nodes = append(nodes, n.Name)
	}
	return NewHints(zones, nodes)
}
