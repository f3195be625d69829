// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keyspace is how a frontend is looked up: by VIP, or by NodePort alone.
type keyspace struct {
	nodePort                bool
	endpoints, toID, fromID SetID
}

func keyspaceOf(k Kind) keyspace {
	if k.IsNodePort() {
		return keyspace{true, NodePortEndpoints, NodePortEndpointIDs, NodePortEndpointsByID}
	}
	return keyspace{false, Endpoints, EndpointIDs, EndpointsByID}
}

// slotKey is the key of an endpoint: what is addressed, and the slot or id in the priority.
func (k keyspace) slotKey(l lang) []load {
	if k.nodePort {
		return append(port(), priority())
	}
	return append(l.vip(), priority())
}

// BalancerChain returns the chain of a balancer, KindCluster or the like: draw a slot and go to its endpoint.
// Slot 0 is the way out for a packet that a commit overtook.
func BalancerChain(f Family, p Program) Chain {
	l, ks, v := lang{f}, keyspaceOf(p.Kind()), viewOf(p.Kind())
	draw := Rule{"", all(random(v, p.Arg()), l.dnat(ks.endpoints.String(), ks.slotKey(l)))}
	c := Chain{Name: p.Chain()}
	for range draws(p.Arg()) {
		c.Rules = append(c.Rules, draw)
	}
	c.Rules = append(c.Rules, Rule{"slot gone meanwhile", all(slot(v, 0), l.dnat(ks.endpoints.String(), ks.slotKey(l)))})
	return c
}

func viewOf(k Kind) View {
	if k == KindLocal || k == KindNodePortLocal {
		return LocalView
	}
	return ClusterView
}

// Affinity is one sticky view of a Service: its own map of clients and its own chains. It is the one thing
// besides balancers that a table has per Service: a shared map would need client and VIP in its key, which for
// IPv6 is more than the 16 bytes that nft before 1.1 can load in a map update; and one map for all VIPs of a
// Service keeps a client on its endpoint whichever of them it uses, as kube-proxy does.
type Affinity struct {
	ID      uint32        // distinct per table, below 1<<24
	Owner   string        // the Service's name and the view, the map's comment
	View    View          //
	Modulus uint32        // of the view's number of endpoints
	Timeout time.Duration // since the client's last new connection
	Size    uint32        // most clients; those beyond are balanced
	// NodePorts tells that a frontend is a NodePort, VIPs that one is not.
	NodePorts, VIPs bool
}

// AffinityMap is the name of the map of clients.
func AffinityMap(id uint32) string { return fmt.Sprintf("affinity-%d", id) }

// IsAffinityMap tells such names from those of other sets.
func IsAffinityMap(name string) bool { return strings.HasPrefix(name, "affinity-") }

// AffinityOwner is the comment of the map of clients of a view.
func AffinityOwner(service string, v View) string { return cutComment(service + " " + v.String()) }

// dynsetDelete is NFT_DYNSET_OP_DELETE (Linux 5.4).
const dynsetDelete = 2

// programs are the programs that lead to the affinity's chains.
func (a *Affinity) programs() (out []Program) {
	if a.VIPs {
		out = append(out, NewProgram(KindAffinity, a.ID))
	}
	if a.NodePorts {
		out = append(out, NewProgram(KindNodePortAffinity, a.ID))
	}
	return out
}

// Chains returns the affinity's chains, callees first. The client's endpoint id is in the priority.
func (a *Affinity) Chains(f Family) []Chain {
	var out []Chain
	for _, p := range a.programs() {
		out = append(out, a.chains(lang{f}, p)...)
	}
	return out
}

func (a *Affinity) chains(l lang, p Program) []Chain {
	ks := keyspaceOf(p.Kind())
	clients, name := AffinityMap(a.ID), p.Chain()
	known := find(clients, l.saddr())
	toEndpoint := l.dnat(ks.fromID.String(), ks.slotKey(l))
	hit := Chain{Name: name + "-hit", Rules: []Rule{
		{"", l.remember(unix.NFT_DYNSET_OP_UPDATE, clients, a.Timeout)},
		{"", toEndpoint},
		{"its endpoint is gone", l.remember(dynsetDelete, clients, 0)},
	}}
	pick := Chain{Name: name + "-new", Rules: []Rule{
		{"a full map breaks this rule only", l.remember(unix.NFT_DYNSET_OP_ADD, clients, a.Timeout)},
		{"what a racing connection stored", known},
		{"", toEndpoint},
		{"its endpoint is gone", l.remember(dynsetDelete, clients, 0)},
		{"", all(slot(a.View, 0), find(ks.toID.String(), ks.slotKey(l)...), toEndpoint)},
	}}
	main := Chain{Name: name, Rules: []Rule{{"", all(known, one(jump(hit.Name)))}}}
	toID := all(find(ks.toID.String(), ks.slotKey(l)...), one(goTo(pick.Name)))
	for range draws(a.Modulus) {
		main.Rules = append(main.Rules, Rule{"", all(random(a.View, a.Modulus), toID)})
	}
	main.Rules = append(main.Rules, Rule{"slot gone meanwhile", all(slot(a.View, 0), toID)})
	return []Chain{hit, pick, main}
}

// Affinities returns the sticky views of a Service that have endpoints.
func (s *Service) Affinities() []Affinity {
	if s.Affinity == 0 {
		return nil
	}
	var views [2]Affinity
	for i := range s.Frontends {
		f := &s.Frontends[i]
		for _, v := range f.views() {
			a := &views[v]
			a.NodePorts = a.NodePorts || f.Kind == NodePort
			a.VIPs = a.VIPs || f.Kind != NodePort
		}
	}
	var out []Affinity
	for _, v := range []View{ClusterView, LocalView} {
		a, n := views[v], len(s.endpoints(v))
		if n == 0 || !a.VIPs && !a.NodePorts {
			continue
		}
		a.ID, a.Owner, a.View, a.Modulus, a.Timeout = s.AffinityIDs[v], AffinityOwner(s.Name, v), v, Modulus(n), s.Affinity
		a.Size = s.AffinitySize
		out = append(out, a)
	}
	return out
}

// AffinityOwners are the owners of the sticky views that a Service may have (see AffinityOwner).
func (s *Service) AffinityOwners() []string {
	if s.Affinity == 0 {
		return nil
	}
	return []string{AffinityOwner(s.Name, ClusterView), AffinityOwner(s.Name, LocalView)}
}

// Balancers returns the balancers that a Service's programs name, with repetitions.
func (s *Service) Balancers() []Program {
	var out []Program
	for i := range s.Frontends {
		f := &s.Frontends[i]
		for _, v := range f.views() {
			if len(s.endpoints(v)) > 0 {
				if p := s.balancer(f, v); !p.Kind().IsAffinity() {
					out = append(out, p)
				}
			}
		}
	}
	return out
}
