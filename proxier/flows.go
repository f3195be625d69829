// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Flows is told what is offered: a Syncer of ctsync/kernel. None of its methods may block for long.
type Flows interface {
	// Announce comes before a commit, Update after it.
	Announce([]ctsync.Change)
	Update([]ctsync.Change)
	// SetNodePortAddrs takes the addresses that take NodePorts.
	SetNodePortAddrs([]netip.Addr)
	SetServiceCIDRs([]netip.Prefix)
	// Resync comes once, when everything is known and committed.
	Resync()
}

// announce tells what a commit is about to offer.
func (p *Proxier) announce(updates []*update) {
	if p.opt.Flows != nil {
		_, offered := flowChanges(updates)
		p.opt.Flows.Announce(offered)
	}
}

// tellFlows tells what a commit offers, and what it does not offer any more: the latter first, because another
// Service may have taken it over.
func (p *Proxier) tellFlows(updates []*update) {
	if p.opt.Flows == nil {
		return
	}
	if addrs := p.around.nodePortAddrs(); !slices.Equal(p.flowsAt.nodePortAddrs(), addrs) {
		p.opt.Flows.SetNodePortAddrs(addrs)
	}
	if !slices.Equal(p.flowsAt.cidrs, p.around.cidrs) {
		p.opt.Flows.SetServiceCIDRs(p.around.cidrs)
	}
	p.flowsAt = p.around
	gone, offered := flowChanges(updates)
	gone = append(p.flowsBefore(offered), gone...)
	if changes := append(gone, offered...); len(changes) > 0 {
		p.opt.Flows.Update(changes)
	}
	if !p.synced {
		p.opt.Flows.Resync()
	}
}

// nodePortAddrs are the addresses that take NodePorts, IPv4 first. Where all do, loopback and link-local ones are left
// out: the rules do not serve NodePorts on the former, and each new interface of a pod has one of the latter.
func (s *surroundings) nodePortAddrs() (out []netip.Addr) {
	for _, f := range nft.Families() {
		fam := s.byFam[f]
		out = append(out, fam.nodePorts...)
		for _, a := range s.local {
			if fam.config.NodePortAll && nft.FamilyOf(a) == f && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				out = append(out, a)
			}
		}
	}
	return out
}

// flowChanges returns the frontends that the updates take away and those that they add or change.
func flowChanges(updates []*update) (gone, offered []ctsync.Change) {
	taken := map[ctsync.Frontend]bool{}
	for _, u := range updates {
		for i := range u.nextPorts() {
			port := &u.next.ports[i]
			prev := u.prev.port(port)
			was := flowChangesOf(prev)
			same := prev != nil && slices.Equal(prev.Serving, port.Serving) && slices.Equal(prev.Beyond, port.Beyond)
			for _, c := range flowChangesOf(port) {
				taken[c.Frontend] = true
				if !same || !slices.ContainsFunc(was, func(o ctsync.Change) bool {
					return o.Frontend == c.Frontend && o.Untranslated == c.Untranslated
				}) {
					offered = append(offered, c)
				}
			}
		}
	}
	for _, u := range updates {
		for i := range u.prevPorts() {
			for _, c := range flowChangesOf(&u.prev.ports[i]) {
				if !taken[c.Frontend] {
					gone = append(gone, ctsync.Change{Frontend: c.Frontend, Removed: true})
				}
			}
		}
	}
	return gone, offered
}

// flowsBefore returns, the first time, what the tables led to when we came: a frontend that is no more has flows that
// nobody else will miss.
func (p *Proxier) flowsBefore(offered []ctsync.Change) []ctsync.Change {
	var out []ctsync.Change
	still := map[ctsync.Frontend]bool{}
	for _, c := range offered {
		still[c.Frontend] = true
	}
	for _, f := range p.families {
		for _, c := range p.formerly[f] {
			out = append(out, c)
			if !still[c.Frontend] {
				out = append(out, ctsync.Change{Frontend: c.Frontend, Removed: true})
			}
		}
	}
	clear(p.formerly)
	return out
}

// flowsOffered is what a table leads to, in the terms of conntrack.
func flowsOffered(c *nft.Content) []ctsync.Change {
	var out []ctsync.Change
	for _, o := range c.Offered() {
		out = append(out, ctsync.Change{
			Frontend:  ctsync.Frontend{Addr: flowAddr(c.Family, o.Addr), Port: o.Port, Proto: ctsync.Proto(o.Proto)},
			Endpoints: o.Endpoints,
		})
	}
	return out
}

// flowAddr is the address of a frontend, which for a NodePort is the unspecified one.
func flowAddr(f nft.Family, a netip.Addr) netip.Addr {
	switch {
	case a.IsValid():
		return a
	case f == nft.IPv4:
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// flowChangesOf are the frontends of a port in the terms of conntrack, with what they offer. Flows may also go to what
// the port is handed over to, and those of a steered frontend are translated elsewhere.
func flowChangesOf(port *services.Port) []ctsync.Change {
	if port == nil {
		return nil
	}
	good := port.Serving
	if len(port.Beyond) > 0 {
		good = slices.Concat(good, port.Beyond)
	}
	out := make([]ctsync.Change, 0, len(port.Frontends))
	for i := range port.Frontends {
		f := &port.Frontends[i]
		out = append(out, ctsync.Change{
			Frontend:  ctsync.Frontend{Addr: flowAddr(port.Family, f.Addr), Port: f.Port, Proto: ctsync.Proto(port.Proto)},
			Endpoints: good, Untranslated: f.Steered,
		})
	}
	return out
}
