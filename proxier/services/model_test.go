// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// The model says in sets and loops what docs and KEPs say of the choice of endpoints, with no thought of cost. It does
// not know which of several endpoints at one address and port counts, as long as they agree on whether they terminate:
// nobody says that, so cases in which it matters are left out.

type modelEndpoint struct {
	at     netip.AddrPort
	object kube.Endpoint
}

// modelEndpoints lists the endpoints of a port; ok is false where it is not known which of two counts.
func modelEndpoints(in Input, f nft.Family, p kube.ServicePort) (out []modelEndpoint, ok bool) {
	found := map[netip.AddrPort]kube.Endpoint{}
	for _, s := range in.Slices {
		if familyOf(s) != f {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Name != p.Name || sp.Proto != p.Proto {
				continue
			}
			for _, e := range s.Endpoints {
				at := netip.AddrPortFrom(e.Addr, sp.Port)
				other, dup := found[at]
				if dup && other != e && other.Terminating == e.Terminating {
					return nil, false
				}
				if !dup || !e.Terminating {
					found[at] = e
				}
			}
		}
	}
	for at, e := range found {
		out = append(out, modelEndpoint{at, e})
	}
	return out, true
}

func filter(es []modelEndpoint, keep func(e kube.Endpoint) bool) []modelEndpoint {
	var out []modelEndpoint
	for _, e := range es {
		if keep(e.object) {
			out = append(out, e)
		}
	}
	return out
}

func isReady(e kube.Endpoint) bool    { return e.Ready }
func isFallback(e kube.Endpoint) bool { return e.Serving && e.Terminating }

// orFallback keeps the ready ones, or else those that serve while they terminate.
func orFallback(es []modelEndpoint) []modelEndpoint {
	if out := filter(es, isReady); len(out) > 0 {
		return out
	}
	return filter(es, isFallback)
}

// byTopology narrows ready endpoints by hints.
func byTopology(es []modelEndpoint, n Node) []modelEndpoint {
	forNode := func(e kube.Endpoint) bool { return e.Hints.ForNode(n.Name) }
	forZone := func(e kube.Endpoint) bool { return e.Hints.ForZone(n.Zone) }
	if len(filter(es, func(e kube.Endpoint) bool { return !e.Hints.HasNodes() })) == 0 {
		if out := filter(es, forNode); len(out) > 0 {
			return out
		}
	}
	if len(filter(es, func(e kube.Endpoint) bool { return !e.Hints.HasZones() })) == 0 {
		if out := filter(es, forZone); len(out) > 0 {
			return out
		}
	}
	return es
}

func addrs(es []modelEndpoint) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range es {
		out = append(out, e.at)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// TestModel compares Build with the model on random Services.
func TestModel(t *testing.T) {
	compared := 0
	forRandom(t, func(t *testing.T, _ *rand.Rand, in Input) {
		i := 0
		for _, f := range nft.Families() {
			if !in.Service.ClusterIP(f == nft.IPv6).IsValid() {
				continue
			}
			for _, sp := range in.Service.Ports {
				got := Build(in).Ports[i]
				i++
				if es, ok := modelEndpoints(in, f, sp); ok {
					compared++
					compareModel(t, in, &got, es)
				}
			}
		}
	})
	if compared < rounds/2 {
		t.Errorf("%d ports compared, which is too few to tell anything", compared)
	}
}

func compareModel(t *testing.T, in Input, got *Port, es []modelEndpoint) {
	t.Helper()
	isHere := func(e kube.Endpoint) bool { return e.Node.String() != "" && e.Node.String() == in.Node.Name }
	cluster, local := orFallback(es), orFallback(filter(es, isHere))
	served := len(cluster) > 0
	if len(filter(es, isReady)) > 0 {
		cluster = byTopology(cluster, in.Node)
	}
	var needsCluster, needsLocal, internal, external bool
	for _, f := range got.Frontends {
		needsCluster = needsCluster || !f.Local || f.Kind != nft.ClusterIP
		needsLocal = needsLocal || f.Local
		internal = internal || f.Local && f.Kind == nft.ClusterIP
		external = external || f.Local && f.Kind != nft.ClusterIP
	}
	dropped := served && len(local) == 0
	if !needsCluster {
		cluster = nil
	}
	if !needsLocal {
		local = nil
	}
	want := *got
	want.Cluster, want.Local = addrs(cluster), addrs(local)
	want.Hairpin = addrs(filter(append(slices.Clone(cluster), local...), isHere))
	want.Serving = addrs(filter(es, func(e kube.Endpoint) bool { return e.Ready || e.Serving }))
	want.Unready = addrs(filter(es, func(e kube.Endpoint) bool { return !e.Ready && !e.Serving }))
	want.Served = served
	want.NoLocalInternal, want.NoLocalExternal = dropped && internal, dropped && external
	if d := equal(Output{Ports: []Port{want}}, Output{Ports: []Port{*got}}); d != "" {
		t.Errorf("endpoints %+v\n(-model +build)\n%s", es, d)
	}
}
