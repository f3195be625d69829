// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// texts are the messages of errs without the object's name, which must be in each.
func texts(t *testing.T, ref Ref, errs []error) (out []string) {
	t.Helper()
	for _, err := range errs {
		var field *FieldError
		if !errors.As(err, &field) || field.Object != ref {
			t.Errorf("error %q is not a FieldError of %s", err, ref)
		}
		out = append(out, strings.TrimPrefix(err.Error(), ref.String()+": "))
	}
	return out
}

func compare(t *testing.T, want, got any) {
	t.Helper()
	opts := cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b Sym) bool { return a == b }),
		cmp.Comparer(func(a, b Hints) bool { return a == b }),
	}
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func apiService(change func(*v1.Service)) *v1.Service {
	o := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web", UID: types.UID("u1"), CreationTimestamp: metav1.Unix(1700000000, 0),
		},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	change(o)
	return o
}

func plainService(change func(*Service)) *Service {
	s := &Service{
		Name: Name{"ns", "web"}, UID: "u1", Created: 1700000000,
		ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []ServicePort{{Name: Intern("http"), Proto: TCP, Port: 80}},
	}
	change(s)
	return s
}

func TestFromService(t *testing.T) {
	for name, c := range map[string]struct {
		in   func(*v1.Service)
		want func(*Service)
		errs []string
	}{
		"plain": {in: func(*v1.Service) {}, want: func(*Service) {}},
		"dual stack": {
			in:   func(o *v1.Service) { o.Spec.ClusterIPs = []string{"10.96.0.1", "fd96::1"} },
			want: func(s *Service) { s.ClusterIPs[1] = netip.MustParseAddr("fd96::1") },
		},
		"IPv6 first": {
			in: func(o *v1.Service) {
				o.Spec.ClusterIP, o.Spec.ClusterIPs = "fd96::1", []string{"fd96::1", "10.96.0.1"}
			},
			want: func(s *Service) { s.ClusterIPs[1] = netip.MustParseAddr("fd96::1") },
		},
		"manifest with clusterIP only": {
			in:   func(o *v1.Service) { o.Spec.ClusterIPs = nil },
			want: func(*Service) {},
		},
		"mapped and old-fashioned addresses": {
			in: func(o *v1.Service) {
				o.Spec.ClusterIPs = []string{"::ffff:10.96.0.1"}
				o.Spec.ExternalIPs = []string{"192.000.002.001", "::ffff:192.0.2.1", "192.0.2.2"}
			},
			want: func(s *Service) { s.ExternalIPs = addrs("192.0.2.1", "192.0.2.2") },
		},
		"addresses that cannot be used": {
			in: func(o *v1.Service) {
				o.Spec.ClusterIPs = []string{"10.96.0.1", "10.96.0.2", "nonsense", "0.0.0.0"}
				o.Spec.ExternalIPs = []string{"", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.1.1", "2001:db8::1", "192.0.2.1"}
			},
			want: func(s *Service) { s.ExternalIPs = addrs("192.0.2.1") },
			errs: []string{
				`spec.clusterIPs[1]: "10.96.0.2": given twice, the first one counts`,
				`spec.clusterIPs[2]: "nonsense": not an IP address`,
				`spec.clusterIPs[3]: "0.0.0.0": a loopback, multicast, broadcast or unspecified address`,
				`spec.externalIPs[0]: "": not an IP address`,
				`spec.externalIPs[1]: "127.0.0.1": a loopback, multicast, broadcast or unspecified address`,
				`spec.externalIPs[2]: "224.0.0.1": a loopback, multicast, broadcast or unspecified address`,
				`spec.externalIPs[3]: "255.255.255.255": a loopback, multicast, broadcast or unspecified address`,
				`spec.externalIPs[4]: "169.254.1.1": a link-local address`,
				`spec.externalIPs[5]: "2001:db8::1": of a family that the object does not have`,
			},
		},
		"ports": {
			in: func(o *v1.Service) {
				o.Spec.Ports = []v1.ServicePort{
					{Name: "a", Protocol: v1.ProtocolUDP, Port: 53, NodePort: 30053},
					{Name: "b", Protocol: v1.ProtocolTCP, Port: 53, NodePort: 30053},
					{Name: "c", Protocol: v1.ProtocolSCTP, Port: 65535},
					{Name: "d", Port: 1},
				}
			},
			want: func(s *Service) {
				s.Ports = []ServicePort{
					{Intern("a"), UDP, 53, 30053}, {Intern("b"), TCP, 53, 30053}, {Intern("c"), SCTP, 65535, 0}, {Intern("d"), TCP, 1, 0},
				}
			},
		},
		"ports that cannot be used": {
			in: func(o *v1.Service) {
				o.Spec.Ports = []v1.ServicePort{
					{Name: "a", Port: 0},
					{Name: "b", Port: 65536},
					{Name: "c", Port: 80, Protocol: "ICMP"},
					{Name: "d", Port: 80, NodePort: 30000},
					{Name: "d", Port: 81},
					{Name: "e", Port: 80},
					{Name: "f", Port: 82, NodePort: 30000},
					{Name: "g", Port: 83, NodePort: -1},
				}
			},
			want: func(s *Service) {
				s.Ports = []ServicePort{{Intern("d"), TCP, 80, 30000}, {Intern("f"), TCP, 82, 0}, {Intern("g"), TCP, 83, 0}}
			},
			errs: []string{
				`spec.ports[0].port: 0: not a port number`,
				`spec.ports[1].port: 65536: not a port number`,
				`spec.ports[2].protocol: "ICMP": not TCP, UDP or SCTP`,
				`spec.ports[4].name: "d": given twice, the first one counts`,
				`spec.ports[5].port: 80: given twice, the first one counts`,
				`spec.ports[6].nodePort: 30000: given twice, the first one counts`,
				`spec.ports[7].nodePort: -1: not a port number`,
			},
		},
		"load balancer": {
			in: func(o *v1.Service) {
				o.Spec.Type = v1.ServiceTypeLoadBalancer
				o.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
				o.Spec.HealthCheckNodePort = 32000
				o.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
				o.Spec.LoadBalancerSourceRanges = []string{" 10.0.0.0/8 ", "10.1.2.3/8", "2001:db8::/32", "::ffff:192.0.2.0/120", "x", "::/95"}
				o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
					{IP: "192.0.2.1"}, {IP: "192.0.2.2", IPMode: ptr.To(v1.LoadBalancerIPModeVIP)},
					{IP: "192.0.2.3", IPMode: ptr.To(v1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example.com"}, {IP: "2001:db8::1"}, {IP: "169.254.20.10"},
				}
			},
			want: func(s *Service) {
				s.Type, s.ExternalLocal, s.HealthCheckNodePort, s.NoLoadBalancerNodePorts = LoadBalancer, true, 32000, true
				s.SourceRanges = prefixes("10.0.0.0/8", "2001:db8::/32", "192.0.2.0/24", "::/95")
				s.LoadBalancerIPs = addrs("192.0.2.1", "192.0.2.2", "169.254.20.10")
			},
			errs: []string{
				`status.loadBalancer.ingress[4].ip: "2001:db8::1": of a family that the object does not have`,
				`spec.loadBalancerSourceRanges[4]: "x": not a CIDR`,
			},
		},
		"mapped range that is wider than IPv4": {
			in:   func(o *v1.Service) { o.Spec.LoadBalancerSourceRanges = []string{"::ffff:0:0/95"} },
			want: func(s *Service) { s.NoValidRange = true },
			errs: []string{`spec.loadBalancerSourceRanges[0]: "::ffff:0:0/95": an IPv4-mapped prefix wider than /96`},
		},
		"external policy counts only where the Service is reached from outside": {
			in:   func(o *v1.Service) { o.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal },
			want: func(*Service) {},
		},
		"external policy of a ClusterIP with external IPs": {
			in: func(o *v1.Service) {
				o.Spec.ExternalTrafficPolicy, o.Spec.ExternalIPs = v1.ServiceExternalTrafficPolicyLocal, []string{"192.0.2.1"}
			},
			want: func(s *Service) { s.ExternalLocal, s.ExternalIPs = true, addrs("192.0.2.1") },
		},
		"internal policy, NodePort without a health check": {
			in: func(o *v1.Service) {
				o.Spec.Type, o.Spec.HealthCheckNodePort = v1.ServiceTypeNodePort, 32000
				o.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
				o.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal)
			},
			want: func(s *Service) { s.Type, s.ExternalLocal, s.InternalLocal = NodePort, true, true },
		},
		"affinity by default for three hours": {
			in:   func(o *v1.Service) { o.Spec.SessionAffinity = v1.ServiceAffinityClientIP },
			want: func(s *Service) { s.Affinity = 3 * time.Hour },
		},
		"affinity": {
			in: func(o *v1.Service) {
				o.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				o.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](86400)}}
			},
			want: func(s *Service) { s.Affinity = 24 * time.Hour },
		},
		"values out of range": {
			in: func(o *v1.Service) {
				o.Spec.Type, o.Spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal
				o.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				o.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](86401)}}
			},
			want: func(s *Service) { s.Type, s.ExternalLocal, s.Affinity = LoadBalancer, true, 3*time.Hour },
			errs: []string{
				`spec.healthCheckNodePort: 0: not a port number`,
				`spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401: out of range`,
			},
		},
		"unknown values": {
			in:   func(o *v1.Service) { o.Spec.Type, o.Spec.SessionAffinity = "Magic", "Cookie" },
			want: func(*Service) {},
			errs: []string{`spec.type: "Magic": not a known value`, `spec.sessionAffinity: "Cookie": not a known value`},
		},
		"no ports": {
			in:   func(o *v1.Service) { o.Spec.Ports = nil },
			want: func(s *Service) { s.Ports = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := FromService(apiService(c.in))
			want := plainService(c.want)
			compare(t, want, got)
			compare(t, c.errs, texts(t, want.Ref(), errs))
		})
	}
}

func TestFromServiceNotProxied(t *testing.T) {
	for name, change := range map[string]func(*v1.Service){
		"headless":      func(o *v1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "None", []string{"None"} },
		"headless list": func(o *v1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "", []string{"None"} },
		"no address":    func(o *v1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "", nil },
		"ExternalName":  func(o *v1.Service) { o.Spec.Type = v1.ServiceTypeExternalName },
		"other proxy":   func(o *v1.Service) { o.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""} },
	} {
		if s, errs := FromService(apiService(change)); s != nil || len(errs) != 0 {
			t.Errorf("%s: proxied as %+v, errors %v", name, s, errs)
		}
	}
}

func apiSlice(change func(*discovery.EndpointSlice)) *discovery.EndpointSlice {
	o := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-1", Labels: map[string]string{"kubernetes.io/service-name": "web"},
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05.5Z"},
		},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(v1.ProtocolTCP)}},
		Endpoints:   []discovery.Endpoint{{Addresses: []string{"10.244.0.1"}, NodeName: ptr.To("n1")}},
	}
	change(o)
	return o
}

func plainSlice(change func(*EndpointSlice)) *EndpointSlice {
	s := &EndpointSlice{
		Name: Name{"ns", "web-1"}, Service: Name{"ns", "web"}, Changed: time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC),
		Ports:     []SlicePort{{Intern("http"), TCP, 8080}},
		Endpoints: []Endpoint{{Addr: netip.MustParseAddr("10.244.0.1"), Node: Intern("n1"), Ready: true, Serving: true}},
	}
	change(s)
	return s
}

func TestFromEndpointSlice(t *testing.T) {
	ep := netip.MustParseAddr("10.244.0.1")
	for name, c := range map[string]struct {
		in   func(*discovery.EndpointSlice)
		want func(*EndpointSlice)
		errs []string
	}{
		"plain": {in: func(*discovery.EndpointSlice) {}, want: func(*EndpointSlice) {}},
		"no time": {
			in:   func(o *discovery.EndpointSlice) { o.Annotations = nil },
			want: func(s *EndpointSlice) { s.Changed = time.Time{} },
		},
		"conditions": {
			in: func(o *discovery.EndpointSlice) {
				one := func(ready, serving, terminating *bool) discovery.Endpoint {
					return discovery.Endpoint{Addresses: []string{"10.244.0.1"},
						Conditions: discovery.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}}
				}
				o.Endpoints = []discovery.Endpoint{
					one(nil, nil, nil), one(ptr.To(false), nil, nil), one(ptr.To(false), ptr.To(true), ptr.To(true)), one(ptr.To(false), ptr.To(false), ptr.To(true)),
				}
			},
			want: func(s *EndpointSlice) {
				s.Endpoints = []Endpoint{
					{Addr: ep, Ready: true, Serving: true}, {Addr: ep, Serving: true},
					{Addr: ep, Serving: true, Terminating: true}, {Addr: ep, Terminating: true},
				}
			},
		},
		"hints": {
			in: func(o *discovery.EndpointSlice) {
				o.Endpoints[0].Hints = &discovery.EndpointHints{
					ForZones: []discovery.ForZone{{Name: "z2"}, {Name: "z1"}, {Name: "z2"}}, ForNodes: []discovery.ForNode{{Name: "n1"}},
				}
			},
			want: func(s *EndpointSlice) { s.Endpoints[0].Hints = NewHints([]string{"z1", "z2"}, []string{"n1"}) },
		},
		"empty hints": {
			in:   func(o *discovery.EndpointSlice) { o.Endpoints[0].Hints = &discovery.EndpointHints{} },
			want: func(*EndpointSlice) {},
		},
		"ports that a Service cannot use": {
			in: func(o *discovery.EndpointSlice) {
				o.Ports = append(o.Ports,
					discovery.EndpointPort{Port: ptr.To[int32](1)},
					discovery.EndpointPort{Name: ptr.To("a")},
					discovery.EndpointPort{Name: ptr.To("b"), Port: ptr.To[int32](0)},
					discovery.EndpointPort{Name: ptr.To("c"), Port: ptr.To[int32](65536)},
					discovery.EndpointPort{Name: ptr.To("d"), Port: ptr.To[int32](2), Protocol: ptr.To(v1.Protocol("X"))},
					discovery.EndpointPort{Name: ptr.To(""), Port: ptr.To[int32](65535)})
			},
			want: func(s *EndpointSlice) { s.Ports = append(s.Ports, SlicePort{Sym{}, TCP, 65535}) },
			errs: []string{`ports[4].port: 65536: not a port number`, `ports[5].protocol: "X": not TCP, UDP or SCTP`},
		},
		"addresses": {
			in: func(o *discovery.EndpointSlice) {
				for _, list := range [][]string{{"10.244.0.2", "10.244.0.3"}, {}, {"fd00::1"}, {"::1"}, {"fe80::1%eth0"}, {"169.254.0.1"}, {"pod"}} {
					o.Endpoints = append(o.Endpoints, discovery.Endpoint{Addresses: list})
				}
			},
			want: func(s *EndpointSlice) {
				s.Endpoints = append(s.Endpoints, Endpoint{Addr: netip.MustParseAddr("10.244.0.2"), Ready: true, Serving: true})
			},
			errs: []string{
				`endpoints[2].addresses: must be given`,
				`endpoints[3].addresses[0]: "fd00::1": of a family that the object does not have`,
				`endpoints[4].addresses[0]: "::1": a loopback, multicast, broadcast or unspecified address`,
				`endpoints[5].addresses[0]: "fe80::1%eth0": an address with a zone`,
				`endpoints[6].addresses[0]: "169.254.0.1": a link-local address`,
				`endpoints[7].addresses[0]: "pod": not an IP address`,
			},
		},
		"IPv6": {
			in: func(o *discovery.EndpointSlice) {
				o.AddressType, o.Endpoints[0].Addresses = discovery.AddressTypeIPv6, []string{"fd00::1"}
			},
			want: func(s *EndpointSlice) { s.IPv6, s.Endpoints[0].Addr = true, netip.MustParseAddr("fd00::1") },
		},
		"empty": {
			in:   func(o *discovery.EndpointSlice) { o.Ports, o.Endpoints = nil, nil },
			want: func(s *EndpointSlice) { s.Ports, s.Endpoints = nil, nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := FromEndpointSlice(apiSlice(c.in))
			want := plainSlice(c.want)
			compare(t, want, got)
			compare(t, c.errs, texts(t, want.Ref(), errs))
		})
	}
}

func TestFromEndpointSliceNotUsed(t *testing.T) {
	for name, change := range map[string]func(*discovery.EndpointSlice){
		"headless":   func(o *discovery.EndpointSlice) { o.Labels["service.kubernetes.io/headless"] = "" },
		"no Service": func(o *discovery.EndpointSlice) { delete(o.Labels, "kubernetes.io/service-name") },
		"host names": func(o *discovery.EndpointSlice) { o.AddressType = discovery.AddressTypeFQDN },
	} {
		if s, errs := FromEndpointSlice(apiSlice(change)); s != nil || len(errs) != 0 {
			t.Errorf("%s: used as %+v, errors %v", name, s, errs)
		}
	}
	s, errs := FromEndpointSlice(apiSlice(func(o *discovery.EndpointSlice) { o.AddressType = "" }))
	if s != nil {
		t.Errorf("without an address type: used as %+v", s)
	}
	compare(t, []string{`addressType: "": not a known value`}, texts(t, Ref{KindEndpointSlice, Name{"ns", "web-1"}}, errs))
}

func TestFromNode(t *testing.T) {
	o := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"topology.kubernetes.io/zone": "z1"}},
		Spec: v1.NodeSpec{
			PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64", "x"},
			Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: v1.TaintEffectNoSchedule}},
		},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeExternalIP, Address: "192.0.2.1"}, {Type: v1.NodeHostName, Address: "n1"},
			{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "fd01::1"}, {Type: v1.NodeInternalIP, Address: ""},
		}},
	}
	got, errs := FromNode(o)
	want := &Node{
		Name: Name{"", "n1"}, UID: "u", Zone: "z1", ToBeDeleted: true,
		Addrs: addrs("10.0.0.1", "fd01::1", "192.0.2.1"), PodCIDRs: prefixes("10.244.1.0/24", "fd00:1::/64"),
	}
	compare(t, want, got)
	compare(t, []string{`status.addresses[4].address: "": not an IP address`, `spec.podCIDRs[2]: "x": not a CIDR`},
		texts(t, want.Ref(), errs))
	if got.Addr(false) != want.Addrs[0] || got.Addr(true) != want.Addrs[1] {
		t.Errorf("node addresses %s and %s", got.Addr(false), got.Addr(true))
	}
}

func TestFromServiceCIDR(t *testing.T) {
	o := &networking.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networking.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd96::/112", "10.96.0.0"}},
	}
	got, errs := FromServiceCIDR(o)
	want := &ServiceCIDR{Name: Name{"", "kubernetes"}, Prefixes: prefixes("10.96.0.0/12", "fd96::/112")}
	compare(t, want, got)
	compare(t, []string{`spec.cidrs[2]: "10.96.0.0": not a CIDR`}, texts(t, want.Ref(), errs))
}

// A hostile object costs linear time and bounded memory: what is beyond the bounds is left out, with a few errors.
func TestConversionIsBounded(t *testing.T) {
	const n = 100000
	o := apiService(func(o *v1.Service) {
		for i := range n {
			addr := fmt.Sprintf("192.%d.%d.%d", i>>16, i>>8&255, i&255)
			o.Spec.ExternalIPs = append(o.Spec.ExternalIPs, addr)
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: addr})
			o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, addr+"/32")
		}
	})
	s, errs := FromService(o)
	if len(s.ExternalIPs) != maxAddresses || len(s.LoadBalancerIPs) != maxAddresses || len(s.SourceRanges) != maxSourceRanges {
		t.Errorf("%d, %d and %d addresses", len(s.ExternalIPs), len(s.LoadBalancerIPs), len(s.SourceRanges))
	}
	compare(t, []string{
		`spec.externalIPs: 100000: too many values, the first ones count`,
		`status.loadBalancer.ingress: 100000: too many values, the first ones count`,
		`spec.loadBalancerSourceRanges: 100000: too many values, the first ones count`,
	}, texts(t, s.Ref(), errs))
	for i := range o.Spec.ExternalIPs {
		o.Spec.ExternalIPs[i] = strings.Repeat("x", 10*maxValue)
	}
	_, errs = FromService(o)
	if len(errs) != maxProblems+1 || !errors.Is(errs[maxProblems], errMore) || len(errs[1].Error()) > 3*maxValue {
		t.Errorf("%d errors, %q", len(errs), errs[1])
	}
	// It takes a few times as long as one walk with a map; several hundred times if each value were compared with all others.
	list := make([]netip.Addr, n)
	for i := range list {
		list[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	best := func(work func()) time.Duration {
		out := time.Hour
		for range 5 {
			start := time.Now()
			work()
			out = min(out, time.Since(start))
		}
		return out
	}
	walk := best(func() {
		seen := map[netip.Addr]bool{}
		for _, a := range list {
			seen[a] = true
		}
	})
	if took := best(func() { distinct(slices.Clone(list)) }); took > 50*walk {
		t.Errorf("%s, a walk takes %s", took, walk)
	}
}

// Text that the API server does not validate, or that a manifest holds, is printable once it is converted, and different
// texts stay different.
func TestConvertedTextIsPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "http": "http", "a b": "a b", "ä": "ä", "\x1b[31m": `\x1b[31m`, `\x1b[31m`: `\\x1b[31m`, "a\nb": `a\nb`, "\xff": `\xff`,
		"\u202e": `\u202e`, "\x7f": `\x7f`, `"`: `\"`, "a\u2028": `a\u2028`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	const bad = "\x1b[2J\xff\n"
	slice, _ := FromEndpointSlice(apiSlice(func(o *discovery.EndpointSlice) {
		o.Namespace, o.Name, o.Labels["kubernetes.io/service-name"] = bad, bad, bad
		o.Ports[0].Name, o.Endpoints[0].NodeName, o.Endpoints[0].Zone = ptr.To(bad), ptr.To(bad), ptr.To(bad)
		o.Endpoints[0].Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: bad}}, ForNodes: []discovery.ForNode{{Name: bad}}}
	}))
	service, _ := FromService(apiService(func(o *v1.Service) {
		o.Namespace, o.Name, o.UID, o.Spec.Ports[0].Name = bad, bad, bad, bad
		o.Spec.ExternalIPs = []string{bad}
	}))
	node, _ := FromNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: bad, UID: bad, Labels: map[string]string{"topology.kubernetes.io/zone": bad}}})
	_, errs := FromServiceCIDR(&networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: bad}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{bad}}})
	e := slice.Endpoints[0]
	text := fmt.Sprint(slice.Ref(), slice.Service, slice.Ports[0].Name, e.Node, e.Hints.Zone(), e.Hints.get(), service.Ref(), service.UID,
		service.Ports[0].Name, node.Ref(), node.UID, node.Zone, errs)
	if got := Printable(strings.ReplaceAll(strings.ReplaceAll(text, `\`, ""), `"`, "")); strings.Contains(got, `\`) {
		t.Errorf("not printable: %q", got)
	}
	if !e.Hints.ForZone(node.Zone) || slice.Ports[0].Name != service.Ports[0].Name || slice.Service != service.Name {
		t.Error("equal text became different")
	}
}

// The conversion of a slice allocates nothing per endpoint.
func TestSliceAllocations(t *testing.T) {
	convert := func(n int) float64 {
		o := apiSlice(func(o *discovery.EndpointSlice) {
			for i := range n {
				e := *o.Endpoints[0].DeepCopy()
				e.Addresses[0] = fmt.Sprintf("10.244.%d.%d", i>>8, i&255)
				o.Endpoints = append(o.Endpoints, e)
			}
		})
		return testing.AllocsPerRun(10, func() { FromEndpointSlice(o) })
	}
	if one, many := convert(1), convert(1000); many > one {
		t.Errorf("%.0f allocations for 1 endpoint, %.0f for 1,000", one, many)
	}
}
