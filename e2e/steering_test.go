// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/routing"
)

// TestSteering: what processes of the node send to a ClusterIP under internalTrafficPolicy Local is left to the balancer
// behind the pod gateway, as from the node's address there, whatever mark and mask are configured. Only an endpoint that is a
// process of the node is reached at once.
func TestSteering(t *testing.T) {
	for name, change := range map[string]func(*routing.Config){
		"default mark": func(c *routing.Config) { c.HandOff = routing.HandOff{} },
		"own mark and hand-off": func(c *routing.Config) {
			c.Steering.Mark, c.Steering.Mask, c.Steering.Table, c.Steering.Priority = 0x20000000, 0xf0000000, 77, 40
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBeyond(t, change)
			b.show()
			node := b.node.Host
			pod, far, own := b.here(b.Pod(3, 1)), b.Pod(2, 1).Endpoint(), b.node.Endpoint()

			s := b.add(localITP, pod, far)
			b.follow(s, hop{name: "host to local pod", from: node, to: s.vip, backend: "pod-3-1", source: "gateway",
				node: "node>vip:80 vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"})
			for _, f := range lab.Families() {
				b.explains(s.vip(f), lab.NodeIP(f, 1), "", "left to the balancer behind the device")
			}

			s = b.add(localITP, far)
			b.follow(s, hop{name: "none here", from: node, to: s.vip, verdict: lab.Dropped})

			s = b.add(localITP)
			b.follow(s, hop{name: "none at all", from: node, to: s.vip, verdict: lab.Refused})

			s = b.add(localITP, pod, own)
			b.follow(s, hop{name: "host to host-networked pod", from: node, to: s.vip, backend: "node-1", source: "node",
				node: "node>vip:80 node:8080>node"})

			s = b.add(nil, far)
			b.follow(s, hop{name: "policy Cluster is not steered", from: node, to: s.vip, backend: "pod-2-1", source: "node",
				node: "node>vip:80 pod-2-1:8080>node"})
		})
	}
}
