// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
)

// Conntrack is how the flows of a Dump were counted.
type Conntrack struct {
	// Scanned is the number of entries looked at, Exact that the table held still meanwhile.
	Scanned int  `json:"scanned"`
	Exact   bool `json:"exact"`
}

// Flows are the tracked connections of a Service port.
type Flows struct {
	Total int `json:"total"`
	// Endpoints counts them by who answers, Elsewhere those that go to none of the endpoints in the tables: to one that
	// terminates, or one that is gone.
	Endpoints map[string]int `json:"endpoints,omitempty"`
	Elsewhere int            `json:"elsewhere,omitempty"`
}

// Tally counts tracked connections of one family by Service port. Its memory follows the Services that are shown, not the
// connections. Not safe for concurrent use.
type Tally struct {
	fronts map[place]*counted
	local  func(netip.Addr) bool
}

// counted is a frontend, and the port that it belongs to.
type counted struct {
	port     *ServicePort
	frontend *Frontend
	known    *map[netip.AddrPort]string // of the port: its endpoints, with their texts
}

// NewTally returns a Tally of those Service ports that are of a family, all with a count of none. local tells the node's own
// addresses, which take NodePorts.
func NewTally(f nft.Family, ports []ServicePort, local func(netip.Addr) bool) *Tally {
	t := &Tally{fronts: make(map[place]*counted, len(ports)), local: local}
	for i := range ports {
		p := &ports[i]
		if p.Family != f.String() {
			continue
		}
		proto, _ := nft.ParseProto(p.Protocol)
		known := new(map[netip.AddrPort]string)
		for j := range p.Frontends {
			fr := &p.Frontends[j]
			at := place{proto: proto, port: fr.Port}
			if fr.Address != "" {
				at.addr, _ = netip.ParseAddr(fr.Address)
			}
			t.fronts[at] = &counted{p, fr, known}
		}
	}
	t.Begin()
	return t
}

// Begin sets all counts to none.
func (t *Tally) Begin() {
	for _, c := range t.fronts {
		c.port.Flows, c.frontend.Flows = &Flows{}, new(int)
	}
}

// Count counts a flow whose destination was translated, if it is to one of the Service ports.
func (t *Tally) Count(f *ctsync.Flow) {
	at := place{f.Dst.Addr(), nft.Proto(f.Proto), f.Dst.Port()}
	c := t.fronts[at]
	if c == nil && t.local(at.addr) {
		at.addr = netip.Addr{}
		c = t.fronts[at]
	}
	if c == nil {
		return
	}
	*c.frontend.Flows++
	c.port.Flows.Total++
	if *c.known == nil {
		*c.known = c.port.Endpoints.addrs()
	}
	text, ok := (*c.known)[f.From]
	if !ok {
		c.port.Flows.Elsewhere++
		return
	}
	if c.port.Flows.Endpoints == nil {
		c.port.Flows.Endpoints = map[string]int{}
	}
	c.port.Flows.Endpoints[text]++
}

// addrs are the endpoints of both views.
func (e *Endpoints) addrs() map[netip.AddrPort]string {
	out := map[netip.AddrPort]string{}
	for _, list := range [][]string{e.Cluster, e.Local} {
		for _, text := range list {
			if a, err := netip.ParseAddrPort(text); err == nil {
				out[a] = text
			}
		}
	}
	return out
}
