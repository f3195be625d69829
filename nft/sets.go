// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SetID names a set or map whose elements follow the Services and the node.
type SetID uint8

// The maps from what is addressed to what is done.
const (
	// Services maps a ClusterIP or external address to its program.
	Services SetID = iota
	// NodePorts maps protocol and NodePort to a policy.
	NodePorts
	// ClusterPrograms and LocalPrograms map an external address to the balancer of a view.
	ClusterPrograms
	LocalPrograms
	NodePortClusterPrograms
	NodePortLocalPrograms
	// Endpoints maps VIP and slot to the endpoint.
	Endpoints
	NodePortEndpoints
	// EndpointIDs maps VIP and slot to the endpoint's id, EndpointsByID VIP and id to the endpoint: for
	// sticky Services, whose clients are remembered by id because slots move.
	EndpointIDs
	NodePortEndpointIDs
	EndpointsByID
	NodePortEndpointsByID
	// ClusterIPs are the addresses of which no unused port is let through.
	ClusterIPs
	// RejectServices and the following three are VIPs and NodePorts without an endpoint that could serve.
	RejectServices
	DropServices
	RejectNodePorts
	DropNodePorts
	// Restricted are VIPs with source ranges; for the ranges see AllowedSources.
	Restricted
	// Hairpin are pairs of a local endpoint with itself.
	Hairpin
	// NodePortAddresses are the node's addresses that take NodePorts.
	NodePortAddresses
	// Pods and ServiceCIDRs are ranges of addresses.
	Pods
	ServiceCIDRs
	// Steered are ClusterIPs that the balancer behind the pod gateway serves to processes of the node, HostEndpoints maps
	// those that an endpoint of the node itself serves to them. Both are empty without ExternalBalancer.Steering.
	Steered
	HostEndpoints
	// HandedOver are ClusterIPs that the balancer behind the hand-off device serves to processes of the node. It is empty without
	// ExternalBalancer.HostClusterIPs.
	HandedOver
	// StickyDraws maps the program of a sticky view to the draw among its endpoints: how many there are is data, so that
	// no rule of a sticky view follows its endpoints.
	StickyDraws
	// Connections and NodePortConnections count the new connections to each address and NodePort. They are empty without
	// Config.Connections.
	Connections
	NodePortConnections
	// Policies, Programs and Draws are verdict maps. They hold one element per program and none per Service, because to add
	// an element whose datum is a verdict makes the kernel validate the whole table. It then walks each of them once for
	// every way that leads to it: therefore a policy does not go on to its program, but returns with it in the priority.
	Policies // to jump to: they put the program of a view in the priority
	Programs // to go to: all that end in DNAT
	Draws    // to go to, for sticky chains, which are in Programs: the kernel refuses a cycle (EMLINK)
	numSets
	// Allowed stands for the sets of source ranges together.
	Allowed = numSets
)

// AllowedSources is the set of the source ranges of one prefix length: VIP and masked source. A set of intervals for all would
// cost the square of its size to empty. There are at most 33 of them in IPv4 and 129 in IPv6, made when first needed.
func AllowedSources(bits int) SetID { return Allowed + 1 + SetID(bits) }

// sourceBits is the prefix length of a set of source ranges.
func (id SetID) sourceBits() int { return int(id - Allowed - 1) }

// Group is the set itself, or Allowed for a set of source ranges.
func (id SetID) Group() SetID { return min(id, Allowed) }

// field is one component of a concatenated key or datum.
type field uint8

const (
	fieldAddr field = iota
	fieldProto
	fieldPort
	fieldClassID
	fieldVerdict
)

// setSpec is what a set or map is declared as.
type setSpec struct {
	name     string
	key      []field
	data     []field // nil for a set
	interval bool
	counting bool   // each element counts the packets that match it
	dynamic  bool   // the data path writes it, with timeouts
	size     uint32 // bound of a dynamic set; others grow as needed
	comment  string
}

func (s *setSpec) isMap() bool { return len(s.data) > 0 }

// spec is the declaration of a named set or map. The number of them is a constant: law 1.
func (id SetID) spec() setSpec {
	var (
		vip      = []field{fieldAddr, fieldProto, fieldPort}
		port     = vip[1:]
		vipSlot  = []field{fieldAddr, fieldProto, fieldPort, fieldClassID}
		portSlot = vipSlot[1:]
		endpoint = []field{fieldAddr, fieldPort}
		program  = vipSlot[3:]
		addr     = vip[:1]
		verdict  = []field{fieldVerdict}
	)
	if id < numSets {
		return [numSets]setSpec{
			Services:                {name: "services", key: vip, data: program, comment: "VIP to program"},
			NodePorts:               {name: "nodeports", key: port, data: program, comment: "NodePort to policy"},
			ClusterPrograms:         {name: "cluster-programs", key: vip, data: program, comment: "external VIP to the balancer of all endpoints"},
			LocalPrograms:           {name: "local-programs", key: vip, data: program, comment: "external VIP to the balancer of local endpoints"},
			NodePortClusterPrograms: {name: "nodeport-cluster-programs", key: port, data: program},
			NodePortLocalPrograms:   {name: "nodeport-local-programs", key: port, data: program},
			Endpoints:               {name: "endpoints", key: vipSlot, data: endpoint, comment: "VIP and slot to endpoint"},
			NodePortEndpoints:       {name: "nodeport-endpoints", key: portSlot, data: endpoint, comment: "NodePort and slot to endpoint"},
			EndpointIDs:             {name: "endpoint-ids", key: vipSlot, data: program, comment: "sticky VIP and slot to endpoint id"},
			NodePortEndpointIDs:     {name: "nodeport-endpoint-ids", key: portSlot, data: program},
			EndpointsByID:           {name: "endpoints-by-id", key: vipSlot, data: endpoint, comment: "sticky VIP and endpoint id to endpoint"},
			NodePortEndpointsByID:   {name: "nodeport-endpoints-by-id", key: portSlot, data: endpoint},
			ClusterIPs:              {name: "cluster-ips", key: addr},
			RejectServices:          {name: "reject-services", key: vip, comment: "no endpoint anywhere"},
			DropServices:            {name: "drop-services", key: vip, comment: "no endpoint on this node"},
			RejectNodePorts:         {name: "reject-nodeports", key: port},
			DropNodePorts:           {name: "drop-nodeports", key: port},
			Restricted:              {name: "restricted", key: vip, comment: "VIPs with source ranges"},
			Hairpin:                 {name: "hairpin", key: []field{fieldAddr, fieldAddr, fieldProto, fieldPort}, comment: "local endpoints that reach themselves"},
			NodePortAddresses:       {name: "nodeport-addresses", key: addr},
			Pods:                    {name: "pods", key: addr, interval: true, comment: "where pods of this node send from"},
			ServiceCIDRs:            {name: "service-cidrs", key: addr, interval: true},
			Steered:                 {name: "steered", key: vip, comment: "left to the balancer behind the pod gateway"},
			HostEndpoints:           {name: "host-endpoints", key: vip, data: endpoint, comment: "VIP to endpoint on the node itself"},
			HandedOver:              {name: "handed-over", key: vip, comment: "left to the balancer behind the hand-off device"},
			StickyDraws:             {name: "sticky-draws", key: program, data: program, comment: "sticky program to the draw of its endpoints"},
			Connections:             {name: "connections", key: vip, counting: true, comment: "new connections to VIPs"},
			NodePortConnections:     {name: "nodeport-connections", key: port, counting: true, comment: "new connections to NodePorts"},
			Policies:                {name: "policies", key: program, data: verdict, comment: "policy to chain"},
			Programs:                {name: "programs", key: program, data: verdict, comment: "program to chain"},
			Draws:                   {name: "draws", key: program, data: verdict, comment: "draws of sticky views"},
		}[id]
	}
	if id == Allowed { // not a set, but the group of the following
		return setSpec{name: "allowed"}
	}
	source := []field{fieldAddr, fieldProto, fieldPort, fieldAddr}
	return setSpec{name: fmt.Sprintf("allowed-%d", id.sourceBits()), key: source, comment: "VIP and admitted sources of one prefix length"}
}

// Sets lists the sets and maps except the verdict maps, those of source ranges as Allowed.
func Sets() (out []SetID) {
	for id := range Policies {
		out = append(out, id)
	}
	return append(out, Allowed)
}

// shared reports whether several Services may want the same element of the set.
func (id SetID) shared() bool { return id == ClusterIPs || id == Hairpin }

// String is the name that nft prints.
func (id SetID) String() string { return id.spec().name }

// ParseSet is the inverse of SetID.String for sets of a table.
func ParseSet(name string) (SetID, bool) {
	if digits, ok := strings.CutPrefix(name, "allowed-"); ok {
		bits, err := strconv.Atoi(digits)
		id := AllowedSources(min(max(bits, 0), 128))
		return id, err == nil && id.String() == name
	}
	for id := range numSets {
		if id.spec().name == name {
			return id, true
		}
	}
	return 0, false
}

// IsInterval reports whether the set's elements are ranges. It is called for each element, hence not by the declaration.
func (id SetID) IsInterval() bool { return id == Pods || id == ServiceCIDRs }

// IsVerdictMap reports whether the data of the map are verdicts.
func (id SetID) IsVerdictMap() bool { return id >= Policies && id < numSets }

// flags are the NFT_SET_* flags of a declaration.
func (s *setSpec) flags() uint32 {
	var flags uint32
	if s.isMap() {
		flags |= unix.NFT_SET_MAP
	}
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	if len(s.key) > 1 {
		flags |= nftSetConcat
	}
	return flags
}
