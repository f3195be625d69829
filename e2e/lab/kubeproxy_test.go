// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

var shared lab.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

// web is a Service with an endpoint on each of two nodes: web-1 on node-1 (pod-1-1), web-2 on node-2 (pod-2-1).
type web struct {
	net      *lab.Net
	svc      *corev1.Service
	objects  []lab.Object
	protos   []lab.Proto
	nodePort map[lab.Proto]uint16
}

const webIndex = 10 // of the ClusterIP

func newWeb(t *testing.T, n *lab.Net) *web {
	w := &web{net: n, protos: []lab.Proto{lab.TCP, lab.UDP, lab.SCTP}, nodePort: map[lab.Proto]uint16{}}
	var ports []corev1.ServicePort
	for i, proto := range w.protos {
		ports = append(ports, lab.Port(proto, 80, 8080))
		w.nodePort[proto] = uint16(30080 + i)
	}
	w.svc = lab.WithNodePorts(lab.NewService("web", webIndex, ports...), 30080)
	w.objects = lab.Objects(w.svc, lab.NewSlices(w.svc, n.Pod(1, 1).Endpoint(), n.Pod(2, 1).Endpoint()))
	for _, node := range n.Nodes {
		w.objects = append(w.objects, lab.NewNode(node))
		lab.Must(node.Pods[0].Serve(fmt.Sprintf("web-%d", node.Index), 8080, w.protos...))(t)
	}
	return w
}

func (w *web) vip(f lab.Family) netip.AddrPort {
	return netip.AddrPortFrom(lab.ClusterIP(f, webIndex), 80)
}

// ready are probes that every node must answer over both families.
func (w *web) ready() []lab.Probe {
	var all []lab.Probe
	for _, node := range w.net.Nodes {
		for _, f := range lab.Families() {
			all = append(all, lab.Probe{From: node.Host, Proto: lab.TCP, To: w.vip(f), Timeout: 200 * time.Millisecond})
		}
	}
	return all
}

// seen is what the two backends shall see.
type seen = map[string]netip.Addr

// cases are senders and addresses, with whom each backend shall see.
func (w *web) cases(f lab.Family) []struct {
	name string
	from *lab.Host
	to   netip.Addr
	want seen
} {
	n := w.net
	gateway := func(node int) netip.Addr { return lab.PodGateway(f, node) }
	node1, node2 := n.Node(1).IP(f), n.Node(2).IP(f)
	// Masqueraded on a node, one looks like that node: on the side of its own pods, or on the side of the other nodes.
	as1 := seen{"web-1": gateway(1), "web-2": node1}
	as2 := seen{"web-1": node2, "web-2": gateway(2)}
	hairpin, pod, client := n.Pod(1, 1).Host, n.Pod(1, 2).Host, n.Client(1).Host
	vip := w.vip(f).Addr()
	return []struct {
		name string
		from *lab.Host
		to   netip.Addr
		want seen
	}{
		{"pod to ClusterIP", pod, vip, seen{"web-1": pod.IP(f), "web-2": pod.IP(f)}},
		{"hairpin to ClusterIP", hairpin, vip, seen{"web-1": gateway(1), "web-2": hairpin.IP(f)}},
		{"node to ClusterIP", n.Node(1).Host, vip, as1},
		{"client to ClusterIP", client, vip, as1},
		{"pod to own node", pod, node1, as1},
		{"hairpin to own node", hairpin, node1, as1},
		{"pod to other node", pod, node2, as2},
		{"node to itself", n.Node(1).Host, node1, as1},
		{"client to node 1", client, node1, as1},
		{"client to node 2", client, node2, as2},
	}
}

// check sends every case over every protocol and both families.
func (w *web) check(t *testing.T) {
	for _, f := range lab.Families() {
		for _, proto := range w.protos {
			for _, c := range w.cases(f) {
				port := w.vip(f).Port()
				if c.to != w.vip(f).Addr() {
					port = w.nodePort[proto]
				}
				// Of 40 probes none reaches one of the two once in 2^39 runs.
				got := lab.Probe{From: c.from, Proto: proto, To: netip.AddrPortFrom(c.to, port)}.Repeat(40, 4)
				if !got.AllAnswered() {
					t.Errorf("%s %s %s: %s", f, proto, c.name, got)
				}
				for backend, source := range c.want {
					if got.Seen[lab.Seen{Backend: backend, Source: source}] == 0 || len(got.Seen) != len(c.want) {
						t.Errorf("%s %s %s: want %s to see %s, got %v", f, proto, c.name, backend, source, got.Seen)
					}
				}
			}
		}
	}
}

// TestLabKubeProxy runs real kube-proxy on both nodes, once on pods behind a bridge, once on such that are bridged with
// br_netfilter, and once on routed ones.
func TestLabKubeProxy(t *testing.T) {
	for name, o := range map[string]lab.Options{
		"bridge":          {},
		"bridgeNetfilter": {BridgeNetfilter: true},
		"routed":          {Routed: true},
	} {
		t.Run(name, func(t *testing.T) {
			cp := shared.ControlPlane(t)
			n := lab.Start(t, o)
			w := newWeb(t, n)
			if err := cp.Apply(context.Background(), w.objects...); err != nil {
				t.Fatal(err)
			}
			api := lab.Must(n.Attach(cp))(t)
			spec := lab.ProxySpec{Kind: lab.KubeProxy, API: api, Ready: w.ready(), ByFlags: o.Routed}
			lab.Must(lab.StartProxies(n, spec))(t)
			w.check(t)
		})
	}
}

// TestProxyLife stops, kills and restarts a proxy, and takes the API server from it.
func TestProxyLife(t *testing.T) {
	ctx := context.Background()
	cp := shared.ControlPlane(t)
	n := lab.Start(t, lab.Options{Nodes: 1})
	svc := lab.NewService("web", webIndex, lab.Port(lab.TCP, 80, 8080))
	pod := n.Pod(1, 1)
	lab.Must(pod.Serve("web", 8080, lab.TCP))(t)
	if err := cp.Apply(ctx, lab.NewNode(n.Node(1)), svc); err != nil {
		t.Fatal(err)
	}
	api := lab.Must(n.Attach(cp))(t)
	proxy := lab.Must(lab.StartProxy(n.Node(1), lab.ProxySpec{Kind: lab.KubeProxy, API: api}))(t)
	vip := lab.Probe{From: n.Pod(1, 2).Host, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(lab.IPv4, webIndex), 80)}
	until := func(v lab.Verdict) {
		t.Helper()
		if r, ok := vip.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == v }); !ok {
			t.Fatalf("want %s, got %s", v, r)
		}
	}
	until(lab.Refused)

	api.Cut()
	if err := cp.Apply(ctx, lab.Objects(lab.NewSlices(svc, pod.Endpoint()))...); err != nil {
		t.Fatal(err)
	}
	if _, ok := vip.Eventually(time.Second, func(r lab.Result) bool { return r.Verdict != lab.Refused }); ok {
		t.Error("the proxy learned of an endpoint with the API server cut off")
	}
	api.Restore()
	until(lab.Answered)

	if err := proxy.Stop(); err != nil {
		t.Error(err)
	}
	select {
	case <-proxy.Done():
	default:
		t.Error("running after Stop")
	}
	until(lab.Answered)
	proxy = lab.Must(proxy.Restart())(t)
	if err := proxy.Kill(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", proxy.PID())); !os.IsNotExist(err) {
		t.Errorf("process %d after Kill: %v", proxy.PID(), err)
	}
	until(lab.Answered)
}
