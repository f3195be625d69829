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

// add records that a field cannot be used because of err; value is quoted in the error unless it is nil.
func (p *problems) add(err error, value any, format string, args ...any) {
	if len(p.errs) > maxProblems {
		return
	}
	if text, ok := value.(string); ok && len(text) > maxValue {
		value = text[:maxValue] + "..."
	}
	if len(p.errs) == maxProblems {
		err = errMore
	} else if value != nil {
		err = fmt.Errorf("%#v: %w", value, err)
	}
	p.errs = append(p.errs, &FieldError{p.ref, fmt.Sprintf(format, args...), err})
}

// parseAll parses the values of a field, without repetitions and at most limit of them.
func parseAll[T comparable](p *problems, list []string, limit int, field string, parse func(string) (T, error)) []T {
	var out []T
	for i, text := range first(p, list, limit, field) {
		v, err := parse(text)
		if err != nil {
			p.add(err, text, "%s[%d]", field, i)
			continue
		}
		out = append(out, v)
	}
	return distinct(out)
}

// first returns at most n values of the list of a field.
func first[T any](p *problems, list []T, n int, field string) []T {
	if len(list) <= n {
		return list
	}
	p.add(errTooMany, len(list), "%s", field)
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
		if s, errs := FromService(o); s != nil {
			return s.Ref(), s, errs, true
		}
		return Ref{KindService, NameOf(o)}, nil, nil, true
	case *discovery.EndpointSlice:
		s, errs := FromEndpointSlice(o)
		if s != nil {
			return s.Ref(), s, errs, true
		}
		return Ref{KindEndpointSlice, NameOf(o)}, nil, errs, true
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
	if _, other := o.Labels[serviceProxyName]; other || headless(o) || o.Spec.Type == v1.ServiceTypeExternalName {
		return nil, nil
	}
	c := serviceConv{
		problems: problems{ref: Ref{KindService, NameOf(o)}},
		s: &Service{
			Name:          NameOf(o),
			UID:           Printable(string(o.UID)),
			InternalLocal: o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal,
		},
	}
	if !o.CreationTimestamp.IsZero() {
		c.s.Created = o.CreationTimestamp.Unix()
	}
	c.clusterIPs(&o.Spec)
	c.ports(o.Spec.Ports)
	c.s.ExternalIPs = parseAll(&c.problems, o.Spec.ExternalIPs, maxAddresses, "spec.externalIPs", c.inFamily(parseRoutable))
	c.loadBalancer(o)
	c.policies(&o.Spec)
	c.affinity(&o.Spec)
	return c.s, c.errs
}

// headless reports whether a Service has no ClusterIP: it is headless, or none is allocated yet.
func headless(o *v1.Service) bool {
	first := o.Spec.ClusterIP
	if first == "" && len(o.Spec.ClusterIPs) > 0 {
		first = o.Spec.ClusterIPs[0]
	}
	return first == "" || first == v1.ClusterIPNone
}

// serviceConv is a conversion of a Service.
type serviceConv struct {
	problems
	s *Service // allocated on its own: it outlives the conversion
}

func (c *serviceConv) clusterIPs(spec *v1.ServiceSpec) {
	list, path := spec.ClusterIPs, "spec.clusterIPs[%d]"
	if len(list) == 0 { // as in a manifest; the API server fills both
		list, path = []string{spec.ClusterIP}, "spec.clusterIP"
	}
	for i, text := range list {
		args := []any{i}[:strings.Count(path, "%d")]
		a, err := parseVIP(text)
		if err != nil {
			c.add(err, text, path, args...)
			continue
		}
		ip := &c.s.ClusterIPs[familyIndex(a.Is6())]
		if ip.IsValid() {
			c.add(errDuplicate, text, path, args...)
			continue
		}
		*ip = a
	}
}

func (c *serviceConv) ports(list []v1.ServicePort) {
	if len(list) == 0 {
		return
	}
	c.s.Ports = make([]ServicePort, 0, len(list))
	seen := make(map[ServicePort]bool, 3*len(list))
	for i := range list {
		if p, ok := c.port(i, &list[i], seen); ok {
			c.s.Ports = append(c.s.Ports, p)
		}
	}
}

// port converts one port; seen holds names, ports and NodePorts of those before it, each as a port that has
// nothing else.
func (c *serviceConv) port(i int, o *v1.ServicePort, seen map[ServicePort]bool) (p ServicePort, ok bool) {
	proto, err := parseProto(o.Protocol)
	if err != nil {
		c.add(err, o.Protocol, "spec.ports[%d].protocol", i)
		return p, false
	}
	port, err := parsePort(o.Port)
	if err != nil {
		c.add(err, o.Port, "spec.ports[%d].port", i)
		return p, false
	}
	p = ServicePort{Name: Intern(Printable(o.Name)), Proto: proto, Port: port}
	byName, byPort := ServicePort{Name: p.Name}, ServicePort{Proto: proto, Port: port}
	if seen[byName] {
		c.add(errDuplicate, o.Name, "spec.ports[%d].name", i)
		return p, false
	}
	if seen[byPort] {
		c.add(errDuplicate, o.Port, "spec.ports[%d].port", i)
		return p, false
	}
	seen[byName], seen[byPort] = true, true
	if o.NodePort == 0 {
		return p, true
	}
	nodePort, err := parsePort(o.NodePort)
	byNodePort := ServicePort{Proto: proto, NodePort: nodePort}
	if err == nil && seen[byNodePort] {
		err = errDuplicate
	}
	if err != nil {
		c.add(err, o.NodePort, "spec.ports[%d].nodePort", i)
		return p, true
	}
	seen[byNodePort] = true
	p.NodePort = nodePort
	return p, true
}

// inFamily is parse for an address of a family in which the Service has a ClusterIP.
func (c *serviceConv) inFamily(parse func(string) (netip.Addr, error)) func(string) (netip.Addr, error) {
	return func(text string) (netip.Addr, error) {
		a, err := parse(text)
		if err == nil && !c.s.ClusterIP(a.Is6()).IsValid() {
			err = errFamily
		}
		return a, err
	}
}

// loadBalancer reads the addresses that a load balancer delivers to nodes as they are. Behind ipMode Proxy, and
// behind a host name, packets arrive at other addresses.
func (c *serviceConv) loadBalancer(o *v1.Service) {
	parse := c.inFamily(parseVIP)
	for i, in := range first(&c.problems, o.Status.LoadBalancer.Ingress, maxAddresses, "status.loadBalancer.ingress") {
		if in.IP == "" || in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		a, err := parse(in.IP)
		if err != nil {
			c.add(err, in.IP, "status.loadBalancer.ingress[%d].ip", i)
			continue
		}
		c.s.LoadBalancerIPs = append(c.s.LoadBalancerIPs, a)
	}
	c.s.LoadBalancerIPs = distinct(c.s.LoadBalancerIPs)
	c.s.SourceRanges = parseAll(&c.problems, o.Spec.LoadBalancerSourceRanges, maxSourceRanges, "spec.loadBalancerSourceRanges",
		func(text string) (netip.Prefix, error) { return parsePrefix(strings.TrimSpace(text)) }) // validation lets blanks pass
	c.s.NoValidRange = len(o.Spec.LoadBalancerSourceRanges) > 0 && len(c.s.SourceRanges) == 0
}

func (c *serviceConv) policies(spec *v1.ServiceSpec) {
	switch cmp.Or(spec.Type, v1.ServiceTypeClusterIP) {
	case v1.ServiceTypeClusterIP:
	case v1.ServiceTypeNodePort:
		c.s.Type = NodePort
	case v1.ServiceTypeLoadBalancer:
		c.s.Type = LoadBalancer
		c.s.NoLoadBalancerNodePorts = spec.AllocateLoadBalancerNodePorts != nil && !*spec.AllocateLoadBalancerNodePorts
	default:
		c.add(errUnknown, spec.Type, "spec.type")
	}
	outside := c.s.Type != ClusterIP || len(spec.ExternalIPs) > 0
	c.s.ExternalLocal = outside && spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	if c.s.Type != LoadBalancer || !c.s.ExternalLocal {
		return
	}
	port, err := parsePort(spec.HealthCheckNodePort)
	if err != nil {
		c.add(err, spec.HealthCheckNodePort, "spec.healthCheckNodePort")
	}
	c.s.HealthCheckNodePort = port
}

func (c *serviceConv) affinity(spec *v1.ServiceSpec) {
	switch cmp.Or(spec.SessionAffinity, v1.ServiceAffinityNone) {
	case v1.ServiceAffinityNone:
		return
	case v1.ServiceAffinityClientIP:
	default:
		c.add(errUnknown, spec.SessionAffinity, "spec.sessionAffinity")
		return
	}
	seconds := int32(defaultAffinity)
	if cfg := spec.SessionAffinityConfig; cfg != nil && cfg.ClientIP != nil && cfg.ClientIP.TimeoutSeconds != nil {
		seconds = *cfg.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinity {
		c.add(errRange, seconds, "spec.sessionAffinityConfig.clientIP.timeoutSeconds")
		seconds = defaultAffinity
	}
	c.s.Affinity = time.Duration(seconds) * time.Second
}

// FromEndpointSlice converts an EndpointSlice. It returns nil for one that the proxy has no use for: of host names,
// of a headless Service (label service.kubernetes.io/headless), or without the label that names its Service. Each
// error is a *FieldError, whose field, and the endpoint or port around it, was left out. The object is not kept nor
// changed.
func FromEndpointSlice(o *discovery.EndpointSlice) (*EndpointSlice, []error) {
	service := o.Labels[discovery.LabelServiceName]
	if _, headless := o.Labels[v1.IsHeadlessService]; headless || service == "" || o.AddressType == discovery.AddressTypeFQDN {
		return nil, nil
	}
	name := NameOf(o)
	c := sliceConv{
		problems: problems{ref: Ref{KindEndpointSlice, name}},
		s: &EndpointSlice{
			Name:    name,
			Service: Name{name.Namespace, Printable(service)},
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

// sliceConv is a conversion of an EndpointSlice.
type sliceConv struct {
	problems
	s *EndpointSlice // allocated on its own: it outlives the conversion
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
		c.s.Ports = append(c.s.Ports, SlicePort{Intern(Printable(*o.Name)), proto, port})
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
			e.Node = Intern(Printable(*o.NodeName))
		}
		if o.Zone != nil && *o.Zone != "" {
			e.Hints = e.Hints.In(Printable(*o.Zone))
		}
		c.s.Endpoints = append(c.s.Endpoints, e)
	}
}

// address returns the first address of an endpoint; all of them reach the same pod by the API.
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
		zones = append(zones, Printable(z.Name))
	}
	for _, n := range o.ForNodes {
		nodes = append(nodes, Printable(n.Name))
	}
	return NewHints(zones, nodes)
}

// toBeDeleted is the taint with which the cluster autoscaler marks a node that it is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// FromNode converts a Node. Each error is a *FieldError, whose field was left out. The object is not kept nor changed.
func FromNode(o *v1.Node) (*Node, []error) {
	p := problems{ref: Ref{KindNode, Name{"", Printable(o.Name)}}}
	n := Node{
		Name:        p.ref.Name,
		UID:         Printable(string(o.UID)),
		Zone:        Printable(o.Labels[v1.LabelTopologyZone]),
		Deleting:    o.DeletionTimestamp != nil,
		ToBeDeleted: slices.ContainsFunc(o.Spec.Taints, func(t v1.Taint) bool { return t.Key == toBeDeleted }),
	}
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, in := range o.Status.Addresses {
			if in.Type != kind {
				continue
			}
			a, err := parseAddr(in.Address)
			if err != nil {
				p.add(err, in.Address, "status.addresses[%d].address", i)
				continue
			}
			n.Addrs = append(n.Addrs, a)
		}
	}
	n.Addrs = distinct(n.Addrs)
	list := o.Spec.PodCIDRs
	if len(list) == 0 && o.Spec.PodCIDR != "" {
		list = []string{o.Spec.PodCIDR}
	}
	n.PodCIDRs = parseAll(&p, list, maxAddresses, "spec.podCIDRs", parsePrefix)
	return &n, p.errs
}

// FromServiceCIDR converts a ServiceCIDR. Each error is a *FieldError, whose field was left out. The object is not
// kept nor changed.
func FromServiceCIDR(o *networking.ServiceCIDR) (*ServiceCIDR, []error) {
	p := problems{ref: Ref{KindServiceCIDR, Name{"", Printable(o.Name)}}}
	c := ServiceCIDR{Name: p.ref.Name, Prefixes: parseAll(&p, o.Spec.CIDRs, maxAddresses, "spec.cidrs", parsePrefix)}
	return &c, p.errs
}
