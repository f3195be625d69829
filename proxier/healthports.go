// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/health"
)

// portsListener brings the servers of health check node ports up to date.
type portsListener struct {
	listeners *health.Listeners
	wanted    health.Services
	addrs     []netip.Addr
}

// committed opens, closes and updates the servers that the updates are about.
func (l *portsListener) committed(updates []*update, node *nodeState) {
	changed := false
	for _, u := range updates {
		if u.kept {
			continue
		}
		name := types.NamespacedName{Namespace: u.name.Namespace, Name: u.name.Name}
		had, was := l.wanted[name]
		switch {
		case u.health.Port == 0 && was:
			delete(l.wanted, name)
			changed = true
		case u.health.Port != 0 && u.health != had:
			l.wanted[name] = u.health
			changed = true
		}
	}
	addrs := listenAddrs(node)
	if changed || !slices.Equal(addrs, l.addrs) {
		l.addrs = addrs
		l.listeners.Sync(l.wanted, addrs)
	}
}

// listenAddrs are the addresses that health check servers listen on: those that take NodePorts, the unspecified one for all
// of one family, nil for all.
func listenAddrs(node *nodeState) []netip.Addr {
	out := []netip.Addr{}
	all := 0
	for i, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		s := &node.families[i]
		if s.config.NodePortAll {
			all++
			out = append(out, any)
			continue
		}
		out = append(out, s.nodePorts...)
	}
	if all == len(nft.Families()) {
		return nil
	}
	slices.SortFunc(out, netip.Addr.Compare) // the servers move when the list does
	return out
}
