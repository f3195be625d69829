// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// FuzzFromService: whatever the object, what comes out is usable, and each thing left out has an error.
func FuzzFromService(f *testing.F) {
	for _, change := range []func(*v1.Service){
		func(*v1.Service) {},
		func(o *v1.Service) {
			o.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
			o.Spec.ExternalIPs = []string{"::ffff:192.0.2.1", "fe80::1%eth0", "010.1.1.1"}
			o.Spec.Ports = append(o.Spec.Ports, v1.ServicePort{Name: "x", Port: 65535, NodePort: 1, Protocol: v1.ProtocolSCTP})
			o.Spec.Type, o.Spec.ExternalTrafficPolicy, o.Spec.HealthCheckNodePort = v1.ServiceTypeLoadBalancer, "Local", 30000
			o.Spec.LoadBalancerSourceRanges = []string{" 10.0.0.0/8", "::ffff:1.2.3.4/100", "::/0"}
			o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "0.0.0.0"}}
			o.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		},
	} {
		seed, err := json.Marshal(apiService(change))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o v1.Service
		if json.Unmarshal(data, &o) != nil {
			t.Skip()
		}
		s, errs := FromService(&o)
		checkErrors(t, errs)
		if s == nil {
			return
		}
		if again, _ := FromService(&o); !s.same(again) {
			t.Errorf("the same object twice: %+v and %+v", s, again)
		}
		if s.Ref() != (Ref{KindService, Name{o.Namespace, o.Name}}) {
			t.Errorf("object %s/%s became %s", o.Namespace, o.Name, s.Ref())
		}
		in := len(o.Spec.Ports) + len(o.Spec.ExternalIPs) + len(o.Spec.LoadBalancerSourceRanges)
		out := len(s.Ports) + len(s.ExternalIPs) + len(s.SourceRanges)
		if len(errs) == 0 && len(s.Ports) != len(o.Spec.Ports) || out > in {
			t.Errorf("%d fields became %d with errors %v", in, out, errs)
		}
		checkService(t, s)
	})
}

func checkService(t *testing.T, s *Service) {
	for i, a := range s.ClusterIPs {
		if a.IsValid() && (a.Is6() != (i == 1) || a.Is4In6() || a.IsUnspecified() || a.Zone() != "") {
			t.Errorf("ClusterIP %d is %s", i, a)
		}
	}
	for _, a := range append(s.ExternalIPs, s.LoadBalancerIPs...) {
		if !s.ClusterIP(a.Is6()).IsValid() || a.Is4In6() || a.IsLoopback() || a.IsMulticast() || a.Zone() != "" {
			t.Errorf("address %s", a)
		}
	}
	for _, p := range s.SourceRanges {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() && p.Bits() >= 96 {
			t.Errorf("range %s", p)
		}
	}
	type key struct {
		name  string
		proto Proto
		port  uint16
	}
	seen := map[key]bool{}
	for _, p := range s.Ports {
		keys := []key{{name: "name " + p.Name.String()}, {"port", p.Proto, p.Port}, {"nodePort", p.Proto, p.NodePort}}
		if p.NodePort == 0 {
			keys = keys[:2]
		}
		for _, k := range keys {
			if seen[k] {
				t.Errorf("%+v twice in %+v", k, s.Ports)
			}
			seen[k] = true
		}
		if p.Port == 0 || p.Proto != TCP && p.Proto != UDP && p.Proto != SCTP {
			t.Errorf("port %+v", p)
		}
	}
	if s.Affinity < 0 || s.Affinity.Seconds() > maxAffinity || s.HealthCheckNodePort != 0 && !s.ExternalLocal {
		t.Errorf("%+v", s)
	}
}

func checkErrors(t *testing.T, errs []error) {
	for _, err := range errs {
		var field *FieldError
		if !errors.As(err, &field) || field.Field == "" || field.Unwrap() == nil {
			t.Errorf("%v does not name a field", err)
		}
	}
}

// FuzzFromEndpointSlice is the same for slices.
func FuzzFromEndpointSlice(f *testing.F) {
	for _, change := range []func(*discovery.EndpointSlice){
		func(*discovery.EndpointSlice) {},
		func(o *discovery.EndpointSlice) {
			o.AddressType, o.Endpoints[0].Addresses[0] = discovery.AddressTypeIPv6, "fd00::1"
			o.Endpoints[0].Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "z"}}}
		},
	} {
		seed, err := json.Marshal(apiSlice(change))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o discovery.EndpointSlice
		if json.Unmarshal(data, &o) != nil {
			t.Skip()
		}
		s, errs := FromEndpointSlice(&o)
		checkErrors(t, errs)
		if s == nil {
			return
		}
		if again, _ := FromEndpointSlice(&o); !s.same(again) {
			t.Errorf("the same object twice: %+v and %+v", s, again)
		}
		if s.Service.Name == "" || len(errs) == 0 && len(s.Endpoints) != len(o.Endpoints) {
			t.Errorf("%+v of %s", s, data)
		}
		for _, e := range s.Endpoints {
			a := e.Addr
			if a.Is6() != s.IPv6 || a.Is4In6() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Zone() != "" {
				t.Errorf("endpoint %s", a)
			}
		}
		for _, p := range s.Ports {
			if p.Port == 0 || p.Proto == 0 {
				t.Errorf("port %+v", p)
			}
		}
	})
}

// FuzzParse: what is accepted means what netip makes of it, and prefixes hold what the text says.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.0.0.1", "::ffff:10.0.0.1", "fe80::1%a", "10.0.0.1/8", "::ffff:10.0.0.0/104", "::/0", "1.2.3.4/08"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseAddr(s); err == nil {
			if want, e := netip.ParseAddr(s); a.Is4In6() || a.Zone() != "" || e == nil && want.Unmap() != a {
				t.Errorf("%q became %s", s, a)
			}
		}
		if p, err := parsePrefix(s); err == nil && (!p.IsValid() || p.Masked() != p) {
			t.Errorf("%q became %s", s, p)
		}
	})
}
