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

// Flows keeps conntrack in step with what is offered: a Syncer of ctsync/kernel. None of its methods may block for long.
type Flows interface {
	// Announce is called before a commit, Update after it.
	Announce([]ctsync.Change)
	Update([]ctsync.Change)
	// SetNodePortAddrs takes the addresses that take NodePorts.
	SetNodePortAddrs([]netip.Addr)
	SetServiceCIDRs([]netip.Prefix)
	// Resync checks all flows: once everything is committed, and after each repair of the tables.
	Resync()
}

// flowsListener passes on what is committed. It remembers what it passed on last.
type flowsListener struct {
	flows  Flows // nil passes nothing on
	addrs  []netip.Addr
	cidrs  []netip.Prefix
	synced bool
}

// announce passes on what a commit is about to offer.
func (l *flowsListener) announce(updates []*update) {
	if l.flows != nil {
		_, offered := flowChanges(updates)
		l.flows.Announce(offered)
	}
}

// committed passes on what a commit offers, and what it does not offer any more: the latter first, because another Service
// may have taken it over. before is, the first time, what the tables led to when the process started: no object names
// frontends that are gone since. repaired means that flows may have begun while the tables were not as they should be.
func (l *flowsListener) committed(updates []*update, node *nodeState, before []ctsync.Change, repaired bool) {
	if l.flows == nil {
		return
	}
	addrs := node.nodePortAddrs()
	if !slices.Equal(l.addrs, addrs) {
		l.flows.SetNodePortAddrs(addrs)
	}
	if !slices.Equal(l.cidrs, node.cidrs) {
		l.flows.SetServiceCIDRs(node.cidrs)
	}
	l.addrs, l.cidrs = addrs, node.cidrs
	gone, offered := flowChanges(updates)
	if !l.synced {
		gone = append(withRemoved(before, offered), gone...)
	}
	if changes := append(gone, offered...); len(changes) > 0 {
		l.flows.Update(changes)
	}
	if !l.synced || repaired {
		l.flows.Resync()
	}
	l.synced = true
}

// flowChanges returns the frontends that the updates take away and those that they add or change.
func flowChanges(updates []*update) (gone, offered []ctsync.Change) {
	taken := map[ctsync.Frontend]bool{}
	type offer struct {
		port    *services.Port
		steered bool
	}
	had := map[ctsync.Frontend]offer{} // of one Service
	for _, u := range updates {
		clear(had)
		for i := range u.prevPorts() {
			for _, c := range flowChangesOf(&u.prev.ports[i]) {
				had[c.Frontend] = offer{&u.prev.ports[i], c.Untranslated}
			}
		}
		for i := range u.nextPorts() {
			port := &u.next.ports[i]
			prev := u.prev.port(port)
			same := prev != nil && slices.Equal(prev.Serving, port.Serving) && slices.Equal(prev.Unready, port.Unready) && slices.Equal(prev.External, port.External)
			for _, c := range flowChangesOf(port) {
				taken[c.Frontend] = true
				if !same || had[c.Frontend] != (offer{prev, c.Untranslated}) {
					offered = append(offered, c)
				}
				delete(had, c.Frontend)
			}
		}
		for f := range had {
			gone = append(gone, ctsync.Change{Frontend: f, Removed: true})
		}
	}
	gone = slices.DeleteFunc(gone, func(c ctsync.Change) bool { return taken[c.Frontend] })
	return gone, offered
}

// withRemoved returns changes, each followed by its removal where nothing offers the frontend any more.
func withRemoved(before, offered []ctsync.Change) (out []ctsync.Change) {
	still := make(map[ctsync.Frontend]bool, len(offered))
	for _, c := range offered {
		still[c.Frontend] = true
	}
	for _, c := range before {
		out = append(out, c)
		if !still[c.Frontend] {
			out = append(out, ctsync.Change{Frontend: c.Frontend, Removed: true})
		}
	}
	return out
}

// flowsOffered is what a table leads to, in the terms of conntrack.
func flowsOffered(c *nft.Content) []ctsync.Change {
	var out []ctsync.Change
	for _, o := range c.Offered() {
		out = append(out, ctsync.Change{
			Frontend:  ctsync.Frontend{Addr: flowAddr(c.Family, o.Addr), Port: o.Port, Proto: o.Proto},
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
// the port is handed over to, and those that are left to another balancer are translated elsewhere.
func flowChangesOf(port *services.Port) []ctsync.Change {
	if port == nil {
		return nil
	}
	good := port.Serving
	if len(port.External) > 0 {
		good = slices.Concat(good, port.External)
	}
	out := make([]ctsync.Change, 0, len(port.Frontends))
	for i := range port.Frontends {
		f := &port.Frontends[i]
		out = append(out, ctsync.Change{
			Frontend:  ctsync.Frontend{Addr: flowAddr(port.Family, f.Addr), Port: f.Port, Proto: port.Proto},
			Endpoints: good, Unready: port.Unready, Untranslated: f.Steered || f.HandedOver,
		})
	}
	return out
}
