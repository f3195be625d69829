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

// TestHandoffHostClusterIPs: what processes of the node send to ClusterIPs goes to the balancer untranslated, and is balanced
// there; what pods and clients send, and Services under internalTrafficPolicy Local or without endpoints, stay with the node.
func TestHandoffHostClusterIPs(t *testing.T) {
	b := newBeyond(t, func(c *routing.Config) {
		c.Steering, c.HandOff.Local, c.HandOff.Cluster, c.HandOff.HostClusterIPs = routing.Steering{}, false, false, true
	})
	b.show()
	client, node := b.Client(1).Host, b.node.Host

	s := b.add(nil, b.here(b.Pod(3, 1)))
	b.follow(s,
		hop{name: "host to pod", from: node, to: s.vip, backend: "pod-3-1", source: "gateway",
			node: "node>vip:80 vip:80>mp0", balancer: "mp0>vip:80 pod-3-1:8080>gateway"},
		hop{name: "external to pod by NodePort", from: client, to: s.nodePort, backend: "pod-3-1", source: "mp0",
			node: "client>node:np pod-3-1:8080>mp0", balancer: "mp0>pod-3-1:8080 pod-3-1:8080>mp0"})
	for _, f := range lab.Families() {
		b.explains(s.vip(f), lab.NodeIP(f, 1), "", "handOff.hostClusterIPs")
		p := lab.Probe{From: node, Proto: lab.TCP, To: at(s.vip(f).Addr(), 81)}
		if r := p.Send(); r.Verdict != lab.Refused {
			t.Errorf("%s, unused port: %s", f, r)
		}
	}

	s = b.add(nil, b.Node(2).Endpoint())
	b.follow(s,
		hop{name: "host to host endpoint on another node", from: node, to: s.vip, backend: "node-2", source: "gateway",
			node: "node>vip:80 vip:80>mp0", balancer: "mp0>vip:80 node-2:8080>gateway"},
		hop{name: "pod of the node", from: b.Pod(1, 1).Host, to: s.vip, backend: "node-2", source: "pod-1-1",
			node: "pod-1-1>vip:80 node-2:8080>pod-1-1"})

	s = b.add(nil, b.node.Endpoint())
	b.follow(s, hop{name: "host to host endpoint on the same node", from: node, to: s.vip, backend: "node-1", source: "peer",
		node: "node>vip:80 vip:80>mp0", balancer: "mp0>vip:80 node:8080>peer", back: "peer>node:8080 node:8080>peer"})

	s = b.add(localITP, b.here(b.Pod(3, 1)))
	b.follow(s, hop{name: "internalTrafficPolicy Local", from: node, to: s.vip, backend: "pod-3-1", source: "mp0",
		node: "node>vip:80 pod-3-1:8080>mp0", balancer: "mp0>pod-3-1:8080 pod-3-1:8080>mp0"})
	s = b.add(nil)
	b.follow(s, hop{name: "no endpoint", from: node, to: s.vip, verdict: lab.Refused})

	// Software like NodeLocal DNSCache has a ClusterIP as an address of its own, and keeps it out of connection tracking.
	s = b.add(nil, b.Node(2).Endpoint())
	for _, f := range lab.Families() {
		vip := s.vip(f).Addr()
		if err := b.node.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen())); err != nil {
			t.Fatal(err)
		}
		family := map[lab.Family]string{lab.IPv4: "ip", lab.IPv6: "ip6"}[f]
		lab.Must(lab.NFT(b.node.Host, fmt.Sprintf(`table %s cache { chain c { type filter hook output priority -300;
			%s daddr %s notrack; %s saddr %s notrack; }; }`, family, family, vip, family, vip)))(t)
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			lab.Must(b.node.Listen("cache", proto, s.vip(f)))(t)
			if r := (lab.Probe{From: node, Proto: proto, To: s.vip(f)}).Send(); r.Backend != "cache" {
				t.Errorf("%s %s to a ClusterIP of the node's own: %s", f, proto, r)
			}
		}
	}
	inStep(t, b.proxy)
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
	sent := func(when string) {
		for _, f := range lab.Families() {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
				p := lab.Probe{From: b.node.Host, Proto: proto, Source: at(subnetIP(f, 2), 0), To: b.Client(1).At(f, 8080)}
				if r := p.Send(); !r.SawAs("client", lab.NodeIP(f, 1)) {
					t.Errorf("%s %s to a client, %s: %s", f, proto, when, r)
				}
				p.To = at(subnetIP(f, 1), 8080)
				as := func(r lab.Result) bool { return r.SawAs("balancer", subnetIP(f, 2)) }
				if r, ok := p.Eventually(lab.HangLimit, as); !ok {
					t.Errorf("%s %s to the balancer, %s: %s", f, proto, when, r)
				}
			}
		}
	}
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			lab.Must(b.balancer.Listen("balancer", proto, at(subnetIP(f, 1), 8080)))(t)
		}
	}
	sent("at first")
	if _, err := b.node.Run("ip", "link", "set", "mp0", "name", "renamed"); err != nil {
		return // before Linux 6.2 a device that is up cannot be renamed
	}
	sent("with the device renamed")
}

// TestHandoffAntrea: the same with the addresses of an Antrea gateway, all of which one virtual MAC answers for.
func TestHandoffAntrea(t *testing.T) {
	b := layBeyond(t)
	b.show()
	mac := routing.MAC{0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	via := []routing.NextHop{
		{Addr: netip.MustParseAddr("169.254.0.253"), MAC: mac}, {Addr: netip.MustParseAddr("fc01::aabb:ccdd:eeff"), MAC: mac},
	}
	hand := routing.HandOff{
		Enabled: true, Device: "mp0", Local: true, Cluster: true, Gateways: via, Peers: via,
		Virtual: []netip.Addr{netip.MustParseAddr("169.254.0.252"), netip.MustParseAddr("fc01::aabb:ccdd:eefe")},
	}
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

// TestHandoffOVNKubernetes: a node laid out as OVN-Kubernetes lays out its host side: the device (br-ex of the shared gateway)
// has the host address of the masquerade subnet, a permanent neighbour for the next hop .4, the route of the service CIDR
// and the one of the peer. The default numbers serve beside all of that, and leave it as it is.
func TestHandoffOVNKubernetes(t *testing.T) {
	b := layBeyond(t)
	b.show()
	for _, f := range lab.Families() {
		b.peer[f], b.virtual[f], b.gateway[f] = subnetIP(f, 1), subnetIP(f, 3), subnetIP(f, 4)
	}
	b.wire()
	mac := lab.Must(b.balancer.NL.LinkByName(lab.PodBridge))(t).Attrs().HardwareAddr
	for _, f := range lab.Families() {
		fam, bits := familyFlag(f), map[lab.Family]int{lab.IPv4: 29, lab.IPv6: 125}[f]
		b.do(b.node.Host, "ip -%s addr add %s/%d dev mp0 %s", fam, subnetIP(f, 2), bits, map[lab.Family]string{lab.IPv6: "nodad"}[f])
		b.do(b.node.Host, "ip neigh replace %s lladdr %s dev mp0 nud permanent", subnetIP(f, 4), mac)
		b.do(b.node.Host, "ip -%s route add %s via %s dev mp0 mtu 1400", fam, lab.ServiceCIDR(f), subnetIP(f, 4))
		b.do(b.node.Host, "ip -%s route add %s dev mp0 src %s mtu 1400", fam, subnetIP(f, 1), lab.NodeIP(f, 1))
	}
	theirs := func() (out string) {
		for _, c := range []string{"ip -4 route", "ip -6 route", "ip -o addr show mp0", "ip neigh show nud permanent"} {
			for line := range strings.Lines(lab.Must(b.node.Run(strings.Fields(c)...))(t)) {
				if !strings.Contains(line, "proto 110") && (strings.Contains(line, "169.254.169.") || strings.Contains(line, "fd69:")) {
					out += line
				}
			}
		}
		return out
	}
	before := theirs()
	b.others = 1 // IPv6 gives the metric 1024 to routes without one
	b.startBoth(routing.Config{HandOff: routing.HandOff{Enabled: true, Device: "mp0", Local: true, Cluster: true}})
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
	if got := theirs(); got != before {
		t.Errorf("what others made is now:\n%s\nwas:\n%s", got, before)
	}
	if got := metricsOf(t, b.proxy)[`nftproxy_routing_problems{severity="conflict"}`]; got != 0 {
		t.Errorf("%v conflicts", got)
	}
}

// TestExternalBalancerSecondaryAddress: an endpoint with an address of the node that is not its first one, even on
// loopback, is a process of the node; on another node it is any endpoint.
func TestExternalBalancerSecondaryAddress(t *testing.T) {
	b := newBeyond(t, nil)
	b.show()
	own := func(f lab.Family) netip.Addr { return lab.NodeIP(f, 61) }
	far := func(f lab.Family) netip.Addr { return lab.NodeIP(f, 62) }
	for _, f := range lab.Families() {
		for n, a := range map[*lab.Node]netip.Addr{b.node: own(f), b.Node(2): far(f)} {
			device := map[bool]string{true: "lo", false: "eth0"}[n == b.node]
			if err := n.AddAddr(device, netip.PrefixFrom(a, a.BitLen())); err != nil {
				t.Fatal(err)
			}
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
				lab.Must(n.Listen(n.Name+"-second", proto, at(a, 8080)))(t)
			}
		}
		// The balancer sends what is for an address of the node to the node.
		b.do(b.balancer.Host, "ip -%s route add %s via %s dev %s", familyFlag(f), own(f), mp0(f), lab.PodBridge)
	}
	client, node := b.Client(1).Host, b.node.Host

	b.endpoints = own
	s := b.add(localITP, b.node.Endpoint())
	b.follow(s, hop{name: "host to its own secondary address", from: node, to: s.vip, backend: "node-1-second", source: "node",
		node: "node>vip:80 own:8080>node"})
	s = b.add(localETP, b.node.Endpoint())
	b.follow(s, hop{name: "external to a secondary address, Local", from: client, to: s.nodePort, backend: "node-1-second", source: "client",
		node: "client>node:np own:8080>client"})

	b.endpoints = far
	s = b.add(nil, b.Node(2).Endpoint())
	b.follow(s,
		hop{name: "host to a secondary address of another node", from: node, to: s.vip, backend: "node-2-second", source: "node",
			node: "node>vip:80 far:8080>node"},
		hop{name: "host to it by NodePort", from: node, to: s.nodePort, backend: "node-2-second", source: "gateway",
			node: "node>node:np vip:80>mp0", balancer: "mp0>vip:80 far:8080>gateway"})
}

// TestExternalBalancerFaults: while the device, its gateway, a route, the rule or the table is away or wrong, nothing that is
// for the balancer leaves the node by another device, from new flows or old; it is refused, metrics and explain give the
// reason, and when the fault ends everything works again by itself.
func TestExternalBalancerFaults(t *testing.T) {
	b := newBeyond(t, func(c *routing.Config) { c.HandOff.HostClusterIPs = true })
	b.show()
	pod := b.here(b.Pod(3, 1))
	cluster, local, steered := b.add(nil, pod), b.add(localETP, pod), b.add(localITP, pod)
	lab.Must(lab.NFT(b.Switch, `table inet leaks {
		counter v4 { }
		counter v6 { }
		chain c { type filter hook prerouting priority -500;
			ip daddr { 10.96.0.0/16, 169.254.169.0/29 } counter name v4
			ip6 daddr { fd00:10:96::/112, fd69::/125 } counter name v6; }; }`))(t)
	type way struct {
		name string
		from *lab.Host
		to   func(lab.Family) netip.AddrPort
	}
	ways := []way{
		{"ETP Cluster", b.Client(1).Host, cluster.nodePort}, {"ETP Local", b.Client(1).Host, local.nodePort},
		{"ITP Local", b.node.Host, steered.vip}, {"NodePort from the node", b.node.Host, cluster.nodePort},
		{"ClusterIP from the node", b.node.Host, cluster.vip},
	}
	each := func(do func(name string, p lab.Probe)) {
		for _, w := range ways {
			for _, f := range lab.Families() {
				for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
					do(fmt.Sprintf("%s %s %s", w.name, f, proto), lab.Probe{From: w.from, Proto: proto, To: w.to(f)})
				}
			}
		}
	}
	other := func(command string) func() {
		return func() {
			for _, f := range lab.Families() {
				gateway := lab.NodeIP(f, 2)
				b.do(b.node.Host, "ip -%s route %s %s via %s dev eth0 metric 1", familyFlag(f), command, lab.ServiceCIDR(f), gateway)
				b.do(b.node.Host, "ip -%s route %s %s via %s dev eth0 metric 1", familyFlag(f), command, netip.PrefixFrom(subnetIP(f, 3), subnetIP(f, 3).BitLen()), gateway)
			}
		}
	}
	run := func(lines ...string) func() {
		return func() {
			for _, line := range lines {
				b.do(b.node.Host, "%s", line)
			}
		}
	}
	for _, fault := range []struct {
		name     string
		do, undo func()
		problem  string // severity; empty where the proxy repairs it by itself
	}{
		{"device down", run("ip link set mp0 down"), b.up, "waiting"},
		{"device gone", run("ip link del mp0"), b.attach, "waiting"},
		{"route of others in front", other("add"), other("del"), "conflict"},
		{"routes deleted", run("ip route flush proto 110", "ip -6 route flush proto 110"), func() {}, ""},
		{"rule deleted", run("ip rule del priority 30", "ip -6 rule del priority 30"), func() {}, ""},
		{"table flushed", run("ip route flush table 7", "ip -6 route flush table 7"), func() {}, ""},
		{"MAC of the gateway changed", func() { b.do(b.balancer.Host, "ip link set %s address 02:00:00:00:33:33", lab.PodBridge) },
			run("ip neigh flush dev mp0"), ""},
	} {
		t.Run(fault.name, func(t *testing.T) {
			var old []*lab.Conn
			each(func(name string, p lab.Probe) { old = append(old, lab.Must(p.Open())(t)) })
			fault.do()
			if fault.problem != "" {
				series := fmt.Sprintf("nftproxy_routing_problems{severity=%q}", fault.problem)
				for end := time.Now().Add(lab.HangLimit); metricsOf(t, b.proxy)[series] == 0; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s stays 0", series)
					}
				}
				each(func(name string, p lab.Probe) {
					if fault.problem == "conflict" && strings.HasPrefix(name, "ITP") {
						return // the steering table is not touched
					}
					if r := p.Send(); r.Verdict != lab.Refused {
						t.Errorf("%s: %s", name, r)
					}
				})
				b.explains(cluster.nodePort(lab.IPv4), lab.ClientIP(lab.IPv4, 1), "eth0", "no route to the balancer behind the device")
				for _, f := range lab.Families() {
					if n := metricsOf(t, b.proxy)[fmt.Sprintf("nftproxy_refused_total{ip_family=%q,reason=\"no-external-balancer\"}", f)]; n == 0 {
						t.Errorf("%s: none counted", f)
					}
				}
			}
			for _, c := range old {
				c.Ping(20 * time.Millisecond)
			}
			fault.undo()
			each(func(name string, p lab.Probe) {
				p.Timeout = time.Second
				if r, ok := p.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Backend == "pod-3-1" }); !ok {
					t.Errorf("%s, after the fault: %s", name, r)
				}
			})
			for _, c := range old {
				_ = c.Close()
			}
			if got := lab.Must(lab.NFT(b.Switch, "list", "counters"))(t); strings.Count(got, "packets 0 ") != 2 {
				t.Errorf("packets left the node:\n%s", got)
			}
		})
	}
}
