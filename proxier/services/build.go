// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Node is what the choice of endpoints and sources needs to know of this node.
type Node struct {
	// Name is compared with the node and the node hints of endpoints; with an empty one, none is local.
	Name string
	// Zone is compared with zone hints; with an empty one they are not followed.
	Zone string
	// Addrs are the node's addresses, of both families: a source range that holds one of them admits this node.
	Addrs []netip.Addr
	// Own are the addresses of its interfaces, of both families: an endpoint that has one is a process of the node. They
	// matter only with a balancer behind a device.
	Own []netip.Addr
}

// Options are the operator's choices between ways to understand a Service.
type Options struct {
	// FailOpenSourceRanges is kube-proxy's reading of loadBalancerSourceRanges: a family in which there is no range
	// is not restricted. Otherwise such a family admits no source, if there is a range at all.
	FailOpenSourceRanges bool
	// CountConnections makes every Service Counted.
	CountConnections bool
	// External is about an external balancer, IPv4 first.
	External [2]External
}

// Input is one Service with all its slices. Nothing in it is changed, and the Output shares none of its memory.
type Input struct {
	Service *kube.Service
	// Slices are the Service's slices of both families. Their order, and that of their endpoints, changes nothing.
	Slices  []*kube.EndpointSlice
	Node    Node
	Options Options
	// Lost reports which of the Service's claims another Service has been granted (see [Index.Lost]); nil is none.
	Lost func(Claim) bool
}

// Output is what one Service becomes in both families. Its slices may share memory: they are not to be changed.
type Output struct {
	// Ports holds one Port per family that has a ClusterIP and port of the Service, in this order, and behind them those
	// that are handed off.
	Ports []Port
	// HealthCheckNodePort is where load balancers ask for LocalReady; 0 is nowhere.
	HealthCheckNodePort uint16
	// LocalReady counts the ready endpoints on this node by address, in the family that has more of them: a pod of
	// two families is one endpoint. Terminating ones are ready only if the Service publishes such (KEP-1669). It is 0
	// where there is no HealthCheckNodePort.
	LocalReady int
}

// Port is one port of a Service in one family.
type Port struct {
	Family nft.Family
	// Service has its endpoints sorted, each once; they have no slots, and affinity views no numbers yet.
	nft.Service
	// Serving are all endpoints that answer, sorted: ready ones and those that are terminating, or not ready, but still
	// serve, on whatever node. A flow to one of them may go on, whatever the policies say about new ones.
	Serving []netip.AddrPort
	// Unready are the other endpoints that the slices list, sorted: connections to them may go on, as a failed readiness
	// probe says nothing about these.
	Unready []netip.AddrPort
	// NodePort is the Service's in both families, 0 if it has none or lost it to another Service.
	NodePort uint16
	// NoLocalInternal and NoLocalExternal mean that packets to the ClusterIP, or from outside to the other addresses,
	// are dropped here because the traffic policy is Local and all endpoints are on other nodes.
	NoLocalInternal, NoLocalExternal bool
	// HandedOff means that these are the external addresses and the NodePort only, which another balancer serves. There is a
	// Port of the same family and name for the ClusterIP then.
	HandedOff bool
	// External are destinations beside Serving that a flow may have: those of the external balancer.
	External []netip.AddrPort
}

// Build returns what a Service becomes. It depends on nothing but its argument.
func Build(in Input) Output {
	s := in.Service
	if s == nil {
		return Output{}
	}
	families := 0
	for _, a := range s.ClusterIPs {
		if a.IsValid() {
			families++
		}
	}
	out := Output{HealthCheckNodePort: s.HealthCheckNodePort, Ports: make([]Port, 0, families*len(s.Ports))}
	b := builder{Input: &in, out: &out, chooser: newChooser(in.Node)}
	for _, f := range nft.Families() {
		if s.ClusterIP(f == nft.IPv6).IsValid() {
			b.family(f)
		}
	}
	out.Ports = leave(&in, out.Ports)
	return out
}

// builder makes one Output.
type builder struct {
	*Input
	out *Output
	chooser
}

// family adds the ports of one family.
func (b *builder) family(f nft.Family) {
	var ( // for what most Services have, so that it needs no heap
		vipBuf    [8]vip
		targetBuf [16]target
		entryBuf  [32]entry
	)
	vips := appendVIPs(vipBuf[:0], b.Service, f)
	sources, restricted := b.sources(f)
	targets := appendTargets(targetBuf[:0], b.Service.Ports, b.Slices, f)
	entries := entryBuf[:0]
	frontends := make([]nft.Frontend, 0, (len(vips)+1)*len(b.Service.Ports))
	var ready []netip.Addr

	for i := range b.Service.Ports {
		n := 0
		for n < len(targets) && targets[n].port == int32(i) {
			n++
		}
		entries = b.gather(entries[:0], b.Slices, targets[:n])
		targets = targets[n:]

		first := len(frontends)
		frontends = b.appendFrontends(frontends, f, &b.Service.Ports[i], vips)
		own := frontends[first:len(frontends):len(frontends)]
		if restricted {
			restrict(own, vips, sources)
		}
		b.out.Ports = append(b.out.Ports, b.port(f, i, own, entries))
		if b.out.HealthCheckNodePort != 0 {
			ready = appendLocalReady(ready, entries)
		}
	}
	b.out.LocalReady = max(b.out.LocalReady, distinct(ready))
}

// port makes the Port of the Service's i-th port from its frontends and endpoints.
func (b *builder) port(f nft.Family, i int, frontends []nft.Frontend, es []entry) Port {
	sp := &b.Service.Ports[i]
	p := Port{Family: f, Service: nft.Service{
		Name:      b.portName(i),
		Proto:     sp.Proto,
		Frontends: frontends,
		Affinity:  b.Service.Affinity,
		Counted:   b.Options.CountConnections,
	}}
	c := choose(es)
	p.Served = c.served
	var cluster, local, hairpin flags
	for j := range frontends {
		fr := &frontends[j]
		if fr.Kind == nft.NodePort {
			p.NodePort = fr.Port
		}
		if fr.Kind != nft.ClusterIP || !fr.Local { // outside traffic of this node itself and its pods is short-circuited
			cluster = c.cluster
		}
		if fr.Local {
			local = c.local
			dropped := c.served && c.local == 0
			p.NoLocalInternal = p.NoLocalInternal || dropped && fr.Kind == nft.ClusterIP
			p.NoLocalExternal = p.NoLocalExternal || dropped && fr.Kind != nft.ClusterIP
		}
	}
	if cluster != 0 {
		hairpin = cluster | onNode
	}
	// Each list is part of the one it is picked from, so they are the same if they are of one length.
	p.Serving = pick(es, nil, good, 0)
	p.Unready = pick(es, nil, unready, 0)
	p.Cluster = pick(es, p.Serving, cluster, 0)
	p.Hairpin = pick(es, p.Serving, hairpin, local)
	p.Local = pick(es, p.Hairpin, local, 0)
	return p
}

// portName is "namespace/name:port", or without ":port" where the port has no name. The second family shares the
// strings of the first.
func (b *builder) portName(i int) string {
	if n := len(b.out.Ports); n >= len(b.Service.Ports) {
		return b.out.Ports[i].Name
	}
	owner := b.Service.Name
	if port := b.Service.Ports[i].Name.String(); port != "" {
		return owner.Namespace + "/" + owner.Name + ":" + port
	}
	return owner.Namespace + "/" + owner.Name
}

// distinct counts the different addresses and sorts them.
func distinct(addrs []netip.Addr) int {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
