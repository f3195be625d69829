// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/localhost"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Localhost serves NodePorts on loopback addresses: a localhost.Forwarder. Update must not block.
type Localhost interface {
	Update([]localhost.Change)
}

// nodeAddrs is one address per family, IPv4 first, at which this node takes NodePorts; invalid where it takes none.
type nodeAddrs [2]netip.Addr

func (a nodeAddrs) of(f nft.Family) netip.Addr { return a[familyIndex(f)] }

// localhostListener passes NodePorts on to Localhost. It remembers the addresses of the node that it passed on last.
type localhostListener struct {
	localhost Localhost // nil passes nothing on
	addrs     nodeAddrs
}

// committed passes on which NodePorts are to be served on loopback addresses, and where they lead. It costs as much as
// changed: only another address of the node concerns all Services, which all are.
func (l *localhostListener) committed(updates []*update, node *nodeState, local []netip.Addr, all map[kube.Name]*entry) {
	if l.localhost == nil {
		return
	}
	now, was := node.dialAddrs(local), l.addrs
	l.addrs = now
	var diff loopbackDiff
	for _, u := range updates {
		diff.add(loopbackPorts(u.name, u.prevPorts(), was), loopbackPorts(u.name, u.nextPorts(), now))
	}
	if now != was {
		for name, e := range all {
			diff.add(loopbackPorts(name, e.ports, was), loopbackPorts(name, e.ports, now))
		}
	}
	// What is gone comes first, because another Service may have it now.
	if changes := append(diff.gone, diff.wanted...); len(changes) > 0 {
		l.localhost.Update(changes)
	}
}

// loopbackDiff gathers what changes.
type loopbackDiff struct{ gone, wanted []localhost.Change }

func (d *loopbackDiff) add(before, after []localhost.Change) {
	had := make(map[localhost.Port]localhost.Target, len(before))
	for _, c := range before {
		had[c.Port] = c.Target
	}
	for _, c := range after {
		if target, was := had[c.Port]; !was || target != c.Target {
			d.wanted = append(d.wanted, c)
		}
		delete(had, c.Port)
	}
	for port := range had {
		d.gone = append(d.gone, localhost.Change{Port: port})
	}
}

// loopbackPorts are the NodePorts of a Service that have an endpoint somewhere. Where there is none, nothing is to
// listen, so that clients are refused.
func loopbackPorts(name kube.Name, ports []services.Port, node nodeAddrs) []localhost.Change {
	var out []localhost.Change
	for i := range ports {
		port := &ports[i]
		proto := port.Proto
		if port.NodePort == 0 || !port.Served || proto != kube.TCP && proto != kube.UDP {
			continue
		}
		if to := loopbackTarget(port, node.of(port.Family)); to.IsValid() {
			at := localhost.Port{IPv6: port.Family == nft.IPv6, Proto: proto, Number: port.NodePort}
			out = append(out, localhost.Change{Port: at, Target: localhost.Target{Owner: name, To: to}})
		}
	}
	return out
}

// loopbackTarget is where connections to a NodePort on a loopback address are led: to the ClusterIP, whose rules then
// balance. internalTrafficPolicy Local restricts the ClusterIP and does not concern NodePorts, so that with it the
// NodePort at an address of the node takes the ClusterIP's place: externalTrafficPolicy does not concern what the node
// itself sends, whatever it is. Only on a node that takes NodePorts on loopback addresses alone is there none such: there
// the internal policy counts.
func loopbackTarget(port *services.Port, node netip.Addr) netip.AddrPort {
	var cluster nft.Frontend // none where another Service has the address
	for i := range port.Frontends {
		if port.Frontends[i].Kind == nft.ClusterIP {
			cluster = port.Frontends[i]
		}
	}
	if node.IsValid() && (cluster.Local || !cluster.Addr.IsValid()) {
		return netip.AddrPortFrom(node, port.NodePort)
	}
	return netip.AddrPortFrom(cluster.Addr, cluster.Port)
}

// dialAddrs chooses the addresses at which NodePorts are dialed. Not every address in a Node's status is one of an
// interface. local are the addresses of the interfaces.
func (s *nodeState) dialAddrs(local []netip.Addr) (out nodeAddrs) {
	for i, f := range nft.Families() {
		addrs := s.families[i].nodePorts
		if s.families[i].config.NodePortAll {
			addrs = slices.Concat(s.facts.Addrs, addrs)
		}
		for _, a := range addrs {
			if nft.FamilyOf(a) == f && slices.Contains(local, a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				out[i] = a
				break
			}
		}
	}
	return out
}
