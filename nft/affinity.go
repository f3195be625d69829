// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Affinity is one sticky view of a Service: its own map of clients and the few rules that have to name it. It is the
// one thing that a table has per Service: a shared map would need client and VIP in its key, which for
// IPv6 is more than the 16 bytes that nft before 1.1 can load in a map update; and one map for all VIPs of a
// Service keeps a client on its endpoint whichever of them it uses, as kube-proxy does.
type Affinity struct {
	ID      uint32        `json:"-"` // distinct per table, below 1<<24
	Owner   string        `json:"-"` // the Service's name and the view, the map's comment
	View    View          `json:"v"`
	Modulus uint32        `json:"-"` // of the view's number of endpoints
	Timeout time.Duration `json:"t"` // since the client's last new connection
	Size    uint32        `json:"-"` // most clients; those beyond are balanced
	// NodePorts means that a frontend is a NodePort, VIPs that one is not.
	NodePorts, VIPs bool `json:"-"`
}

// AffinityMap is the name of the map of clients.
func AffinityMap(id uint32) string { return fmt.Sprintf("affinity-%d", id) }

// IsAffinityMap reports whether a set is a map of clients.
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

// draw is the program that draws an endpoint's id for one of the affinity's programs.
func (a *Affinity) draw(p Program) Program {
	kind := KindDraw
	if a.View == LocalView {
		kind = KindDrawLocal
	}
	return NewProgram(kind|p.Kind()&nodePortBit, a.Modulus)
}

// sameRules reports whether two versions of a sticky view have the same rules; everything else is data.
func (a *Affinity) sameRules(b *Affinity) bool {
	return a.ID == b.ID && a.View == b.View && a.Timeout == b.Timeout && a.NodePorts == b.NodePorts && a.VIPs == b.VIPs
}

// Names of the chains that all sticky views share. The maps of endpoints may be named by no rule of a single view: for an
// element that is added to a map the kernel looks at all rules that use the map.
const (
	stickyEndpoint = "sticky-endpoint" // to the endpoint of the id in the priority; back if there is none
	stickyDraw     = "sticky-draw"     // put an id in the place of the program in the priority
	stickySlot     = "sticky-slot"     // to the endpoint in the slot in the priority
)

// shared is the name of one of these chains for the keyspace of a kind.
func (k Kind) shared(chain string) string {
	if k.IsNodePort() {
		return "nodeport-" + chain
	}
	return chain
}

// stickyChains are the chains that all sticky views of a keyspace share.
func (l lang) stickyChains(k Kind) []Chain {
	ks := keyspaceOf(k)
	toEndpoint := l.dnat(ks.fromID.String(), ks.slotKey(l))
	return []Chain{
		{Name: k.shared(stickyEndpoint), Rules: []Rule{{"", toEndpoint}}},
		{Name: k.shared(stickySlot), Rules: []Rule{{"", all(find(ks.toID.String(), ks.slotKey(l)...), toEndpoint)}}},
		{Name: k.shared(stickyDraw), Rules: []Rule{
			{"", find(StickyDraws.String(), priority())},
			{"", dispatch(Draws)},
			{"the Service is gone meanwhile", one(verdict(expr.VerdictAccept, ""))},
		}},
	}
}

// DrawChain returns the chain of a draw: put the id of an endpoint, which is drawn, into the priority. Where
// no endpoint is left, nothing more is to be done for the packet.
func DrawChain(f Family, p Program) Chain {
	l, ks, v := lang{f}, keyspaceOf(p.Kind()), p.Kind().View()
	toID := all(find(ks.toID.String(), ks.slotKey(l)...), one(verdict(expr.VerdictReturn, "")))
	c := Chain{Name: p.Chain()}
	for range draws(p.Arg()) {
		c.Rules = append(c.Rules, Rule{"", all(random(v, p.Arg()), toID)})
	}
	c.Rules = append(c.Rules,
		Rule{"slot gone meanwhile", all(slot(v, 0), toID)},
		Rule{"no endpoint is left", one(verdict(expr.VerdictAccept, ""))})
	return c
}

// Chains returns the affinity's own chains, one for each keyspace.
func (a *Affinity) Chains(f Family) []Chain {
	var out []Chain
	for _, p := range a.programs() {
		out = append(out, a.chain(lang{f}, p))
	}
	return out
}

// chain holds what has to name the map of clients. The priority is the program at first; once the client is known, or an
// endpoint was drawn for it, it is the endpoint's id.
func (a *Affinity) chain(l lang, p Program) Chain {
	clients, k := AffinityMap(a.ID), p.Kind()
	known := find(clients, l.saddr())
	return Chain{Name: p.Chain(), Data: encodeData(a), Rules: []Rule{
		{"a client that is known", all(known, l.remember(unix.NFT_DYNSET_OP_UPDATE, clients, a.Timeout))},
		{"", one(jump(k.shared(stickyEndpoint)))},
		{"its endpoint is gone", all(key([]load{priority()}), one(notEqual(native(uint32(p)))),
			l.remember(dynsetDelete, clients, 0), one(immediate(uint32(p)), setPriority()))},
		{"", one(jump(k.shared(stickyDraw)))},
		{"a full map breaks this rule only", l.remember(unix.NFT_DYNSET_OP_ADD, clients, a.Timeout)},
		{"what a racing connection stored", known},
		{"", one(jump(k.shared(stickyEndpoint)))},
		// What was drawn is gone already. That it is remembered is for the client's next connection to find out.
		{"its endpoint is gone", all(slot(a.View, 0), one(goTo(k.shared(stickySlot))))},
	}}
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

// affinitySpec is the declaration of the map of clients.
func affinitySpec(a Affinity) setSpec {
	return setSpec{
		name: AffinityMap(a.ID), key: []field{fieldAddr}, data: []field{fieldClassID},
		dynamic: true, size: a.Size, comment: a.Owner,
	}
}

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
	l, ks, v := lang{f}, keyspaceOf(p.Kind()), p.Kind().View()
	draw := Rule{"", all(random(v, p.Arg()), l.dnat(ks.endpoints.String(), ks.slotKey(l)))}
	c := Chain{Name: p.Chain()}
	for range draws(p.Arg()) {
		c.Rules = append(c.Rules, draw)
	}
	c.Rules = append(c.Rules, Rule{"slot gone meanwhile", all(slot(v, 0), l.dnat(ks.endpoints.String(), ks.slotKey(l)))})
	return c
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
