// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// staleCase is one way in which a UDP client's conntrack entry becomes wrong, or does not.
type staleCase struct {
	name string
	// to is what the client keeps sending to; from outside the cluster unless it is a ClusterIP.
	to func(f lab.Family, i int) netip.AddrPort
	// before is applied first, and each of change in turn; the last one is the write that counts. A nil element
	// stands for the deletion of everything of before.
	before func(w *staleWorld, i int) []any
	change func(w *staleWorld, i int) [][]any
	// first and then are who serves the client before and after: a backend, refused, or elsewhere, which is not us.
	first, then string
}

// elsewhere is what a client finds at an address that is not ours: not a backend.
const elsewhere = "not a backend"

// staleWorld is where the cases play: the objects are the same for all proxies.
type staleWorld struct {
	a, b lab.Endpoint // on node 1 and 2; backends "a", "b" on port 5353, "a2" on a's port 5354
}

func (w *staleWorld) service(i int) *corev1.Service {
	return lab.NewService(fmt.Sprintf("stale-%d", i), 100+i, lab.Port(lab.UDP, 53, 5353))
}

func (w *staleWorld) nodePort(i int) *corev1.Service {
	return lab.WithNodePorts(w.service(i), nodePortOf(i))
}

func nodePortOf(i int) int32 { return int32(31_000 + i) }

func toClusterIP(f lab.Family, i int) netip.AddrPort { return at(lab.ClusterIP(f, 100+i), 53) }
func toNodePort(f lab.Family, i int) netip.AddrPort {
	return at(lab.NodeIP(f, 1), uint16(nodePortOf(i)))
}
func toExternalIP(f lab.Family, i int) netip.AddrPort { return at(lab.ExternalIP(f, 1+i), 53) }
func toBalancerIP(f lab.Family, i int) netip.AddrPort { return at(lab.LoadBalancerIP(f, 1+i), 53) }

// served makes the objects of a Service with endpoints.
func served(svc *corev1.Service, endpoints ...lab.Endpoint) []any {
	return []any{svc, lab.NewSlices(svc, endpoints...)}
}

// edited returns a Service after a change.
func edited(svc *corev1.Service, edit func(*corev1.Service)) *corev1.Service {
	edit(svc)
	return svc
}

// plain is a Service of type ClusterIP served by a; exposed is one with a NodePort.
func plain(w *staleWorld, i int) []any   { return served(w.service(i), w.a) }
func exposed(w *staleWorld, i int) []any { return served(w.nodePort(i), w.a) }

// once is one write.
func once(f func(w *staleWorld, i int) []any) func(*staleWorld, int) [][]any {
	return func(w *staleWorld, i int) [][]any { return [][]any{f(w, i)} }
}

// slicesOnly is one write of the slices of a Service.
func slicesOnly(endpoints func(w *staleWorld) []lab.Endpoint) func(*staleWorld, int) [][]any {
	return once(func(w *staleWorld, i int) []any { return []any{lab.NewSlices(w.service(i), endpoints(w)...)} })
}

func onlyB(w *staleWorld) []lab.Endpoint { return []lab.Endpoint{w.b} }
func noOne(*staleWorld) []lab.Endpoint   { return nil }

// staleCases are the cases of the contract. Those that keep a flow come first: that the others take effect shows that
// the proxy has seen these.
func staleCases() []staleCase {
	return []staleCase{
		{"kept: traffic policy changed, endpoint serves", toNodePort, func(w *staleWorld, i int) []any {
			return served(w.nodePort(i), w.b)
		}, once(func(w *staleWorld, i int) []any {
			return []any{edited(w.nodePort(i), func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			})}
		}), "b", "b"},
		{"kept: endpoint terminates, but serves", toClusterIP, plain, slicesOnly(func(w *staleWorld) []lab.Endpoint {
			return []lab.Endpoint{w.a.With(false, true, true), w.b}
		}), "a", "a"},
		{"kept: endpoint added", toClusterIP, plain, slicesOnly(func(w *staleWorld) []lab.Endpoint {
			return []lab.Endpoint{w.a, w.b}
		}), "a", "a"},
		{"endpoint replaced", toClusterIP, plain, slicesOnly(onlyB), "a", "b"},
		{"endpoint not serving any more", toClusterIP, plain, slicesOnly(func(w *staleWorld) []lab.Endpoint {
			return []lab.Endpoint{w.a.With(false, false, false), w.b}
		}), "a", "b"},
		{"last endpoint gone", toClusterIP, plain, slicesOnly(noOne), "a", refused},
		{"target port changed", toClusterIP, plain, once(func(w *staleWorld, i int) []any {
			return served(edited(w.service(i), func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(5354) }), w.a)
		}), "a", "a2"},
		{"port of the Service changed", toClusterIP, plain, once(func(w *staleWorld, i int) []any {
			return []any{edited(w.service(i), func(s *corev1.Service) { s.Spec.Ports[0].Port = 54 })}
		}), "a", refused},
		{"Service deleted", toClusterIP, plain, once(func(*staleWorld, int) []any { return nil }), "a", elsewhere},
		{"Service deleted and created anew", toClusterIP, plain, func(w *staleWorld, i int) [][]any {
			return [][]any{nil, served(w.service(i), w.b)}
		}, "a", "b"},
		{"NodePort: endpoint replaced", toNodePort, exposed, slicesOnly(onlyB), "a", "b"},
		{"NodePort: last endpoint gone", toNodePort, exposed, slicesOnly(noOne), "a", refused},
		{"NodePort: type changed to ClusterIP", toNodePort, exposed, once(plain), "a", refused},
		{"NodePort: used by another Service", toNodePort, exposed, func(w *staleWorld, i int) [][]any {
			other := w.nodePort(i)
			other.Name += "-other"
			return [][]any{nil, served(other, w.b)}
		}, "a", "b"},
		{"external IP added where packets flow", toExternalIP, plain, once(func(w *staleWorld, i int) []any {
			return []any{lab.WithExternalIP(w.service(i), 1+i)}
		}), elsewhere, "a"},
		{"external IP removed", toExternalIP, func(w *staleWorld, i int) []any {
			return served(lab.WithExternalIP(w.service(i), 1+i), w.a)
		}, once(func(w *staleWorld, i int) []any { return []any{w.service(i)} }), "a", elsewhere},
		{"load balancer IP added where packets flow", toBalancerIP, exposed, once(func(w *staleWorld, i int) []any {
			return []any{lab.WithLoadBalancer(w.service(i), nodePortOf(i), 1+i)}
		}), elsewhere, "a"},
		{"load balancer IP: endpoint replaced", toBalancerIP, func(w *staleWorld, i int) []any {
			return served(lab.WithLoadBalancer(w.service(i), nodePortOf(i), 1+i), w.a)
		}, slicesOnly(onlyB), "a", "b"},
	}
}

// fits reports whether a fate is the wanted one.
func fits(want string) func(fate string) bool {
	if want == elsewhere {
		return func(fate string) bool { return slices.Contains([]string{lost, refused, unreachable}, fate) }
	}
	return func(fate string) bool { return fate == want }
}

// staleSide is one proxy with a network of its own. All sides have one API server, and see one write at one time.
type staleSide struct {
	*lab.Net
	kind    lab.ProxyKind
	streams map[string]*stream // by case and family
	control []*stream          // to the backends themselves, past all proxies
}

// newStaleSide builds the network with its backends, and starts the proxies.
func newStaleSide(t *testing.T, kind lab.ProxyKind, cp *lab.ControlPlane) *staleSide {
	t.Helper()
	s := &staleSide{Net: lab.Start(t, lab.Options{}), kind: kind, streams: map[string]*stream{}}
	a, b := s.Pod(1, 2), s.Pod(2, 1)
	lab.Must(a.Serve("a", 5353, lab.UDP))(t)
	lab.Must(a.Serve("a2", 5354, lab.UDP))(t)
	lab.Must(b.Serve("b", 5353, lab.UDP))(t)
	for _, n := range s.Nodes {
		if err := cp.Apply(t.Context(), lab.NewNode(n)); err != nil {
			t.Fatal(err)
		}
	}
	lab.Must(lab.StartProxies(s.Net, lab.ProxySpec{Kind: kind, API: lab.Must(s.Attach(cp))(t)}))(t)
	s.openControl(t, a, b)
	return s
}

// key names a stream.
func key(c *staleCase, f lab.Family) string { return fmt.Sprintf("%s/%s", c.name, f) }

// openControl starts the streams that show what the machine loses by itself.
func (s *staleSide) openControl(t *testing.T, backends ...*lab.Pod) {
	for _, b := range backends {
		for _, f := range lab.Families() {
			s.control = append(s.control, openStream(t, s.Pod(1, 1).Host, b.At(f, 5353)))
		}
	}
}

// open starts the streams of a case.
func (s *staleSide) open(t *testing.T, c *staleCase, i int) {
	for _, f := range lab.Families() {
		to, from := c.to(f, i), s.Client(1).Host
		if lab.ServiceCIDR(f).Contains(to.Addr()) {
			from = s.Pod(1, 1).Host
		}
		s.streams[key(c, f)] = openStream(t, from, to)
	}
}

// await waits until the streams of a case are served as they should be.
func (s *staleSide) await(t *testing.T, c *staleCase, want string, within time.Duration) bool {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(tick) { // between polls
		met := true
		for _, f := range lab.Families() {
			met = met && fits(want)(s.streams[key(c, f)].last())
		}
		if met || time.Since(begin) > within {
			return met
		}
	}
}

// watch waits until the streams of a case have met what they should for some more datagrams: entries may be made late.
func (s *staleSide) watch(c *staleCase) {
	const more = 60 // datagrams: longer than until the last check of a change
	sent := map[lab.Family]int{}
	for _, f := range lab.Families() {
		sent[f] = s.streams[key(c, f)].sent()
	}
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(tick) { // between polls
		met := true
		for _, f := range lab.Families() {
			met = met && s.streams[key(c, f)].metAfter(sent[f]+more, fits(c.then))
		}
		if met {
			return
		}
	}
}

// staleRun plays cases, each with a Service of its own, at all sides at once.
type staleRun struct {
	t       *testing.T
	cp      *lab.ControlPlane
	world   *staleWorld
	sides   []*staleSide
	written map[string]time.Time
}

// write makes one change of a case and returns when.
func (r *staleRun) write(c *staleCase, i int) {
	var when time.Time
	for _, objects := range c.change(r.world, i) {
		when = time.Now()
		var err error
		if objects == nil {
			err = r.cp.Delete(r.t.Context(), lab.Objects(c.before(r.world, i)...)...)
		} else {
			err = r.cp.Apply(r.t.Context(), lab.Objects(objects...)...)
		}
		if err != nil {
			r.t.Fatalf("%s: %v", c.name, err)
		}
	}
	r.written[c.name] = when
}

// play plays the cases. first is the number of the first Service.
func (r *staleRun) play(cases []staleCase, first int) {
	for i := range cases {
		objects := lab.Objects(cases[i].before(r.world, first+i)...)
		if err := r.cp.Apply(r.t.Context(), objects...); err != nil {
			r.t.Fatalf("%s: %v", cases[i].name, err)
		}
	}
	for i := range cases {
		for _, s := range r.sides {
			s.open(r.t, &cases[i], first+i)
		}
	}
	for i := range cases {
		for _, s := range r.sides {
			if !s.await(r.t, &cases[i], cases[i].first, patience) {
				r.t.Fatalf("%s: %s does not serve the client by %s at first", s.kind, cases[i].name, cases[i].first)
			}
		}
	}
	for i := range cases {
		r.write(&cases[i], first+i)
		if !r.sides[0].await(r.t, &cases[i], cases[i].then, patience) {
			r.t.Fatalf("%s: the client is not served as it should be: %s", cases[i].name, r.table(cases[:i+1]))
		}
	}
	for i := range cases {
		r.sides[0].watch(&cases[i])
	}
	end := time.Now().Add(3 * time.Second) // what takes kube-proxy more than three of its periods is only in the table
	for _, s := range r.sides[1:] {
		for i := range cases {
			s.await(r.t, &cases[i], cases[i].then, time.Until(end))
		}
	}
}

// check fails the test for each case in which a side did not serve its client as it should.
func (r *staleRun) check(s *staleSide, cases []staleCase) {
	r.t.Helper()
	for _, c := range cases {
		for _, f := range lab.Families() {
			if o := r.outcome(s, &c, f); o.failed(c.first == c.then) {
				r.t.Errorf("%s, %s: %s: %s", s.kind, f, c.name, o)
			}
		}
	}
}

func (r *staleRun) outcome(s *staleSide, c *staleCase, f lab.Family) outcome {
	return s.streams[key(c, f)].judge(r.written[c.name], fits(c.then), s.control...)
}

// table shows how all sides took the cases.
func (r *staleRun) table(cases []staleCase) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| %-45s | family ", "from the API write to the last wrong datagram")
	for _, s := range r.sides {
		fmt.Fprintf(&b, "| %s ", s.kind)
	}
	b.WriteString("|\n| --- | --- " + strings.Repeat("| --- ", len(r.sides)) + "|\n")
	for _, c := range cases {
		for _, f := range lab.Families() {
			fmt.Fprintf(&b, "| %s: from %s to %s | %s ", c.name, c.first, c.then, f)
			for _, s := range r.sides {
				fmt.Fprintf(&b, "| %s ", r.outcome(s, &c, f))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// TestStaleFlows: a UDP client that keeps one socket and sends every 10 ms is served right after each API write that
// concerns it, and from the first right answer on by every datagram. Real kube-proxy sees the same writes; the log has
// both with their times, which are those of the machine.
func TestStaleFlows(t *testing.T) {
	lab.RequireRoot(t)
	cp := shared.ControlPlane(t)
	r := &staleRun{t: t, cp: cp, written: map[string]time.Time{}, sides: []*staleSide{
		newStaleSide(t, lab.NFTProxy, cp), newStaleSide(t, lab.KubeProxy, cp),
	}}
	ours := r.sides[0]
	r.world = &staleWorld{ours.Pod(1, 2).Endpoint(), ours.Pod(2, 1).Endpoint()}
	cases := staleCases()
	r.play(cases, 0)
	t.Log(r.table(cases))
	r.check(ours, cases)
}
