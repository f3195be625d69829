// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
	"github.com/nftproxy/nftproxy/routing"
)

// TestExternalFromConfig: what the modes of routing ask of builder and rules, in the families that they have a way for.
func TestExternalFromConfig(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:244:1::1")
	hops := []routing.NextHop{{Addr: v4}, {Addr: v6}}
	subnet := netip.MustParsePrefix("169.254.169.0/29")
	etp, dot4 := netip.MustParseAddr("169.254.169.3"), netip.MustParseAddr("169.254.169.4")
	for _, tt := range []struct {
		name   string
		routes routing.Config
		build  services.External
		rules  nft.ExternalBalancer
		both   bool // the same in IPv6; otherwise nothing there
	}{
		{"nothing", routing.Config{}, services.External{}, nft.ExternalBalancer{}, true},
		{"reach", routing.Config{Reach: routing.Reach{Enabled: true}}, services.External{}, nft.ExternalBalancer{}, true},
		{"steering", routing.Config{Steering: routing.Steering{Enabled: true, Device: "mp0", Gateways: hops}},
			services.External{Steering: true}, nft.ExternalBalancer{Steering: true, SteeringHop: hops[0].Addr, Mark: routing.DefaultMark, Mask: ^uint32(0)}, true},
		{"steering of one family", routing.Config{Steering: routing.Steering{Enabled: true, Device: "mp0", Gateways: hops[:1]}},
			services.External{Steering: true}, nft.ExternalBalancer{Steering: true, SteeringHop: hops[0].Addr, Mark: routing.DefaultMark, Mask: ^uint32(0)}, false},
		{"hand-off, Cluster", routing.Config{HandOff: routing.HandOff{Enabled: true, Device: "mp0", Cluster: true, Gateways: hops}},
			services.External{Cluster: true}, nft.ExternalBalancer{HandOff: true, HandOffHop: hops[0].Addr}, true},
		{"hand-off, Local, of one family", routing.Config{Subnets: []netip.Prefix{subnet}, HandOff: routing.HandOff{Enabled: true, Device: "mp0", Local: true}},
			services.External{Virtual: etp}, nft.ExternalBalancer{HandOff: true, HandOffHop: dot4, Virtual: etp}, false},
		{"hand-off of ClusterIPs of the node", routing.Config{HandOff: routing.HandOff{Enabled: true, Device: "mp0", HostClusterIPs: true, Gateways: hops}},
			services.External{HostClusterIPs: true}, nft.ExternalBalancer{HostClusterIPs: true, HandOffHop: hops[0].Addr}, true},
		{"masquerade at the hand-off device", routing.Config{Subnets: []netip.Prefix{subnet}, Device: "eth0", Masquerade: routing.Masquerade{Enabled: true},
			HandOff: routing.HandOff{Enabled: true, Device: "mp0", Local: true}},
			services.External{Virtual: etp}, nft.ExternalBalancer{HandOff: true, HandOffHop: dot4, Virtual: etp, Subnet: subnet, Device: "mp0"}, false},
		{"masquerade at the service device, by alias", routing.Config{Subnets: []netip.Prefix{subnet}, Device: "uplink", Masquerade: routing.Masquerade{Enabled: true}},
			services.External{}, nft.ExternalBalancer{Subnet: subnet, Device: "eth0"}, false},
		{"masquerade at the node's device", routing.Config{Subnets: []netip.Prefix{subnet}, Masquerade: routing.Masquerade{Enabled: true}},
			services.External{}, nft.ExternalBalancer{Subnet: subnet, Device: "eth1"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &config.Config{}
			var err error
			if c.Own.Routing, err = tt.routes.Normalize(); err != nil {
				t.Fatal(err)
			}
			ip := netip.MustParseAddr("172.18.0.11")
			in := nodeInputs{config: c, node: &kube.Node{Addrs: []netip.Addr{ip}}, interfaces: interfaces{
				byAddr: map[netip.Addr]string{ip: "eth1"}, byAlias: map[string]string{"uplink": "eth0"},
			}}
			s := in.state()
			if s.external[0] != tt.build || s.families[0].config.External != tt.rules {
				t.Errorf("IPv4: %+v and %+v, want %+v and %+v", s.external[0], s.families[0].config.External, tt.build, tt.rules)
			}
			if tt.rules.SteeringHop.IsValid() {
				tt.rules.SteeringHop = hops[1].Addr
			}
			if tt.rules.HandOffHop.IsValid() {
				tt.rules.HandOffHop = hops[1].Addr
			}
			if !tt.both {
				tt.build, tt.rules = services.External{}, nft.ExternalBalancer{}
			}
			if s.external[1] != tt.build || s.families[1].config.External != tt.rules {
				t.Errorf("IPv6: %+v and %+v, want %+v and %+v", s.external[1], s.families[1].config.External, tt.build, tt.rules)
			}
		})
	}
}

// TestFlowsOfExternal: flows may go to what a port is handed over to, and those of a steered frontend need no translation;
// when that changes, it is told.
func TestFlowsOfExternal(t *testing.T) {
	vip, pod, virtual := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddrPort("10.244.0.1:53"), netip.MustParseAddrPort("169.254.169.3:30053")
	of := func(steered, handed bool) *entry {
		e := &entry{ports: []services.Port{{Family: nft.IPv4, Serving: []netip.AddrPort{pod}, Service: nft.Service{Name: "a/b", Proto: nft.UDP,
			Frontends: []nft.Frontend{{Kind: nft.ClusterIP, Addr: vip, Port: 53, Steered: steered}, {Kind: nft.NodePort, Port: 30053}}}}}}
		if handed {
			p := e.ports[0]
			e.ports[0].Frontends = p.Frontends[:1:1]
			p.Frontends, p.HandedOff, p.External = p.Frontends[1:], true, []netip.AddrPort{virtual}
			e.ports = append(e.ports, p)
		}
		return e
	}
	cluster := ctsync.Frontend{Addr: vip, Port: 53, Proto: ctsync.UDP}
	node := ctsync.Frontend{Addr: netip.IPv4Unspecified(), Port: 30053, Proto: ctsync.UDP}
	change := func(prev, next *entry) map[ctsync.Frontend]string {
		gone, offered := flowChanges([]*update{{prev: prev, next: next}})
		out := map[ctsync.Frontend]string{}
		for _, c := range append(gone, offered...) {
			out[c.Frontend] = map[bool]string{true: "untranslated "}[c.Untranslated]
			for _, e := range c.Endpoints {
				out[c.Frontend] += e.String() + " "
			}
		}
		return out
	}
	both := pod.String() + " " + virtual.String() + " "
	for _, tt := range []struct {
		name           string
		prev, next     *entry
		cluster, local string // what is told, "-" for nothing
	}{
		{"new", nil, of(true, true), "untranslated " + pod.String() + " ", both},
		{"the same", of(true, true), of(true, true), "-", "-"},
		{"steered from now on", of(false, true), of(true, true), "untranslated " + pod.String() + " ", "-"},
		{"handed over from now on", of(false, false), of(false, true), "-", both},
		{"not any more", of(false, true), of(false, false), "-", pod.String() + " "},
		{"gone", of(true, true), nil, "", ""},
	} {
		got := change(tt.prev, tt.next)
		for f, want := range map[ctsync.Frontend]string{cluster: tt.cluster, node: tt.local} {
			text, told := got[f]
			if !told {
				text = "-"
			}
			if text != want {
				t.Errorf("%s: %v: told %q, want %q", tt.name, f, text, want)
			}
		}
	}
}

// TestNodeIsKept: the Node object is deleted, or comes back before it is initialised: its addresses stay. Before it was
// ever seen NodePorts are not served at all, rather than at every address.
func TestNodeIsKept(t *testing.T) {
	v4, pods := netip.MustParseAddr("172.18.0.11"), netip.MustParsePrefix("10.244.1.0/24")
	c := &config.Config{NodeName: "node-1", NodePorts: config.NodePortAddresses{Primary: true}, DetectLocal: config.DetectLocal{Mode: config.LocalByNodeCIDR}}
	tr := newTracker(func() {}, func(kube.Kind, int, int) {})
	state := func() nodeState {
		return tr.state(c, interfaces{addrs: []netip.Addr{v4, netip.MustParseAddr("192.0.2.77")}}, nil)
	}
	if s := state(); s.families[0].config.NodePortAll || len(s.nodePortAddrs()) != 0 {
		t.Errorf("before the Node is known NodePorts are taken at %v, all: %t", s.nodePortAddrs(), s.families[0].config.NodePortAll)
	}
	name := kube.Name{Name: "node-1"}
	tr.Set(&kube.Node{Name: name, Addrs: []netip.Addr{v4}, PodCIDRs: []netip.Prefix{pods}, Zone: "a"})
	want := state()
	if !slices.Equal(want.nodePortAddrs(), []netip.Addr{v4}) {
		t.Fatalf("NodePorts are taken at %v", want.nodePortAddrs())
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"deleted", func() { tr.Delete(kube.Ref{Kind: kube.KindNode, Name: name}) }},
		{"not initialised", func() { tr.Set(&kube.Node{Name: name, Zone: "a"}) }},
	} {
		step.do()
		got := state()
		if !got.sameServices(&want) || !slices.Equal(got.nodePortAddrs(), want.nodePortAddrs()) || got.families[0].config != want.families[0].config {
			t.Errorf("%s: %+v, want %+v", step.name, got, want)
		}
		if _, gone, _ := tr.cluster(); gone != (step.name == "deleted") {
			t.Errorf("%s: gone is %t", step.name, gone)
		}
	}
	c.Manifests = "/etc/nftproxy/manifests"
	if s := newTracker(func() {}, func(kube.Kind, int, int) {}).state(c, interfaces{}, nil); !s.families[0].config.NodePortAll {
		t.Error("manifests need no Node, and NodePorts are not taken without one")
	}
}

// TestIPv4LinkLocalTakesNodePorts: an IPv4 link-local address is configured on purpose, as 169.254.169.3 on a balancer.
func TestIPv4LinkLocalTakesNodePorts(t *testing.T) {
	at := netip.MustParseAddr("169.254.169.3")
	c := &config.Config{}
	c.NodePorts.CIDRs = []netip.Prefix{netip.PrefixFrom(at, 32)}
	s := (&nodeInputs{config: c, interfaces: interfaces{addrs: []netip.Addr{at}}}).state()
	if got := s.families[0].nodePorts; !slices.Equal(got, []netip.Addr{at}) {
		t.Errorf("NodePorts at %v", got)
	}
}

// TestLinkLocalChangesNothing: each new veth has a link-local address, and nothing depends on it.
func TestLinkLocalChangesNothing(t *testing.T) {
	c := &config.Config{NodePorts: config.NodePortAddresses{All: true}}
	c.Own.Routing.Steering.Enabled = true
	v4 := netip.MustParseAddr("172.18.0.11")
	before := (&nodeInputs{config: c, interfaces: interfaces{addrs: []netip.Addr{v4}}}).state()
	after := (&nodeInputs{config: c, interfaces: interfaces{addrs: []netip.Addr{v4, netip.MustParseAddr("fe80::1")}}}).state()
	if !before.sameServices(&after) || !slices.Equal(before.nodePortAddrs(), after.nodePortAddrs()) {
		t.Errorf("%+v, want %+v", after, before)
	}
	c.NodePorts = config.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("169.254.169.3/32")}}
	virtual := netip.MustParseAddr("169.254.169.3")
	s := (&nodeInputs{config: c, interfaces: interfaces{addrs: []netip.Addr{v4, virtual}}}).state()
	if got := s.families[0].nodePorts; !slices.Equal(got, []netip.Addr{virtual}) {
		t.Errorf("NodePorts are taken at %v, want the link-local address that the configuration names", got)
	}
}

// TestServiceCIDRs: a range that contains addresses which are no ClusterIPs does not count.
func TestServiceCIDRs(t *testing.T) {
	in := nodeInputs{
		config: &config.Config{},
		node: &kube.Node{Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.11")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		apiServer: apiServer{
			clusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")},
			endpoints:  []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("192.0.2.5:6443")},
		},
	}
	for text, refused := range map[string]string{
		"10.96.0.0/12":     "", // the proxy reaches the API server at its ClusterIP
		"fd00:10:96::/112": "",
		"0.0.0.0/0":        "node's address",
		"172.16.0.0/12":    "node's address",
		"192.0.2.0/24":     "API server's address",
		"10.244.0.0/16":    "pods' range",
		"10.244.1.64/26":   "", // a part of the pods' range: the kernel has both
	} {
		in.cidrs = []*kube.ServiceCIDR{{Name: kube.Name{Name: "x"}, Prefixes: []netip.Prefix{netip.MustParsePrefix(text)}}}
		s := in.state()
		why := s.refused[kube.Name{Name: "x"}]
		if (why != "") != (refused != "") || !strings.Contains(why, refused) || len(s.cidrs) != map[bool]int{true: 1}[refused == ""] {
			t.Errorf("%s: refused for %q, want %q; %v count", text, why, refused, s.cidrs)
		}
	}
}

// TestGuarded: what the node and the proxy depend on is no Service's, whatever objects say.
func TestGuarded(t *testing.T) {
	node, api := netip.MustParseAddr("172.18.0.11"), netip.MustParseAddrPort("192.0.2.5:6443")
	in := nodeInputs{
		config:    &config.Config{NodeIP: node, ExternalIPs: config.ExternalIPs{All: true}, Healthz: "0.0.0.0:10256"},
		apiServer: apiServer{clusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")}, endpoints: []netip.AddrPort{api}},
	}
	g := in.guard()
	for _, tt := range []struct {
		at      string
		source  services.ClaimSource
		proto   nft.Proto
		refused bool
	}{
		{"192.0.2.5:6443", services.FromUser, nft.TCP, true},
		{"192.0.2.5:6443", services.FromLoadBalancer, nft.TCP, true},
		{"192.0.2.5:6443", services.FromUser, nft.UDP, false},
		{"192.0.2.5:443", services.FromUser, nft.TCP, false},
		{"10.96.0.1:8443", services.FromUser, nft.TCP, true},
		{"10.96.0.1:443", services.FromAllocator, nft.TCP, false}, // default/kubernetes itself
		{"172.18.0.11:22", services.FromUser, nft.TCP, true},
		{"172.18.0.11:10250", services.FromUser, nft.TCP, true},
		{"172.18.0.11:10256", services.FromUser, nft.TCP, true},
		{"172.18.0.11:10250", services.FromLoadBalancer, nft.TCP, false},
		{"172.18.0.11:83", services.FromUser, nft.TCP, false}, // as with kube-proxy
		{"198.51.100.1:443", services.FromUser, nft.TCP, false},
	} {
		at := netip.MustParseAddrPort(tt.at)
		why := g.refuses(services.Claim{Family: nft.IPv4, Addr: at.Addr(), Proto: tt.proto, Port: at.Port(), Source: tt.source})
		if (why != "") != tt.refused {
			t.Errorf("%s of source %d: %q, want refused: %t", tt.at, tt.source, why, tt.refused)
		}
	}
	in.config.ExternalIPs = config.ExternalIPs{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	g = in.guard()
	for text, refused := range map[string]bool{"198.51.100.1": false, "203.0.113.1": true} {
		if why := g.refuses(services.Claim{Addr: netip.MustParseAddr(text), Port: 80, Source: services.FromUser}); (why != "") != refused {
			t.Errorf("%s: %q, want refused: %t", text, why, refused)
		}
	}
}
