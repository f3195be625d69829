// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The identity of our own configuration document.
const (
	OwnAPIVersion = "nftproxy.io/v1alpha1"
	OwnKind       = "NFTProxyConfiguration"
)

// NFTProxyConfiguration are the settings that kube-proxy does not have, as they
// stand in a file: a document of its own in the file of --config, after the
// KubeProxyConfiguration, or the file of --nftproxy-config. The doc tags are
// the text of the reference table.
type NFTProxyConfiguration struct {
	metav1.TypeMeta `json:""`

	Manifests          string            `json:"manifests" doc:"Directory of manifest files that is watched in place of an API server; same as --manifests, which wins."`
	StrictSourceRanges bool              `json:"strictSourceRanges" doc:"A Service whose loadBalancerSourceRanges are all of one family is closed to the other family. false: it is open to it, as with kube-proxy."`
	LocalhostNodePorts bool              `json:"localhostNodePorts" doc:"Serve NodePorts on loopback addresses, TCP and UDP; same as the keyword localhost in nodePortAddresses."`
	AffinityMapSize    int               `json:"affinityMapSize" doc:"Clients remembered per Service port with session affinity, per family; more are balanced without being remembered. 1 to 16777216."`
	BatchWindow        metav1.Duration   `json:"batchWindow" doc:"How long changes are collected before they are sent to the kernel together. 0s to 1s."`
	StaleFlows         StaleFlowsSection `json:"staleFlows" doc:"Conntrack entries of endpoints that no longer serve; those of UDP are always deleted."`
	Routing            RoutingSection    `json:"routing" doc:"Addresses, routes and rules beside the balancing; see routing.md."`
}

// StaleFlowsSection is the staleFlows section.
type StaleFlowsSection struct {
	TCP   bool `json:"tcp" doc:"Delete established TCP flows to endpoints that are gone."`
	SCTP  bool `json:"sctp" doc:"Delete SCTP flows to endpoints that are gone."`
	Reset bool `json:"reset" doc:"Answer such TCP flows with a reset, so that clients notice at once. Needs tcp."`
}

// RoutingSection is the routing section.
type RoutingSection struct {
	ServiceRoutes    ServiceRoutesSection `json:"serviceRoutes" doc:"Routes to the service CIDRs for processes of the host, for nodes without a fitting route."`
	MasqueradeSubnet SubnetsSection       `json:"masqueradeSubnet" doc:"Link-local subnet that the routing modes take their addresses from."`
	Steering         SteeringSection      `json:"steering" doc:"Host traffic to ClusterIPs with internalTrafficPolicy Local goes to the pod gateway device."`
	HandOff          HandOffSection       `json:"handOff" doc:"External traffic is left to another balancer behind a device."`
}

// SubnetsSection is one prefix per family.
type SubnetsSection struct {
	IPv4 string `json:"ipv4" doc:"IPv4 subnet, a /29 or larger; empty: none."`
	IPv6 string `json:"ipv6" doc:"IPv6 subnet, a /125 or larger; empty: none."`
}

// ServiceRoutesSection is the serviceRoutes section.
type ServiceRoutesSection struct {
	Enabled bool     `json:"enabled" doc:"Switch the mode on."`
	Device  string   `json:"device" doc:"Device that carries the routes; empty: a dummy device of our own."`
	CIDRs   []string `json:"cidrs" doc:"Service CIDRs to route; empty: those of the ServiceCIDR objects."`
}

// SteeringSection is the steering section.
type SteeringSection struct {
	Enabled  bool     `json:"enabled" doc:"Switch the mode on."`
	Device   string   `json:"device" doc:"The pod gateway device; required."`
	Gateways []string `json:"gateways" doc:"Next hop behind the device, at most one per family; none: on link."`
	Mark     uint32   `json:"mark" doc:"Packet mark of steered packets."`
	Priority int      `json:"priority" doc:"Priority of the ip rule. 1 to 32765."`
	Table    int      `json:"table" doc:"Routing table of steered packets. 1 to 252, or above 255."`
}

// HandOffSection is the handOff section.
type HandOffSection struct {
	Enabled  bool     `json:"enabled" doc:"Switch the mode on."`
	Device   string   `json:"device" doc:"The device with the other balancer behind it; required."`
	LocalETP []string `json:"localETP" doc:"Address that traffic under externalTrafficPolicy Local is sent to, at most one per family; none: the third of the masquerade subnet."`
	Hairpin  []string `json:"hairpin" doc:"Source address of hairpinned traffic, at most one per family; none: 169.254.0.253 for IPv4."`
	Classes  []string `json:"classes" doc:"Classes of traffic to hand off: NodePort, ExternalIP, LoadBalancer."`
}

// Classes of traffic that can be handed off.
const (
	classNodePort     = "NodePort"
	classExternalIP   = "ExternalIP"
	classLoadBalancer = "LoadBalancer"
)

// newOwnDocument returns the document with all defaults, into which a file is
// decoded: what the file does not name keeps its default.
func newOwnDocument() *NFTProxyConfiguration {
	return &NFTProxyConfiguration{
		TypeMeta:           metav1.TypeMeta{APIVersion: OwnAPIVersion, Kind: OwnKind},
		StrictSourceRanges: true,
		// What the kernel gives a dynamic set without a size, and kube-proxy's limit.
		AffinityMapSize: 65536,
		// Long enough to catch the Service and its slices of one kubectl apply,
		// short against the 10 ms that a change may take as a whole.
		BatchWindow: metav1.Duration{Duration: 2 * time.Millisecond},
		// An SCTP association to an endpoint that is gone cannot go on: deleting
		// its entry only lets the client reach another one.
		StaleFlows: StaleFlowsSection{SCTP: true},
		Routing: RoutingSection{
			MasqueradeSubnet: SubnetsSection{IPv4: "169.254.169.0/29", IPv6: "fd69::/125"},
			Steering:         SteeringSection{Mark: 0x1745ec, Priority: 30, Table: 7},
			HandOff:          HandOffSection{Classes: []string{classNodePort, classExternalIP, classLoadBalancer}},
		},
	}
}
