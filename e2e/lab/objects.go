// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Port makes a port of a Service, named after protocol and number ("tcp-80"), with a numeric target port.
func Port(proto Proto, port, target uint16) corev1.ServicePort {
	return corev1.ServicePort{
		Name:       fmt.Sprintf("%s-%d", strings.ToLower(string(proto)), port),
		Protocol:   corev1.Protocol(proto),
		Port:       int32(port),
		TargetPort: intstr.FromInt32(int32(target)),
	}
}

// NewService makes a dual-stack Service of type ClusterIP in namespace default, with the index-th ClusterIP of both families
// (from 2; 1 is the API server's) and no selector: its slices come from NewSlices. Change what the test needs.
func NewService(name string, index int, ports ...corev1.ServicePort) *corev1.Service {
	policy := corev1.IPFamilyPolicyRequireDualStack
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             ClusterIP(IPv4, index).String(),
			ClusterIPs:            []string{ClusterIP(IPv4, index).String(), ClusterIP(IPv6, index).String()},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy:        &policy,
			InternalTrafficPolicy: &cluster,
			SessionAffinity:       corev1.ServiceAffinityNone,
			Ports:                 ports,
		},
	}
}

// WithNodePorts makes the Service a NodePort one with node ports from first upwards. It returns its argument.
func WithNodePorts(svc *corev1.Service, first int32) *corev1.Service {
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	for i := range svc.Spec.Ports {
		svc.Spec.Ports[i].NodePort = first + int32(i)
	}
	return svc
}

// WithLoadBalancer makes the Service a LoadBalancer one, with node ports from first upwards and the index-th LoadBalancer
// IP of both families in its status. It returns its argument.
func WithLoadBalancer(svc *corev1.Service, first int32, index int) *corev1.Service {
	WithNodePorts(svc, first)
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	mode := corev1.LoadBalancerIPModeVIP
	for _, f := range Families() {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: LoadBalancerIP(f, index).String(), IPMode: &mode})
	}
	return svc
}

// WithExternalIP adds the index-th external IP of both families. It returns its argument.
func WithExternalIP(svc *corev1.Service, index int) *corev1.Service {
	for _, f := range Families() {
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, ExternalIP(f, index).String())
	}
	if svc.Spec.ExternalTrafficPolicy == "" {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	return svc
}

// Endpoint is an endpoint to be put into slices of both families.
type Endpoint struct {
	Host       *Host
	Node       string
	Zone       string
	Conditions discoveryv1.EndpointConditions // all unset is ready
	Hints      *discoveryv1.EndpointHints
}

// Endpoint is the pod as a ready endpoint.
func (p *Pod) Endpoint() Endpoint { return Endpoint{Host: p.Host, Node: p.Node.Name} }

// Endpoint is a ready host-networked endpoint.
func (node *Node) Endpoint() Endpoint { return Endpoint{Host: node.Host, Node: node.Name} }

// With returns the endpoint with conditions.
func (e Endpoint) With(ready, serving, terminating bool) Endpoint {
	e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	return e
}

// NewSlices makes one EndpointSlice per family of the Service, "web-ipv4" and "web-ipv6", with the Service's target ports.
func NewSlices(svc *corev1.Service, endpoints ...Endpoint) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, f := range Families() {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: svc.Namespace,
				Name:      svc.Name + "-" + strings.ToLower(f.String()),
				Labels:    map[string]string{discoveryv1.LabelServiceName: svc.Name},
			},
			AddressType: discoveryv1.AddressType(f.String()),
			Endpoints:   []discoveryv1.Endpoint{}, // an absent list is refused
		}
		for _, p := range svc.Spec.Ports {
			target := p.TargetPort.IntVal
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &target})
		}
		for _, e := range endpoints {
			s.Endpoints = append(s.Endpoints, e.in(f))
		}
		all = append(all, s)
	}
	return all
}

func (e Endpoint) in(f Family) discoveryv1.Endpoint {
	d := discoveryv1.Endpoint{Addresses: []string{e.Host.IP(f).String()}, Conditions: e.Conditions, Hints: e.Hints}
	if e.Node != "" {
		d.NodeName = &e.Node
	}
	if e.Zone != "" {
		d.Zone = &e.Zone
	}
	return d
}

// NewNode makes the Node object of a node, with its addresses and pod CIDRs. Labels are added as given, name and value in
// turn: "topology.kubernetes.io/zone", "a".
func NewNode(node *Node, labels ...string) *corev1.Node {
	all := map[string]string{corev1.LabelHostname: node.Name}
	for pair := range slices.Chunk(labels, 2) {
		all[pair[0]] = pair[1]
	}
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: all}}
	for _, f := range Families() {
		obj.Spec.PodCIDRs = append(obj.Spec.PodCIDRs, node.PodCIDR[f].String())
		obj.Status.Addresses = append(obj.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: node.IP(f).String()})
	}
	obj.Spec.PodCIDR = obj.Spec.PodCIDRs[0]
	return obj
}
