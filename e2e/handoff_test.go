// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
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

	s = b.add(localETP, far)
	b.follow(s,
		hop{name: "none here", from: client, to: s.nodePort, verdict: lab.Dropped},
		hop{name: "none here, from the node itself", from: node, to: s.nodePort, backend: "pod-2-1", source: "node",
			node: "node>node:np pod-2-1:8080>node"})

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
			node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer"},
		hop{name: "external to host endpoint", from: client, to: s.nodePort, backend: "node-1", source: "peer",
			node: "client>node:np vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer"})

	s = b.add(localITP, b.here(b.Pod(3, 1)))
	b.follow(s, hop{name: "under internalTrafficPolicy Local from here", from: client, to: s.nodePort, backend: "pod-3-1", source: "mp0",
		node: "client>node:np pod-3-1:8080>mp0", balancer: "mp0>pod-3-1:8080 pod-3-1:8080>mp0"})

	s = b.add(nil)
	b.follow(s, hop{name: "no endpoint", from: client, to: s.nodePort, verdict: lab.Refused})
}
