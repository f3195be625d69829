// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
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
		rules  nft.Beyond
		both   bool // the same in IPv6; otherwise nothing there
	}{
		{"nothing", routing.Config{}, services.External{}, nft.Beyond{}, true},
		{"reach", routing.Config{Reach: routing.Reach{Enabled: true}}, services.External{}, nft.Beyond{}, true},
		{"steering", routing.Config{Steering: routing.Steering{Enabled: true, Device: "mp0", Gateways: hops}},
			services.External{Steering: true}, nft.Beyond{Steering: true, SteeringHop: hops[0].Addr, Mark: routing.DefaultMark, Mask: ^uint32(0)}, true},
		{"steering of one family", routing.Config{Steering: routing.Steering{Enabled: true, Device: "mp0", Gateways: hops[:1]}},
			services.External{Steering: true}, nft.Beyond{Steering: true, SteeringHop: hops[0].Addr, Mark: routing.DefaultMark, Mask: ^uint32(0)}, false},
		{"hand-off, Cluster", routing.Config{HandOff: routing.HandOff{Enabled: true, Device: "mp0", Cluster: true, Gateways: hops}},
			services.External{Cluster: true}, nft.Beyond{HandOff: true, HandOffHop: hops[0].Addr}, true},
		{"hand-off, Local, of one family", routing.Config{Subnets: []netip.Prefix{subnet}, HandOff: routing.HandOff{Enabled: true, Device: "mp0", Local: true}},
			services.External{Virtual: etp}, nft.Beyond{HandOff: true, HandOffHop: dot4, Virtual: etp}, false},
		{"masquerade at the hand-off device", routing.Config{Subnets: []netip.Prefix{subnet}, Device: "eth0", Masquerade: routing.Masquerade{Enabled: true},
			HandOff: routing.HandOff{Enabled: true, Device: "mp0", Local: true}},
			services.External{Virtual: etp}, nft.Beyond{HandOff: true, HandOffHop: dot4, Virtual: etp, Subnet: subnet, Device: "mp0"}, false},
		{"masquerade at the service device, by alias", routing.Config{Subnets: []netip.Prefix{subnet}, Device: "uplink", Masquerade: routing.Masquerade{Enabled: true}},
			services.External{}, nft.Beyond{Subnet: subnet, Device: "eth0"}, false},
		{"masquerade at the node's device", routing.Config{Subnets: []netip.Prefix{subnet}, Masquerade: routing.Masquerade{Enabled: true}},
			services.External{}, nft.Beyond{Subnet: subnet, Device: "eth1"}, false},
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
			if s.external[0] != tt.build || s.families[0].config.Beyond != tt.rules {
				t.Errorf("IPv4: %+v and %+v, want %+v and %+v", s.external[0], s.families[0].config.Beyond, tt.build, tt.rules)
			}
			if tt.rules.SteeringHop.IsValid() {
				tt.rules.SteeringHop = hops[1].Addr
			}
			if tt.rules.HandOffHop.IsValid() {
				tt.rules.HandOffHop = hops[1].Addr
			}
			if !tt.both {
				tt.build, tt.rules = services.External{}, nft.Beyond{}
			}
			if s.external[1] != tt.build || s.families[1].config.Beyond != tt.rules {
				t.Errorf("IPv6: %+v and %+v, want %+v and %+v", s.external[1], s.families[1].config.Beyond, tt.build, tt.rules)
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
