// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

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
		problems: problems{ref: Ref{KindService, nameOf(o)}},
		s: &Service{
			Name:          nameOf(o),
			UID:           string(o.UID),
			InternalLocal: o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal,
		},
	}
	if !o.CreationTimestamp.IsZero() {
		c.s.Created = o.CreationTimestamp.Unix()
	}
	c.clusterIPs(&o.Spec)
	c.ports(o.Spec.Ports)
	c.externalIPs(o.Spec.ExternalIPs)
	c.loadBalancer(o)
	c.policies(&o.Spec)
	c.affinity(&o.Spec)
	return c.s, c.errs
}

// headless tells that a Service has no ClusterIP, be it that it wants none or that it has not got one yet.
func headless(o *v1.Service) bool {
	first := o.Spec.ClusterIP
	if first == "" && len(o.Spec.ClusterIPs) > 0 {
		first = o.Spec.ClusterIPs[0]
	}
	return first == "" || first == v1.ClusterIPNone
}

// serviceConv is a Service in the making.
type serviceConv struct {
	problems
	s *Service // on its own: it stays, the rest does not
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
	p = ServicePort{Name: Intern(o.Name), Proto: proto, Port: port}
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

func (c *serviceConv) externalIPs(list []string) {
	for i, text := range list {
		a, err := parseRoutable(text)
		if err == nil && !c.s.ClusterIP(a.Is6()).IsValid() {
			err = errFamily
		}
		if err != nil {
			c.add(err, text, "spec.externalIPs[%d]", i)
			continue
		}
		c.s.ExternalIPs = appendNew(c.s.ExternalIPs, a)
	}
}

// loadBalancer reads the addresses that a load balancer delivers to nodes as they are. Behind ipMode Proxy, and
// behind a host name, packets arrive at other addresses.
func (c *serviceConv) loadBalancer(o *v1.Service) {
	for i, in := range o.Status.LoadBalancer.Ingress {
		if in.IP == "" || in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		a, err := parseVIP(in.IP)
		if err == nil && !c.s.ClusterIP(a.Is6()).IsValid() {
			err = errFamily
		}
		if err != nil {
			c.add(err, in.IP, "status.loadBalancer.ingress[%d].ip", i)
			continue
		}
		c.s.LoadBalancerIPs = appendNew(c.s.LoadBalancerIPs, a)
	}
	for i, text := range o.Spec.LoadBalancerSourceRanges {
		p, err := parsePrefix(strings.TrimSpace(text)) // validation lets blanks pass
		if err != nil {
			c.add(err, text, "spec.loadBalancerSourceRanges[%d]", i)
			continue
		}
		c.s.SourceRanges = appendNew(c.s.SourceRanges, p)
	}
	c.s.NoValidRange = len(o.Spec.LoadBalancerSourceRanges) > 0 && len(c.s.SourceRanges) == 0
}

// appendNew appends v unless it is there. The lists are a handful long, or a thousand at worst.
func appendNew[T netip.Addr | netip.Prefix](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
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
