// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/localhost"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// loopbackState is what a Localhost was told, as it stands.
type loopbackState map[localhost.Port]localhost.Target

func (s loopbackState) Update(changes []localhost.Change) {
	for _, c := range changes {
		if s[c.Port] = c.Target; c.Target == (localhost.Target{}) {
			delete(s, c.Port)
		}
	}
}

// String is sorted, one port after the other.
func (s loopbackState) String() string {
	var lines []string
	for p, t := range s {
		lines = append(lines, fmt.Sprintf("%s=%s:%s", p, t.Owner.Name, t.To))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// nodePort is one port of a Service with ClusterIP 10.0.0.1:80.
func nodePort(number uint16, change ...func(*services.Port)) *entry {
	p := services.Port{Family: nft.IPv4, NodePort: number, Service: nft.Service{
		Name: "p", Proto: nft.TCP, Served: true,
		Frontends: []nft.Frontend{
			{Kind: nft.ClusterIP, Addr: netip.MustParseAddr("10.0.0.1"), Port: 80},
			{Kind: nft.NodePort, Port: number},
		},
	}}
	for _, c := range change {
		c(&p)
	}
	return &entry{ports: []services.Port{p}}
}

// Where connections to localhost are led, and when nobody listens.
func TestLoopbackTarget(t *testing.T) {
	internalLocal := func(p *services.Port) { p.Frontends[0].Local = true }
	noClusterIP := func(p *services.Port) { p.Frontends = p.Frontends[1:] }
	node := nodeAddrs{netip.MustParseAddr("172.18.0.11")}
	for _, c := range []struct {
		name string
		e    *entry
		node nodeAddrs
		want string
	}{
		{"ClusterIP", nodePort(30080), node, "tcp 127.0.0.1:30080=web:10.0.0.1:80"},
		{"external Local", nodePort(30080, func(p *services.Port) { p.Frontends[1].Local = true }), node, "tcp 127.0.0.1:30080=web:10.0.0.1:80"},
		{"internal Local", nodePort(30080, internalLocal), node, "tcp 127.0.0.1:30080=web:172.18.0.11:30080"},
		{"internal Local, no NodePorts at the node", nodePort(30080, internalLocal), nodeAddrs{}, "tcp 127.0.0.1:30080=web:10.0.0.1:80"},
		{"ClusterIP of another", nodePort(30080, noClusterIP), node, "tcp 127.0.0.1:30080=web:172.18.0.11:30080"},
		{"nowhere to go", nodePort(30080, noClusterIP), nodeAddrs{}, ""},
		{"no endpoint", nodePort(30080, func(p *services.Port) { p.Served = false }), node, ""},
		{"NodePort of another", nodePort(0), node, ""},
		{"SCTP", nodePort(30080, func(p *services.Port) { p.Proto = nft.SCTP }), node, ""},
		{"UDP over IPv6", nodePort(30080, func(p *services.Port) {
			p.Proto, p.Family, p.Frontends[0].Addr = nft.UDP, nft.IPv6, netip.MustParseAddr("fd00::1")
		}), node, "udp [::1]:30080=web:[fd00::1]:80"},
	} {
		got := loopbackState{}
		got.Update(loopbackPorts(kube.Name{Namespace: "d", Name: "web"}, c.e.ports, c.node))
		if got.String() != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// What is passed on adds up to what is committed, through all that can happen to a NodePort.
func TestLocalhostListener(t *testing.T) {
	state := loopbackState{}
	l, committed := localhostListener{localhost: state}, map[kube.Name]*entry{}
	a, b := kube.Name{Namespace: "d", Name: "a"}, kube.Name{Namespace: "d", Name: "b"}
	local := func(p *services.Port) { p.Frontends[0].Local = true }
	var addrs []netip.Addr
	var node nodeState
	at := func(addr string) {
		addrs = []netip.Addr{netip.MustParseAddr(addr)}
		node.families[0].nodePorts = addrs
	}
	at("172.18.0.11")
	for _, step := range []struct {
		name string
		do   func() map[kube.Name]*entry
		want string
	}{
		{"new", func() map[kube.Name]*entry { return map[kube.Name]*entry{a: nodePort(1), b: nodePort(2, local)} },
			"tcp 127.0.0.1:1=a:10.0.0.1:80 tcp 127.0.0.1:2=b:172.18.0.11:2"},
		{"exchanged", func() map[kube.Name]*entry { return map[kube.Name]*entry{a: nodePort(2), b: nodePort(1, local)} },
			"tcp 127.0.0.1:1=b:172.18.0.11:1 tcp 127.0.0.1:2=a:10.0.0.1:80"},
		{"another address of the node", func() map[kube.Name]*entry { at("172.18.0.12"); return nil },
			"tcp 127.0.0.1:1=b:172.18.0.12:1 tcp 127.0.0.1:2=a:10.0.0.1:80"},
		{"handed over", func() map[kube.Name]*entry { return map[kube.Name]*entry{a: nil, b: nodePort(2, local)} },
			"tcp 127.0.0.1:2=b:172.18.0.12:2"},
		{"no endpoint", func() map[kube.Name]*entry {
			return map[kube.Name]*entry{b: nodePort(2, func(p *services.Port) { p.Served = false })}
		}, ""},
		{"served again", func() map[kube.Name]*entry { return map[kube.Name]*entry{b: nodePort(2)} },
			"tcp 127.0.0.1:2=b:10.0.0.1:80"},
		{"gone", func() map[kube.Name]*entry { return map[kube.Name]*entry{b: nil} }, ""},
	} {
		var updates []*update
		for name, next := range step.do() {
			updates = append(updates, &update{name: name, prev: committed[name], next: next})
			committed[name] = next
			if next == nil {
				delete(committed, name)
			}
		}
		l.committed(updates, &node, addrs, committed)
		if state.String() != step.want {
			t.Errorf("%s: %q, want %q", step.name, state, step.want)
		}
	}
}
