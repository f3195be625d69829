// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
)

// Tally counts tracked connections of one family by Service port. Its memory grows with the Services that are shown, not
// with the connections. Not safe for concurrent use.
type Tally struct {
	fronts map[Key]*counted
	local  func(netip.Addr) bool
}

// counted is a frontend and its Service port.
type counted struct {
	port     *ServicePort
	frontend *Frontend
	known    *map[netip.AddrPort]string // the endpoints of the port, shared by its frontends
}

// NewTally returns a Tally of those Service ports that are of a family, with all counts 0. local returns whether an
// address is one of the node's own, which take NodePorts.
func NewTally(f nft.Family, ports []ServicePort, local func(netip.Addr) bool) *Tally {
	t := &Tally{fronts: make(map[Key]*counted, len(ports)), local: local}
	for i := range ports {
		p := &ports[i]
		if p.Family != f.String() {
			continue
		}
		proto, _ := nft.ParseProto(p.Protocol)
		known := new(map[netip.AddrPort]string)
		for j := range p.Frontends {
			fr := &p.Frontends[j]
			addr, _ := netip.ParseAddr(fr.Address) // a NodePort has none
			t.fronts[Key{addr, proto, fr.Port}] = &counted{p, fr, known}
		}
	}
	t.Begin()
	return t
}

// Begin sets all counts to 0.
func (t *Tally) Begin() {
	for _, c := range t.fronts {
		c.port.Flows, c.frontend.Flows = &Flows{}, new(int)
	}
}

// Count counts a flow whose destination was translated, if it is to one of the Service ports.
func (t *Tally) Count(f *ctsync.Flow) {
	at := Key{f.Dst.Addr(), f.Proto, f.Dst.Port()}
	c := t.fronts[at]
	if c == nil && t.local(at.Addr) {
		at.Addr = netip.Addr{}
		c = t.fronts[at]
	}
	if c == nil {
		return
	}
	*c.frontend.Flows++
	c.port.Flows.Total++
	if *c.known == nil {
		*c.known = map[netip.AddrPort]string{}
		for _, list := range [][]string{c.port.Endpoints.Cluster, c.port.Endpoints.Local} {
			for _, text := range list {
				if a, err := netip.ParseAddrPort(text); err == nil {
					(*c.known)[a] = text
				}
			}
		}
	}
	text, ok := (*c.known)[f.ReplySrc]
	if !ok {
		c.port.Flows.Elsewhere++
		return
	}
	if c.port.Flows.Endpoints == nil {
		c.port.Flows.Endpoints = map[string]int{}
	}
	c.port.Flows.Endpoints[text]++
}
