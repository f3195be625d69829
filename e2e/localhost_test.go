// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// loopback is the loopback address of a family with a port.
func loopback(f lab.Family, port uint16) netip.AddrPort {
	if f == lab.IPv6 {
		return at(netip.IPv6Loopback(), port)
	}
	return at(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// onLocalhost has NodePorts served on localhost too.
func onLocalhost(c *cluster, others ...string) *cluster {
	c.spec.Config = map[string]any{"nodePortAddresses": append(others, "localhost")}
	return c
}

// eventually sends a probe until it ends as wanted.
func (c *cluster) eventually(what string, p lab.Probe, ok func(lab.Result) bool) {
	c.t.Helper()
	if r, held := p.Eventually(lab.HangLimit, ok); !held {
		c.t.Fatalf("%s: %s %s: %s", what, p.Proto, p.To, r)
	}
}

// NodePorts on 127.0.0.1 and ::1: TCP and UDP, all endpoints in turn, which see an address of the node.
func TestLocalhostNodePorts(t *testing.T) {
	c := onLocalhost(fromManifests(t, lab.Options{}), "primary")
	near, far := c.Pod(1, 1), c.Pod(2, 1)
	c.serve(8080, []*lab.Pod{near, far}, lab.TCP, lab.UDP)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)), 30080)
	c.apply(svc, lab.NewSlices(svc, near.Endpoint(), far.Endpoint()))
	c.start()
	node := c.Node(1)
	ports := map[lab.Proto]uint16{lab.TCP: 30080, lab.UDP: 30081}
	each := func(f func(lab.Probe, lab.Family)) {
		for _, family := range lab.Families() {
			for proto, port := range ports {
				f(lab.Probe{From: node.Host, Proto: proto, To: loopback(family, port)}, family)
			}
		}
	}
	each(func(p lab.Probe, f lab.Family) {
		c.eventually("opened", p, isAnswered)
		got := p.Repeat(40, 4)
		for backend, source := range map[string]netip.Addr{near.Name: lab.PodGateway(f, 1), far.Name: node.IP(f)} {
			if !got.AllAnswered() || got.Seen[lab.Seen{Backend: backend, Source: source}] == 0 || len(got.Seen) != 2 {
				t.Errorf("%s %s: want %s to see %s: %s %v", p.Proto, p.To, backend, source, got, got.Seen)
			}
		}
	})
	// Nobody else gets in: a neighbour that sends to the node what is for localhost.
	if err := node.Sysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	stranger := c.strangerAt(node)
	if r := stranger.Send(); r.Verdict == lab.Answered {
		t.Errorf("a neighbour reaches localhost: %s", r)
	}

	c.apply(lab.NewSlices(svc, far.Endpoint()))
	each(func(p lab.Probe, _ lab.Family) {
		c.eventually("one endpoint gone", p, func(r lab.Result) bool { return r.Backend == far.Name })
	})
	c.apply(lab.NewSlices(svc))
	each(func(p lab.Probe, _ lab.Family) { c.eventually("no endpoint", p, isRefused) })
	c.apply(lab.NewSlices(svc, near.Endpoint()))
	each(func(p lab.Probe, _ lab.Family) { c.eventually("one endpoint back", p, isAnswered) })

	kept := lab.Must(node.Open(lab.TCP, loopback(lab.IPv4, 30080)))(t)
	defer kept.Close()
	if err := c.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	each(func(p lab.Probe, _ lab.Family) { c.eventually("Service deleted", p, isRefused) })
	if r := kept.Ping(lab.DefaultTimeout); r.Verdict != lab.Answered {
		t.Errorf("a connection of a deleted Service: %s", r)
	}
	lab.Must(node.Listen("another", lab.TCP, loopback(lab.IPv4, 30080)))(t)
}

func isAnswered(r lab.Result) bool { return r.Verdict == lab.Answered }
func isRefused(r lab.Result) bool  { return r.Verdict == lab.Refused }

// strangerAt makes client 1 take a node for the way to 127.0.0.1, and returns a probe that goes it.
func (c *cluster) strangerAt(node *lab.Node) lab.Probe {
	c.t.Helper()
	client := c.Client(1)
	for _, argv := range [][]string{
		{"sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1"},
		{"ip", "addr", "del", "127.0.0.1/8", "dev", "lo"},
		{"ip", "route", "replace", "127.0.0.1/32", "via", node.IP(lab.IPv4).String(), "src", client.IP(lab.IPv4).String()},
	} {
		if _, err := client.Run(argv...); err != nil {
			c.t.Fatal(err)
		}
	}
	return lab.Probe{From: client.Host, Proto: lab.TCP, To: loopback(lab.IPv4, 30080), Timeout: 500 * time.Millisecond}
}

// A port that another process has is reported, and taken when it is free.
func TestLocalhostNodePortInUse(t *testing.T) {
	c := onLocalhost(fromAPI(t, lab.Options{}), "primary")
	node, pod := c.Node(1), c.Pod(1, 1)
	c.serve(8080, []*lab.Pod{pod}, lab.TCP)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	c.apply(svc, lab.NewSlices(svc, pod.Endpoint()))
	squatter := lab.Must(node.Listen("squatter", lab.TCP, loopback(lab.IPv4, 30080)))(t)
	proxies := c.start()
	probe := lab.Probe{From: node.Host, Proto: lab.TCP, To: loopback(lab.IPv6, 30080)}
	c.eventually("the other family", probe, isAnswered)
	listeners := func(family string, n int) string {
		return fmt.Sprintf("kubeproxy_nftables_localhost_nodeport_listeners{ip_family=%q} %d\n", family, n)
	}
	text := lab.Must(proxies[0].Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort)))(t)
	for _, want := range []string{listeners("IPv4", 0), listeners("IPv6", 1)} {
		if !strings.Contains(text, want) {
			t.Errorf("no metric %q", want)
		}
	}
	if log := proxies[0].Tail(1000); !strings.Contains(log, `Cannot serve a NodePort on localhost`) {
		t.Errorf("nothing in the log:\n%s", log)
	}
	c.eventAbout("web", "FailedToServeLocalhostNodePort")
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	probe.To = loopback(lab.IPv4, 30080)
	c.eventually("free again", probe, func(r lab.Result) bool { return r.Backend == pod.Name })
}

// A NodePort is none of the internal traffic policy's business, on localhost as elsewhere.
func TestLocalhostInternalPolicy(t *testing.T) {
	c := onLocalhost(fromManifests(t, lab.Options{}), "primary")
	far := c.Pod(2, 1)
	c.serve(8080, []*lab.Pod{far}, lab.TCP)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc.Spec.InternalTrafficPolicy = &local
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	c.apply(svc, lab.NewSlices(svc, far.Endpoint()))
	c.start()
	for _, f := range lab.Families() {
		c.eventually("both policies Local", lab.Probe{From: c.Node(1).Host, Proto: lab.TCP, To: loopback(f, 30080)}, isAnswered)
	}
}

// eventAbout waits for an Event about a Service.
func (c *cluster) eventAbout(service, reason string) {
	c.t.Helper()
	events := c.spec.API.ControlPlane.Client.EventsV1().Events("default")
	for deadline := time.Now().Add(lab.HangLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		list, err := events.List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Regarding.Name == service && e.Reason == reason {
				return
			}
		}
	}
	c.t.Errorf("no Event %s about %s", reason, service)
}

// On a node that takes NodePorts on localhost alone the internal policy counts, and nothing else listens. All processes of
// the node are one client: they stay with one endpoint.
func TestLocalhostAlone(t *testing.T) {
	c := onLocalhost(fromManifests(t, lab.Options{}))
	local := c.Node(1).Pods
	c.serve(8080, append(local[:2:2], c.Pod(2, 1)), lab.TCP)
	policy := corev1.ServiceInternalTrafficPolicyLocal
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	svc.Spec.InternalTrafficPolicy = &policy
	sticky := lab.WithNodePorts(lab.NewService("sticky", 11, lab.Port(lab.TCP, 80, 8080)), 30090)
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	all := endpoints(local[0], local[1], c.Pod(2, 1))
	c.apply(svc, lab.NewSlices(svc, all...), sticky, lab.NewSlices(sticky, all...))
	c.start()
	for _, f := range lab.Families() {
		p := lab.Probe{From: c.Node(1).Host, Proto: lab.TCP, To: loopback(f, 30080)}
		c.eventually("opened", p, isAnswered)
		if got := p.Repeat(40, 4); !got.AllAnswered() || len(got.Backends) != 2 || got.Backends[c.Pod(2, 1).Name] != 0 {
			t.Errorf("%s, internal policy Local: %s", f, got)
		}
		p.To = loopback(f, 30090)
		c.eventually("opened", p, isAnswered)
		if got := p.Repeat(40, 4); !got.AllAnswered() || len(got.Backends) != 1 {
			t.Errorf("%s, session affinity: %s", f, got)
		}
		p.To = at(c.Node(1).IP(f), 30080)
		if r := p.Send(); r.Verdict == lab.Answered {
			t.Errorf("%s: answered at the node's address: %s", f, r)
		}
	}
}
