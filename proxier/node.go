// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
	"github.com/nftproxy/nftproxy/routing"
)

// nodeState is all that the tables depend on besides Services: a value, computed anew in each pass.
type nodeState struct {
	facts    services.Node
	families [2]familyState // IPv4 first
	// cidrs are the ranges of ClusterIPs that count, sorted.
	cidrs []netip.Prefix
	// refused are the ServiceCIDRs that do not count, with the reason.
	refused map[kube.Name]string
	// external is what an external balancer serves, IPv4 first.
	external [2]services.External
	guarded  guarded
}

// familyState is the part of one family.
type familyState struct {
	config   nft.Config
	elements []nft.Element // of the sets that belong to no Service
	// nodePorts are the addresses that take NodePorts. With config.NodePortAll those of the interfaces, without loopback
	// and link-local ones.
	nodePorts []netip.Addr
}

func familyIndex(f nft.Family) int {
	if f == nft.IPv6 {
		return 1
	}
	return 0
}

func (s *nodeState) of(f nft.Family) *familyState { return &s.families[familyIndex(f)] }

// sameServices reports whether every Service becomes the same in both states.
func (s *nodeState) sameServices(o *nodeState) bool {
	return s.facts.Name == o.facts.Name && s.facts.Zone == o.facts.Zone && slices.Equal(s.facts.Addrs, o.facts.Addrs) &&
		slices.Equal(s.facts.Own, o.facts.Own) && s.external == o.external && s.guarded.equal(&o.guarded)
}

// nodePortAddrs are the addresses that take NodePorts, of both families.
func (s *nodeState) nodePortAddrs() []netip.Addr {
	return slices.Concat(s.families[0].nodePorts, s.families[1].nodePorts)
}

// nodeInputs are what a nodeState is computed from.
type nodeInputs struct {
	config *config.Config
	node   *kube.Node // nil if not known
	cidrs  []*kube.ServiceCIDR
	// interfaces are the addresses and names of the node's interfaces.
	interfaces interfaces
	// apiServer are the addresses of the API server: those that the proxy is connected to, and those of the Service
	// default/kubernetes with its endpoints.
	apiServer apiServer
}

// apiServer is how the API server is reached.
type apiServer struct {
	clusterIPs [2]netip.Addr
	endpoints  []netip.AddrPort // sorted; of the Service, and of the proxy's own connections
}

// state computes the nodeState; it is pure.
func (in *nodeInputs) state() nodeState {
	s := nodeState{facts: services.Node{Name: in.config.NodeName}}
	if in.node != nil {
		s.facts.Zone, s.facts.Addrs = in.node.Zone, in.node.Addrs
	}
	in.checkCIDRs(&s)
	for i, f := range nft.Families() {
		s.families[i] = in.family(f, s.cidrs)
		s.external[i] = in.external(f)
	}
	if r := &in.config.Own.Routing; r.Steering.Enabled || r.HandOff.Enabled {
		s.facts.Own = slices.DeleteFunc(slices.Clone(in.interfaces.addrs), noEndpoint)
	}
	s.guarded = in.guard()
	return s
}

// noEndpoint reports that an address of an interface is no endpoint's, and takes NodePorts only where the configuration names it:
// each new veth has a link-local one, so that nothing else may depend on those.
func noEndpoint(a netip.Addr) bool { return a.IsLinkLocalUnicast() || a.IsLoopback() }

func (in *nodeInputs) family(f nft.Family, cidrs []netip.Prefix) familyState {
	ports := in.config.NodePorts.Family(f == nft.IPv6)
	all := ports.All || ports.Primary && in.anyNode() && !in.primary(f).IsValid()
	out := familyState{config: nft.Config{
		MasqueradeBit: uint8(in.config.MasqueradeBit),
		MasqueradeAll: in.config.MasqueradeAll,
		NodePortAll:   all,
		External:      in.externalRules(f),
		Connections:   in.config.Own.CountConnections,
	}}
	if ports.Primary && in.primary(f).IsValid() {
		out.nodePorts = append(out.nodePorts, in.primary(f))
	}
	for _, a := range in.interfaces.addrs {
		named := func(p netip.Prefix) bool { return p.Contains(a) }
		takes := all && !noEndpoint(a) || !a.IsLoopback() && slices.ContainsFunc(ports.CIDRs, named)
		if nft.FamilyOf(a) == f && takes && !slices.Contains(out.nodePorts, a) {
			out.nodePorts = append(out.nodePorts, a)
		}
	}
	pods := in.pods(f)
	out.config.Pods = in.podMatch(len(pods) > 0)
	out.elements = nft.RangeElements(nft.Pods, f, pods)
	out.elements = append(out.elements, nft.RangeElements(nft.ServiceCIDRs, f, cidrs)...)
	if !all {
		out.elements = append(out.elements, nft.AddrElements(nft.NodePortAddresses, f, out.nodePorts)...)
	}
	return out
}

// anyNode reports that there is no Node object to wait for: manifests need none.
func (in *nodeInputs) anyNode() bool { return in.node == nil && in.config.Manifests != "" }

// pods returns the ranges that this node's pods send from, where the configuration has them by address.
func (in *nodeInputs) pods(f nft.Family) []netip.Prefix {
	switch in.config.DetectLocal.Mode {
	case config.LocalByClusterCIDR:
		if p, ok := in.config.DetectLocal.CIDR(f == nft.IPv6); ok {
			return []netip.Prefix{p}
		}
	case config.LocalByNodeCIDR:
		if in.node != nil {
			for _, p := range in.node.PodCIDRs {
				if nft.FamilyOf(p.Addr()) == f {
					return []netip.Prefix{p}
				}
			}
		}
	}
	return nil
}

func (in *nodeInputs) podMatch(cidrs bool) nft.PodMatch {
	switch in.config.DetectLocal.Mode {
	case config.LocalByBridge:
		return nft.PodMatch{Interface: in.config.DetectLocal.Interface}
	case config.LocalByPrefix:
		return nft.PodMatch{Interface: in.config.DetectLocal.Interface, Prefix: true}
	}
	return nft.PodMatch{CIDRs: cidrs}
}

// primary returns the node's address of a family, the configured one before the Node's.
func (in *nodeInputs) primary(f nft.Family) netip.Addr {
	if a := in.config.NodeIP; a.IsValid() && nft.FamilyOf(a) == f {
		return a
	}
	if in.node != nil {
		return in.node.Addr(f == nft.IPv6)
	}
	return netip.Addr{}
}

// ownAddrs are the addresses of the node itself.
func (in *nodeInputs) ownAddrs() (out []netip.Addr) {
	if in.config.NodeIP.IsValid() {
		out = append(out, in.config.NodeIP)
	}
	if in.node != nil {
		out = append(out, in.node.Addrs...)
	}
	return out
}

// checkCIDRs takes the ranges of ClusterIPs, without those that contain addresses which are not ClusterIPs: packets to
// unused addresses of a range are dropped, so that one of 0.0.0.0/0 would cut the node off.
func (in *nodeInputs) checkCIDRs(s *nodeState) {
	for _, c := range in.cidrs {
		for _, p := range c.Prefixes {
			if why := in.conflict(p); why != "" {
				if s.refused == nil {
					s.refused = map[kube.Name]string{}
				}
				s.refused[c.Name] = fmt.Sprintf("%s contains %s: packets to addresses of this range that are no ClusterIP are not dropped", p, why)
				continue
			}
			s.cidrs = append(s.cidrs, p)
		}
	}
	slices.SortFunc(s.cidrs, netip.Prefix.Compare)
}

// conflict describes what a range of ClusterIPs must not contain but does, "" for nothing.
func (in *nodeInputs) conflict(p netip.Prefix) string {
	for _, a := range in.ownAddrs() {
		if p.Contains(a) {
			return fmt.Sprintf("the node's address %s", a)
		}
	}
	for _, a := range in.apiServer.endpoints {
		if p.Contains(a.Addr()) && !slices.Contains(in.apiServer.clusterIPs[:], a.Addr()) {
			return fmt.Sprintf("the API server's address %s", a.Addr())
		}
	}
	pods := in.pods(nft.FamilyOf(p.Addr()))
	if in.node != nil {
		pods = append(pods, in.node.PodCIDRs...)
	}
	for _, r := range pods {
		if p.Bits() <= r.Bits() && p.Contains(r.Addr()) {
			return fmt.Sprintf("the pods' range %s", r)
		}
	}
	return ""
}

// guarded are addresses that no Service gets, because the node or the proxy itself needs them: an external IP with the
// API server's address would keep the proxy from ever seeing that the Service is deleted.
type guarded struct {
	apiServer []netip.AddrPort
	apiVIPs   [2]netip.Addr
	node      []netip.Addr
	ports     []uint16 // of the node's own servers
	allowed   config.ExternalIPs
}

func (g *guarded) equal(o *guarded) bool {
	return slices.Equal(g.apiServer, o.apiServer) && g.apiVIPs == o.apiVIPs && slices.Equal(g.node, o.node) && slices.Equal(g.ports, o.ports)
}

// nodeServers are ports of a node's own servers that its operation depends on: SSH and the kubelet.
var nodeServers = []uint16{22, 10250}

func (in *nodeInputs) guard() guarded {
	g := guarded{apiServer: in.apiServer.endpoints, apiVIPs: in.apiServer.clusterIPs, node: in.ownAddrs(), ports: slices.Clone(nodeServers), allowed: in.config.ExternalIPs}
	for _, listen := range []string{in.config.Healthz, in.config.Metrics} {
		if at, err := netip.ParseAddrPort(listen); err == nil { // empty is no server
			g.ports = append(g.ports, at.Port())
		}
	}
	return g
}

// refuses returns why a claim is granted to no Service, "" if it may be granted. What the API server has allocated is not
// concerned, and load balancers may have addresses of the node.
func (g *guarded) refuses(c services.Claim) string {
	switch {
	case c.Source == services.FromAllocator:
	case c.Proto == nft.TCP && slices.Contains(g.apiServer, netip.AddrPortFrom(c.Addr, c.Port)):
		return "is where the API server is reached"
	case c.Source != services.FromUser:
	case !g.allowed.Allow(c.Addr):
		return "is not allowed as an external IP"
	case slices.Contains(g.apiVIPs[:], c.Addr):
		return "has the ClusterIP of the API server"
	case c.Proto == nft.TCP && slices.Contains(g.node, c.Addr) && slices.Contains(g.ports, c.Port):
		return "is a server of the node itself"
	}
	return ""
}

// external returns what of a family's traffic the configured routing leads to an external balancer.
func (in *nodeInputs) external(f nft.Family) (out services.External) {
	c := &in.config.Own.Routing
	// Without a gateway of its family, a steered packet would find no route in the steering table.
	out.Steering = c.Steering.Enabled && hasFamily(c.Steering.Gateways, f)
	if !c.HandOff.Enabled || !hasFamily(c.HandOff.Gateways, f) && !subnet(c, f).IsValid() {
		return out
	}
	out.Cluster, out.HostClusterIPs = c.HandOff.Cluster, c.HandOff.HostClusterIPs
	for _, a := range c.HandOff.Virtual {
		if c.HandOff.Local && nft.FamilyOf(a) == f {
			out.Virtual = a
		}
	}
	return out
}

// externalRules is what the rules do for it.
func (in *nodeInputs) externalRules(f nft.Family) nft.ExternalBalancer {
	c, what := &in.config.Own.Routing, in.external(f)
	out := nft.ExternalBalancer{HandOff: what.Cluster || what.Virtual.IsValid(), HostClusterIPs: what.HostClusterIPs}
	if what.Steering {
		out.Steering, out.Mark, out.Mask = true, c.Steering.Mark, c.Steering.Mask
		hop, _ := c.SteeringGateway(nl.Family(f))
		out.SteeringHop = hop.Addr
	}
	if out.HandOff || out.HostClusterIPs {
		hop, _ := c.HandOffGateway(nl.Family(f))
		out.HandOffHop, out.Virtual = hop.Addr, what.Virtual
	}
	p, device := subnet(c, f), in.masqueradeDevice(f)
	if c.Masquerade.Enabled && p.IsValid() && device != "" {
		out.Subnet, out.Device = p, device
	}
	return out
}

// masqueradeDevice is the name of the device that routing puts the host address of the masquerade subnet on.
func (in *nodeInputs) masqueradeDevice(f nft.Family) string {
	name := in.config.Own.Routing.Device
	if h := &in.config.Own.Routing.HandOff; h.Enabled {
		name = h.Device
	}
	if name == "" {
		return in.interfaces.byAddr[in.primary(f)]
	}
	if own, known := in.interfaces.byAlias[name]; known {
		return own
	}
	return name
}

// subnet is the masquerade subnet of a family, not valid if there is none.
func subnet(c *routing.Config, f nft.Family) netip.Prefix {
	for _, p := range c.Subnets {
		if nft.FamilyOf(p.Addr()) == f {
			return p
		}
	}
	return netip.Prefix{}
}

func hasFamily(hops []routing.NextHop, f nft.Family) bool {
	return slices.ContainsFunc(hops, func(h routing.NextHop) bool { return nft.FamilyOf(h.Addr) == f })
}
