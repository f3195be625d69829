// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// service makes the Service port of its frontends.
func (c *collector) service(o owner, fronts []*front) ServicePort {
	slices.SortFunc(fronts, func(a, b *front) int {
		return cmp.Or(cmp.Compare(c.kind(a), c.kind(b)), a.addr.Compare(b.addr), cmp.Compare(a.port, b.port))
	})
	p := ServicePort{Name: o.name, Family: c.snapshot.Family.String(), Protocol: o.proto.String()}
	p.Namespace, p.Service, p.Port = splitName(o.name)
	for _, f := range fronts {
		f.handedTo = c.handedTo(f, fronts)
		p.Frontends = append(p.Frontends, c.frontend(f))
		c.affinity(&p, f)
	}
	var cluster, local []netip.AddrPort
	cluster, p.Problems = c.common(fronts, nft.ClusterView, p.Problems)
	local, p.Problems = c.common(fronts, nft.LocalView, p.Problems)
	p.Endpoints = Endpoints{Cluster: texts(cluster), Local: texts(local), Hairpin: texts(c.hairpins(o.proto, cluster, local))}
	for _, f := range fronts {
		p.Problems = append(p.Problems, c.problems(f)...)
	}
	return p
}

// common returns the endpoints that the frontends have in a view, and notes when they do not agree. One that has
// none may not need the view, and what another balancer serves has its own.
func (c *collector) common(fronts []*front, v nft.View, problems []string) ([]netip.AddrPort, []string) {
	var out []netip.AddrPort
	for _, f := range fronts {
		switch eps := f.endpoints(v); {
		case len(eps) == 0, f.handedTo.IsValid() && slices.Contains(eps, f.handedTo):
		case out == nil:
			out = eps
		case c.handOff && c.kind(f) != nft.ClusterIP: // of these, processes of the node get it all
		case !slices.Equal(out, eps):
			problems = append(problems, fmt.Sprintf("%s has other endpoints in the %s view than the frontends before it", f, v))
		}
	}
	return out, problems
}

// handedTo returns what a frontend's traffic is translated to for another balancer, not valid if for none: the ClusterIP, or
// an address with the Service's NodePort.
func (c *collector) handedTo(f *front, fronts []*front) netip.AddrPort {
	if !c.handOff || c.kind(f) == nft.ClusterIP {
		return netip.AddrPort{}
	}
	cluster, local := f.endpoints(nft.ClusterView), f.endpoints(nft.LocalView)
	if len(cluster) == 1 && c.clusterIPs[cluster[0].Addr()] {
		return cluster[0]
	}
	for _, o := range fronts {
		if len(local) == 1 && !o.addr.IsValid() && o.port == local[0].Port() && !slices.Contains(cluster, local[0]) {
			return local[0]
		}
	}
	return netip.AddrPort{}
}

func (f *front) String() string {
	if !f.addr.IsValid() {
		return fmt.Sprintf("NodePort %d", f.port)
	}
	return netip.AddrPortFrom(f.addr, f.port).String()
}

func (c *collector) kind(f *front) nft.FrontendKind {
	switch {
	case !f.addr.IsValid():
		return nft.NodePort
	case c.clusterIPs[f.addr]:
		return nft.ClusterIP
	}
	return nft.External
}

func (c *collector) frontend(f *front) Frontend {
	out := Frontend{Kind: KindName(c.kind(f)), Port: f.port, Policy: c.policy(f), State: f.state(), Restricted: f.restricted}
	if f.addr.IsValid() {
		out.Address = f.addr.String()
	}
	out.Steered = f.steered
	if f.handedTo.IsValid() {
		out.HandedTo = f.handedTo.String()
	}
	if f.hostEndpoint.IsValid() {
		out.HostEndpoint = f.hostEndpoint.String()
	}
	if f.program != 0 {
		out.Program = f.program.Chain()
	}
	slices.SortFunc(f.sources, func(a, b nft.Range) int { return a.From.Compare(b.From) })
	for _, r := range f.sources {
		out.SourceRanges = append(out.SourceRanges, prefixes(r)...)
	}
	return out
}

// KindName is the word for a kind of frontend.
func KindName(k nft.FrontendKind) string { return [...]string{"ClusterIP", "External", "NodePort"}[k] }

func (f *front) state() State {
	switch {
	case f.program != 0 && f.dropped:
		return Internal
	case f.program != 0:
		return Served
	case f.dropped:
		return Dropped
	case f.refused:
		return Refused
	}
	return Dropped // elements without any that decide: the packet goes nowhere
}

// policy is the traffic policy as far as the elements tell: what is dropped is so because of the Local policy.
func (c *collector) policy(f *front) string {
	local := f.dropped
	switch k := f.program.Kind(); {
	case f.program == 0 && !f.dropped:
		return ""
	case k.IsAffinity():
		local = c.affinities[f.program.Arg()].View == nft.LocalView
	case k == nft.KindLocal, k == nft.KindExternalLocal, k == nft.KindNodePortExternalLocal:
		local = true
	}
	if local {
		return "Local"
	}
	return "Cluster"
}

// affinity notes the sticky views that a frontend leads to.
func (c *collector) affinity(p *ServicePort, f *front) {
	for _, program := range []nft.Program{f.program, f.views[nft.ClusterView], f.views[nft.LocalView]} {
		a, ok := c.affinities[program.Arg()]
		if !program.Kind().IsAffinity() || !ok {
			continue
		}
		if p.Affinity == nil {
			p.Affinity = &Affinity{TimeoutSeconds: int(a.Timeout / time.Second), Size: a.Size}
		}
		if n, known := c.clients[a.ID]; known {
			if p.Affinity.Clients == nil {
				p.Affinity.Clients = map[string]int{}
			}
			p.Affinity.Clients[a.View.String()] = n
		}
	}
}

// hairpins returns those endpoints that are masqueraded when they reach themselves.
func (c *collector) hairpins(p nft.Proto, views ...[]netip.AddrPort) (out []netip.AddrPort) {
	seen := map[netip.AddrPort]bool{}
	for _, view := range views {
		for _, e := range view {
			if c.hairpin[p][e] && !seen[e] {
				seen[e] = true
				out = append(out, e)
			}
		}
	}
	return out
}

// texts prints endpoints; an empty slot is "".
func texts(eps []netip.AddrPort) (out []string) {
	for _, e := range eps {
		text := ""
		if e.IsValid() {
			text = e.String()
		}
		out = append(out, text)
	}
	return out
}
