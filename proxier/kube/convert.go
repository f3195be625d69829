// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// Reasons why a field cannot be used. A [FieldError] wraps them.
var (
	errAddress   = errors.New("not an IP address")
	errPrefix    = errors.New("not a CIDR")
	errZone      = errors.New("an address with a zone")
	errMapped    = errors.New("an IPv4-mapped prefix wider than /96")
	errSpecial   = errors.New("a loopback, multicast, broadcast or unspecified address")
	errLinkLocal = errors.New("a link-local address")
	errFamily    = errors.New("of a family that the object does not have")
	errPort      = errors.New("not a port number")
	errProto     = errors.New("not TCP, UDP or SCTP")
	errDuplicate = errors.New("given twice, the first one counts")
	errMissing   = errors.New("must be given")
	errUnknown   = errors.New("not a known value")
	errRange     = errors.New("out of range")
	errTooMany   = errors.New("too many values, the first ones count")
	errMore      = errors.New("further problems are not listed")
)

// Bounds of what is taken from one object, so that a hostile one costs neither time nor memory: the rest of a longer list
// is left out, with a FieldError.
const (
	// maxAddresses is one more than a Service is served with in two families (1,024 each, package proxier): a Service
	// with more is refused as too large, and not served in part.
	maxAddresses = 2*1024 + 1
	// maxSourceRanges is far above what load balancers of clouds take (some 1,000). Traffic from the ranges left out is
	// dropped.
	maxSourceRanges = 10000
	// maxProblems bounds the errors, and maxValue the bytes of a value in one.
	maxProblems = 16
	maxValue    = 100
)

// problems collects what is wrong with one object.
type problems struct {
	ref  Ref
	errs []error
}

// failed reports whether a field cannot be used because of err, and records that; value is quoted unless it is nil.
func (p *problems) failed(err error, value any, format string, args ...any) bool {
	switch {
	case err == nil || len(p.errs) > maxProblems:
		return err != nil
	case len(p.errs) == maxProblems:
		err = errMore
	case value != nil:
		shown := fmt.Sprintf("%#v", value)
		if len(shown) > maxValue {
			shown = strings.ToValidUTF8(shown[:maxValue], "") + "..."
		}
		err = fmt.Errorf("%s: %w", shown, err)
	}
	p.errs = append(p.errs, &FieldError{p.ref, fmt.Sprintf(format, args...), err})
	return true
}

// parseAll parses the values of a field, without repetitions and at most limit of them.
func parseAll[T comparable](p *problems, list []string, limit int, field string, parse func(string) (T, error)) []T {
	var out []T
	for i, text := range first(p, list, limit, field) {
		v, err := parse(text)
		if !p.failed(err, text, "%s[%d]", field, i) {
			out = append(out, v)
		}
	}
	return distinct(out)
}

// first returns at most n values of the list of a field.
func first[T any](p *problems, list []T, n int, field string) []T {
	if len(list) <= n {
		return list
	}
	p.failed(errTooMany, len(list), "%s", field)
	return list[:n]
}

// distinct returns the list without repetitions, in the same array.
func distinct[T comparable](list []T) []T {
	if len(list) < 2 {
		return list
	}
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		repeated := seen[v]
		seen[v] = true
		return repeated
	})
}

// NameOf returns the name of an object, printable. Namespaces are few and interned.
func NameOf(o metav1.Object) Name {
	return Name{Intern(Printable(o.GetNamespace())).String(), Printable(o.GetName())}
}

// Convert converts a Service, EndpointSlice, Node or ServiceCIDR. The object is nil if the proxy does not use it; ok is
// false for another type.
func Convert(o runtime.Object) (ref Ref, object Object, problems []error, ok bool) {
	switch o := o.(type) {
	case *v1.Service:
		s, errs := FromService(o)
		if s == nil { // not a nil pointer in an Object
			return Ref{KindService, NameOf(o)}, nil, errs, true
		}
		return s.Ref(), s, errs, true
	case *discovery.EndpointSlice:
		s, errs := FromEndpointSlice(o)
		if s == nil {
			return Ref{KindEndpointSlice, NameOf(o)}, nil, errs, true
		}
		return s.Ref(), s, errs, true
	case *v1.Node:
		n, errs := FromNode(o)
		return n.Ref(), n, errs, true
	case *networking.ServiceCIDR:
		c, errs := FromServiceCIDR(o)
		return c.Ref(), c, errs, true
	}
	return Ref{}, nil, nil, false
}

// parseAddr reads an address as kube-proxy does: leading zeros of an IPv4 octet are decimal (objects older than
// Kubernetes 1.22 may have them), and an IPv4-mapped IPv6 address is the IPv4 address.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
		if !ok {
			return netip.Addr{}, errAddress
		}
		a = ip
	}
	if a.Zone() != "" {
		return netip.Addr{}, errZone
	}
	return a.Unmap(), nil
}

// parsePrefix reads a range likewise and masks it. An IPv4-mapped one becomes the IPv4 range that it covers and is
// refused where it covers more than those.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		_, ipnet, err := netutils.ParseCIDRSloppy(s)
		if err != nil {
			return netip.Prefix{}, errPrefix
		}
		a, _ := netip.AddrFromSlice(ipnet.IP)
		bits, _ := ipnet.Mask.Size()
		p = netip.PrefixFrom(a, bits)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, errMapped
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// parseVIP reads an address that clients may connect to.
func parseVIP(s string) (netip.Addr, error) {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	a, err := parseAddr(s)
	if err == nil && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast) {
		return netip.Addr{}, errSpecial
	}
	return a, err
}

// parseRoutable reads an address that must not be link-local either. The API server refuses the same of endpoints
// and external IPs.
func parseRoutable(s string) (netip.Addr, error) {
	a, err := parseVIP(s)
	if err == nil && a.IsLinkLocalUnicast() {
		return netip.Addr{}, errLinkLocal
	}
	return a, err
}

func parsePort(n int32) (uint16, error) {
	if n < 1 || n > math.MaxUint16 {
		return 0, errPort
	}
	return uint16(n), nil
}

// parseProto reads a protocol. The API server's default is TCP.
func parseProto(s v1.Protocol) (Proto, error) {
	switch s {
	case v1.ProtocolTCP, "":
		return TCP, nil
	case v1.ProtocolUDP:
		return UDP, nil
	case v1.ProtocolSCTP:
		return SCTP, nil
	}
	return 0, errProto
}

const (
	// serviceProxyName is the label that gives a Service to another proxy, whatever its value (KEP-2447).
	serviceProxyName = "service.kubernetes.io/service-proxy-name"

	// The API server's default and greatest spec.sessionAffinityConfig.clientIP.timeoutSeconds.
	defaultAffinity = v1.DefaultClientIPServiceAffinitySeconds
	maxAffinity     = 86400
)

// FromService converts a Service. It returns nil for one that is not to be proxied. Each error is a *FieldError,
// whose field was left out. The object is not kept nor changed.
func FromService(o *v1.Service) (*Service, []error) {
	spec := &o.Spec
	list, path := spec.ClusterIPs, "spec.clusterIPs[%d]"
	if len(list) == 0 { // as in a manifest; the API server fills both
		list, path = []string{spec.ClusterIP}, "spec.clusterIP%.0d" // which prints the index 0 as nothing
	}
	_, other := o.Labels[serviceProxyName]
	headless := list[0] == "" || list[0] == v1.ClusterIPNone // headless, or no address is allocated yet
	if other || headless || spec.Type == v1.ServiceTypeExternalName {
		return nil, nil
	}
	name := NameOf(o)
	p := &problems{ref: Ref{KindService, name}}
	s := &Service{
		Name: name, UID: Printable(string(o.UID)),
		InternalLocal: ptr.Deref(spec.InternalTrafficPolicy, "") == v1.ServiceInternalTrafficPolicyLocal,
	}
	if !o.CreationTimestamp.IsZero() {
		s.Created = o.CreationTimestamp.Unix()
	}
	for i, text := range list {
		a, err := parseVIP(text)
		ip := &s.ClusterIPs[familyIndex(a.Is6())]
		if err == nil && ip.IsValid() {
			err = errDuplicate
		}
		if !p.failed(err, text, path, i) {
			*ip = a
		}
	}
	s.Ports = servicePorts(p, spec.Ports)
	served := func(parse func(string) (netip.Addr, error)) func(string) (netip.Addr, error) {
		return func(text string) (netip.Addr, error) {
			a, err := parse(text)
			if err == nil && !s.ClusterIP(a.Is6()).IsValid() {
				err = errFamily
			}
			return a, err
		}
	}
	s.ExternalIPs = parseAll(p, spec.ExternalIPs, maxAddresses, "spec.externalIPs", served(parseRoutable))
	for i, in := range first(p, o.Status.LoadBalancer.Ingress, maxAddresses, "status.loadBalancer.ingress") {
		// Behind ipMode Proxy, and behind a host name, packets arrive at other addresses.
		if in.IP == "" || ptr.Deref(in.IPMode, v1.LoadBalancerIPModeVIP) != v1.LoadBalancerIPModeVIP {
			continue
		}
		if a, err := served(parseVIP)(in.IP); !p.failed(err, in.IP, "status.loadBalancer.ingress[%d].ip", i) {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, a)
		}
	}
	s.LoadBalancerIPs = distinct(s.LoadBalancerIPs)
	s.SourceRanges = parseAll(p, spec.LoadBalancerSourceRanges, maxSourceRanges, "spec.loadBalancerSourceRanges",
		func(text string) (netip.Prefix, error) { return parsePrefix(strings.TrimSpace(text)) }) // validation lets blanks pass
	s.NoValidRange = len(spec.LoadBalancerSourceRanges) > 0 && len(s.SourceRanges) == 0
	switch cmp.Or(spec.Type, v1.ServiceTypeClusterIP) {
	case v1.ServiceTypeClusterIP:
	case v1.ServiceTypeNodePort:
		s.Type = NodePort
	case v1.ServiceTypeLoadBalancer:
		s.Type = LoadBalancer
		s.NoLoadBalancerNodePorts = !ptr.Deref(spec.AllocateLoadBalancerNodePorts, true)
	default:
		p.failed(errUnknown, spec.Type, "spec.type")
	}
	external := s.Type != ClusterIP || len(spec.ExternalIPs) > 0
	s.ExternalLocal = external && spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	if s.Type == LoadBalancer && s.ExternalLocal {
		var err error
		s.HealthCheckNodePort, err = parsePort(spec.HealthCheckNodePort)
		p.failed(err, spec.HealthCheckNodePort, "spec.healthCheckNodePort")
	}
	s.Affinity = affinity(p, spec)
	return s, p.errs
}

// servicePorts converts the ports of a Service. Of two with the same name, or the same protocol and port, the first counts.
func servicePorts(p *problems, list []v1.ServicePort) []ServicePort {
	if len(list) == 0 {
		return nil
	}
	out := make([]ServicePort, 0, len(list))
	seen := make(map[ServicePort]bool, 3*len(list)) // names, ports and NodePorts, each as a port that has nothing else
	once := func(k ServicePort, err error) error {
		if err == nil && seen[k] {
			return errDuplicate
		}
		return err
	}
	for i := range list {
		o := &list[i]
		proto, err := parseProto(o.Protocol)
		if p.failed(err, o.Protocol, "spec.ports[%d].protocol", i) {
			continue
		}
		port, err := parsePort(o.Port)
		if p.failed(err, o.Port, "spec.ports[%d].port", i) {
			continue
		}
		converted := ServicePort{Name: Intern(Printable(o.Name)), Proto: proto, Port: port}
		byName, byPort := ServicePort{Name: converted.Name}, ServicePort{Proto: proto, Port: port}
		if p.failed(once(byName, nil), o.Name, "spec.ports[%d].name", i) || p.failed(once(byPort, nil), o.Port, "spec.ports[%d].port", i) {
			continue
		}
		seen[byName], seen[byPort] = true, true
		if o.NodePort != 0 {
			nodePort, err := parsePort(o.NodePort)
			byNodePort := ServicePort{Proto: proto, NodePort: nodePort}
			if !p.failed(once(byNodePort, err), o.NodePort, "spec.ports[%d].nodePort", i) {
				seen[byNodePort], converted.NodePort = true, nodePort
			}
		}
		out = append(out, converted)
	}
	return out
}

// affinity returns the timeout of the session affinity, 0 without.
func affinity(p *problems, spec *v1.ServiceSpec) time.Duration {
	switch spec.SessionAffinity {
	case v1.ServiceAffinityNone, "":
		return 0
	case v1.ServiceAffinityClientIP:
	default:
		p.failed(errUnknown, spec.SessionAffinity, "spec.sessionAffinity")
		return 0
	}
	seconds := defaultAffinity
	if cfg := spec.SessionAffinityConfig; cfg != nil && cfg.ClientIP != nil {
		seconds = ptr.Deref(cfg.ClientIP.TimeoutSeconds, seconds)
	}
	if seconds < 1 || seconds > maxAffinity {
		p.failed(errRange, seconds, "spec.sessionAffinityConfig.clientIP.timeoutSeconds")
		seconds = defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}

// FromEndpointSlice converts an EndpointSlice. It returns nil for one that the proxy does not use: of host names, of a
// headless Service (label service.kubernetes.io/headless), or without the label that names its Service. Each error is a
// *FieldError, whose field, and the endpoint or port around it, was left out. The object is not kept nor changed.
func FromEndpointSlice(o *discovery.EndpointSlice) (*EndpointSlice, []error) {
	service := o.Labels[discovery.LabelServiceName]
	if _, headless := o.Labels[v1.IsHeadlessService]; headless || service == "" || o.AddressType == discovery.AddressTypeFQDN {
		return nil, nil
	}
	name := NameOf(o)
	p := &problems{ref: Ref{KindEndpointSlice, name}}
	s := &EndpointSlice{Name: name, Service: Name{name.Namespace, Printable(service)}, IPv6: o.AddressType == discovery.AddressTypeIPv6}
	if !s.IPv6 && o.AddressType != discovery.AddressTypeIPv4 {
		p.failed(errUnknown, o.AddressType, "addressType")
		return nil, p.errs
	}
	if at, ok := o.Annotations[v1.EndpointsLastChangeTriggerTime]; ok {
		s.Changed, _ = time.Parse(time.RFC3339Nano, at) // only a metric needs it
	}
	for i, port := range o.Ports {
		if port.Name == nil || ptr.Deref(port.Port, 0) == 0 {
			continue // any port, which a Service cannot use
		}
		proto, err := parseProto(ptr.Deref(port.Protocol, v1.ProtocolTCP))
		if err != nil {
			p.failed(err, *port.Protocol, "ports[%d].protocol", i)
			continue
		}
		if number, err := parsePort(*port.Port); !p.failed(err, *port.Port, "ports[%d].port", i) {
			s.Ports = append(s.Ports, SlicePort{Intern(Printable(*port.Name)), proto, number})
		}
	}
	if len(o.Endpoints) > 0 {
		s.Endpoints = make([]Endpoint, 0, len(o.Endpoints))
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			p.failed(errMissing, nil, "endpoints[%d].addresses", i)
			continue
		}
		addr, err := parseRoutable(e.Addresses[0]) // by the API all of them reach the same pod
		if err == nil && addr.Is6() != s.IPv6 {
			err = errFamily
		}
		if err != nil { // tested first: the arguments cost allocations, for each endpoint
			p.failed(err, e.Addresses[0], "endpoints[%d].addresses[0]", i)
			continue
		}
		s.Endpoints = append(s.Endpoints, Endpoint{
			Addr:        addr,
			Node:        Intern(Printable(ptr.Deref(e.NodeName, ""))),
			Hints:       fromHints(e.Hints, e.Zone),
			Ready:       ptr.Deref(e.Conditions.Ready, true),
			Serving:     ptr.Deref(e.Conditions.Serving, true),
			Terminating: ptr.Deref(e.Conditions.Terminating, false),
		})
	}
	return s, p.errs
}

func fromHints(o *discovery.EndpointHints, zone *string) (h Hints) {
	if o != nil {
		var zones, nodes []string
		for _, z := range o.ForZones {
			zones = append(zones, Printable(z.Name))
		}
		for _, n := range o.ForNodes {
			nodes = append(nodes, Printable(n.Name))
		}
		h = NewHints(zones, nodes)
	}
	if zone != nil && *zone != "" {
		h = h.In(Printable(*zone))
	}
	return h
}

// toBeDeleted is the taint with which the cluster autoscaler marks a node that it is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// FromNode converts a Node. Each error is a *FieldError, whose field was left out. The object is not kept nor changed.
func FromNode(o *v1.Node) (*Node, []error) {
	n := &Node{
		Name:        NameOf(o),
		UID:         Printable(string(o.UID)),
		Zone:        Printable(o.Labels[v1.LabelTopologyZone]),
		Deleting:    o.DeletionTimestamp != nil,
		ToBeDeleted: slices.ContainsFunc(o.Spec.Taints, func(t v1.Taint) bool { return t.Key == toBeDeleted }),
	}
	p := &problems{ref: n.Ref()}
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, in := range o.Status.Addresses {
			if in.Type != kind {
				continue
			}
			if a, err := parseAddr(in.Address); !p.failed(err, in.Address, "status.addresses[%d].address", i) {
				n.Addrs = append(n.Addrs, a)
			}
		}
	}
	n.Addrs = distinct(n.Addrs)
	list := o.Spec.PodCIDRs
	if len(list) == 0 && o.Spec.PodCIDR != "" {
		list = []string{o.Spec.PodCIDR}
	}
	n.PodCIDRs = parseAll(p, list, maxAddresses, "spec.podCIDRs", parsePrefix)
	return n, p.errs
}

// FromServiceCIDR converts a ServiceCIDR. Each error is a *FieldError, whose field was left out. The object is not
// kept nor changed.
func FromServiceCIDR(o *networking.ServiceCIDR) (*ServiceCIDR, []error) {
	c := &ServiceCIDR{Name: NameOf(o)}
	p := &problems{ref: c.Ref()}
	c.Prefixes = parseAll(p, o.Spec.CIDRs, maxAddresses, "spec.cidrs", parsePrefix)
	return c, p.errs
}
