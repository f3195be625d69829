// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// plan collects the scenarios of a setup and gives their Services addresses of their own.
type plan struct {
	net       *lab.Net // endpoints are taken from here; the other network has the same addresses
	next      int
	scenarios []*scenario
}

// firstIndex is the first index of a Service. 1 is the API server's own, which has no others to number.
const firstIndex = 300

// cluster makes a Service of type ClusterIP, port 80 for TCP and for UDP leading to 8080.
func (p *plan) cluster(name string, mods ...mod) *corev1.Service {
	p.next++
	s := lab.NewService(name, firstIndex+p.next, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080))
	for _, m := range mods {
		m(s)
	}
	return s
}

// service makes a LoadBalancer Service with all kinds of addresses and the same ports.
func (p *plan) service(name string, mods ...mod) *corev1.Service {
	return p.serving(name, []corev1.ServicePort{lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)}, mods...)
}

// serving is service with other ports, at most four.
func (p *plan) serving(name string, ports []corev1.ServicePort, mods ...mod) *corev1.Service {
	p.next++
	s := lab.NewService(name, firstIndex+p.next, ports...)
	// Node ports end at 32767: health checks have the last 500.
	lab.WithExternalIP(lab.WithLoadBalancer(s, int32(30000+4*p.next), p.next), p.next)
	for _, m := range mods {
		m(s)
	}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.Spec.HealthCheckNodePort = int32(32200 + p.next)
	}
	return s
}

// mod changes a Service that is being made.
type mod func(*corev1.Service)

func etpLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func itpLocal(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

// sticky is session affinity that ends some time after the last connection.
func sticky(timeout time.Duration) mod {
	return func(s *corev1.Service) {
		seconds := int32(timeout.Seconds())
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func ranges(r ...string) mod { return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = r } }

func label(key, value string) mod {
	return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
}

// with is a changed copy of a Service, for a later step.
func with(s *corev1.Service, mods ...mod) *corev1.Service {
	c := s.DeepCopy()
	for _, m := range mods {
		m(c)
	}
	return c
}

// pod is an endpoint on a pod, node one on a node's own address. Endpoints say their zone, as the API has it: a for node-1,
// b for node-2.
func (p *plan) pod(node, i int) lab.Endpoint {
	e := p.net.Pod(node, i).Endpoint()
	e.Zone = zones[node]
	return e
}

func (p *plan) node(i int) lab.Endpoint {
	e := p.net.Node(i).Endpoint()
	e.Zone = zones[i]
	return e
}

var zones = map[int]string{1: "a", 2: "b"}

// on is a Service with its endpoints, as objects.
func on(s *corev1.Service, endpoints ...lab.Endpoint) []lab.Object {
	return lab.Objects(s, lab.NewSlices(s, endpoints...))
}

// scenario adds one of a single step.
func (p *plan) scenario(name string, s *corev1.Service, apply []lab.Object, rows ...row) *scenario {
	sc := &scenario{name: name, svc: s, steps: []step{{apply: apply, svc: s, rows: rows}}}
	p.scenarios = append(p.scenarios, sc)
	return sc
}

// then adds a step to a scenario. A nil Service is the one before.
func (sc *scenario) then(what string, s *corev1.Service, apply []lab.Object, rows ...row) *scenario {
	if s == nil {
		s = sc.svc
	}
	sc.svc = s
	sc.steps = append(sc.steps, step{what: what, apply: apply, svc: s, rows: rows})
	return sc
}

// without removes objects in the last step.
func (sc *scenario) without(o ...lab.Object) *scenario {
	last := &sc.steps[len(sc.steps)-1]
	last.remove = append(last.remove, o...)
	return sc
}

// as names upstream tests that the scenario stands for, as "file: name".
func (sc *scenario) as(tests ...string) *scenario {
	sc.upstream = append(sc.upstream, tests...)
	return sc
}

// slowly leaves the scenario out of the fast subset.
func (sc *scenario) slowly() *scenario {
	sc.slow = true
	return sc
}
