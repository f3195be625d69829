// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/routing"
)

// TestHandoffLocal: traffic from outside under externalTrafficPolicy Local goes to the balancer behind the device by the
// virtual address on the same NodePort, and the endpoint sees the client.
func TestHandoffLocal(t *testing.T) {
	b := newBeyond(t, nil)
	b.show()
	client, node := b.Client(1).Host, b.node.Host
	pod, far, own := b.here(b.Pod(3, 1)), b.Pod(2, 1).Endpoint(), b.node.Endpoint()

	s := b.add(localETP, pod, far)
	b.follow(s,
		hop{name: "external to pod by NodePort", from: client, to: s.nodePort, backend: "pod-3-1", source: "client",
			node: "client>node:np etp:np>client", balancer: "client>etp:np pod-3-1:8080>client"},
		hop{name: "external to pod by load balancer IP", from: client, to: s.lb, backend: "pod-3-1", source: "client",
			node: "client>lb:80 etp:np>client", balancer: "client>etp:np pod-3-1:8080>client"})
	for _, f := range lab.Families() {
		b.explains(s.nodePort(f), lab.ClientIP(f, 1), "eth0", "handed over to the balancer behind the device")
	}

	s = b.add(localETP, far)
	b.follow(s,
		hop{name: "none here", from: client, to: s.nodePort, verdict: lab.Dropped},
		hop{name: "none here, from the node itself", from: node, to: s.nodePort, backend: "pod-2-1", source: "node",
			node: "node>node:np pod-2-1:8080>node"},
		hop{name: "none here, from a pod of the node", from: b.Pod(1, 1).Host, to: s.nodePort, backend: "pod-2-1", source: "pod-1-1",
			node: "pod-1-1>node:np pod-2-1:8080>pod-1-1"})

	s = b.add(localETP, own, pod)
	b.follow(s, hop{name: "external to host-networked pod", from: client, to: s.nodePort, backend: "node-1", source: "client",
		node: "client>node:np node:8080>client"})

	s = b.add(localETP)
	b.follow(s, hop{name: "no endpoint", from: client, to: s.nodePort, verdict: lab.Refused})

	s = b.add(func(s *corev1.Service) {
		localETP(s)
		no := false
		s.Spec.AllocateLoadBalancerNodePorts = &no
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}, pod, far)
	b.follow(s, hop{name: "without NodePorts", from: client, to: s.lb, backend: "pod-3-1", source: "client",
		node: "client>lb:80 pod-3-1:8080>client", balancer: "client>pod-3-1:8080 pod-3-1:8080>client"})
	inStep(t, b.proxy)
}

// TestHandoffCluster: traffic under externalTrafficPolicy Cluster goes to the balancer by the ClusterIP, masqueraded to the
// node's address on the device. What a process of the node sends to a NodePort takes the same way: to a pod, to an endpoint
// of another node, and to one of this node, which sees the peer.
func TestHandoffCluster(t *testing.T) {
	b := newBeyond(t, nil)
	b.show()
	client, node := b.Client(1).Host, b.node.Host

	s := b.add(nil, b.here(b.Pod(3, 1)))
	b.follow(s,
		hop{name: "external to pod by NodePort", from: client, to: s.nodePort, backend: "pod-3-1", source: "gateway",
			node: "client>node:np vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"},
		hop{name: "external to pod by load balancer IP", from: client, to: s.lb, backend: "pod-3-1", source: "gateway",
			node: "client>lb:80 vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"},
		hop{name: "host to pod", from: node, to: s.nodePort, backend: "pod-3-1", source: "gateway",
			node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"},
		hop{name: "host to pod by ClusterIP", from: node, to: s.vip, backend: "pod-3-1", source: "mp0",
			node: "node>vip:80 pod-3-1:8080>mp0", balancer: "mp0>pod-3-1:8080 pod-3-1:8080>mp0"})

	s = b.add(nil, b.Node(2).Endpoint())
	b.follow(s,
		hop{name: "host to host endpoint on another node", from: node, to: s.nodePort, backend: "node-2", source: "gateway",
			node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 node-2:8080>gateway"},
		hop{name: "external to host endpoint on another node", from: client, to: s.nodePort, backend: "node-2", source: "gateway",
			node: "client>node:np vip:80>mp0", balancer: "mp0>vip:80 node-2:8080>gateway"})

	s = b.add(nil, b.node.Endpoint())
	b.follow(s,
		hop{name: "host to host endpoint on the same node", from: node, to: s.nodePort, backend: "node-1", source: "peer",
			node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer", back: "peer>node:8080 node:8080>peer"},
		hop{name: "external to host endpoint", from: client, to: s.nodePort, backend: "node-1", source: "peer",
			node: "client>node:np vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer", back: "peer>node:8080 node:8080>peer"},
		hop{name: "pod behind the balancer to host endpoint", from: b.Pod(3, 2).Host, to: s.vip, backend: "node-1", source: "peer",
			balancer: "pod-3-2>vip:80 node:8080>peer", back: "peer>node:8080 node:8080>peer"})

	s = b.add(localITP, b.here(b.Pod(3, 1)))
	b.follow(s, hop{name: "under internalTrafficPolicy Local from here", from: client, to: s.nodePort, backend: "pod-3-1", source: "mp0",
		node: "client>node:np pod-3-1:8080>mp0", balancer: "mp0>pod-3-1:8080 pod-3-1:8080>mp0"})

	s = b.add(nil)
	b.follow(s, hop{name: "no endpoint", from: client, to: s.nodePort, verdict: lab.Refused})
}

// TestHandoffKeepsFlows: while a Service's endpoints change, datagram flows that are handed over or steered stay: their
// endpoint is for the balancer to judge.
func TestHandoffKeepsFlows(t *testing.T) {
	b := newBeyond(t, nil)
	b.show()
	first, second := b.here(b.Pod(3, 1)), b.here(b.Pod(3, 2))
	cluster, local, steered := b.add(nil, first), b.add(localETP, first), b.add(localITP, first)
	type kept struct {
		*lab.Conn
		name string
	}
	var conns []kept
	for _, f := range lab.Families() {
		for name, p := range map[string]lab.Probe{
			"ETP Cluster": {From: b.Client(1).Host, To: cluster.nodePort(f)},
			"ETP Local":   {From: b.Client(1).Host, To: local.nodePort(f)},
			"ITP Local":   {From: b.node.Host, To: steered.vip(f)},
		} {
			p.Proto = lab.UDP
			conns = append(conns, kept{lab.Must(p.Open())(t), f.String() + " " + name})
		}
	}
	for _, s := range []service{cluster, local, steered} {
		b.apply(lab.NewSlices(s.Service, first, second))
	}
	// A new connection to the second pod shows that the change is committed; what is stale goes within 500 ms of that.
	for _, f := range lab.Families() {
		for end := time.Now().Add(lab.HangLimit); b.Client(1).Ask(lab.TCP, cluster.nodePort(f)).Backend != "pod-3-2"; {
			if time.Now().After(end) {
				t.Fatal("the second pod is never chosen")
			}
		}
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, c := range conns {
			if r := c.Ping(lab.DefaultTimeout); r.Backend != "pod-3-1" || r.Source != c.Source {
				t.Fatalf("%s: %s, was %s", c.name, r, c.Result)
			}
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
}

// TestRoutingMasqueradeSubnet: what the node sends from its address of the masquerade subnet is masqueraded, but not to the
// balancer behind the device.
func TestRoutingMasqueradeSubnet(t *testing.T) {
	b := newBeyond(t, func(c *routing.Config) { c.Steering, c.HandOff.Cluster = routing.Steering{}, false })
	b.show()
	lab.Must(b.Client(1).Serve("client", 8080, lab.TCP, lab.UDP))(t)
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			lab.Must(b.balancer.Listen("balancer", proto, at(subnetIP(f, 1), 8080)))(t)
			p := lab.Probe{From: b.node.Host, Proto: proto, Source: at(subnetIP(f, 2), 0), To: b.Client(1).At(f, 8080)}
			if r := p.Send(); !r.SawAs("client", lab.NodeIP(f, 1)) {
				t.Errorf("%s %s to a client: %s", f, proto, r)
			}
			p.To = at(subnetIP(f, 1), 8080)
			if r := p.Send(); !r.SawAs("balancer", subnetIP(f, 2)) {
				t.Errorf("%s %s to the balancer: %s", f, proto, r)
			}
		}
	}
}

// TestHandoffAntrea: the same with the addresses of an Antrea gateway, all of which one virtual MAC answers for.
func TestHandoffAntrea(t *testing.T) {
	b := layBeyond(t)
	b.show()
	hand := routing.AntreaHandOff("mp0")
	for i, f := range lab.Families() {
		b.virtual[f], b.peer[f], b.gateway[f] = hand.Virtual[i], hand.Peers[i].Addr, hand.Gateways[i].Addr
	}
	b.wire()
	lab.Must(b.balancer.Run("ip", "link", "set", lab.PodBridge, "address", hand.Gateways[0].MAC.String()))(t)
	b.startBoth(routing.Config{HandOff: hand})
	client, node := b.Client(1).Host, b.node.Host

	s := b.add(localETP, b.here(b.Pod(3, 1)), b.Pod(2, 1).Endpoint())
	b.follow(s, hop{name: "Local, external to pod", from: client, to: s.nodePort, backend: "pod-3-1", source: "client",
		node: "client>node:np etp:np>client", balancer: "client>etp:np pod-3-1:8080>client"})
	s = b.add(nil, b.here(b.Pod(3, 1)))
	b.follow(s, hop{name: "Cluster, external to pod", from: client, to: s.nodePort, backend: "pod-3-1", source: "gateway",
		node: "client>node:np vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"})
	s = b.add(nil, b.node.Endpoint())
	b.follow(s, hop{name: "Cluster, host to itself", from: node, to: s.nodePort, backend: "node-1", source: "peer",
		node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer", back: "peer>node:8080 node:8080>peer"})
}
