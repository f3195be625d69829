// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package inspect turns what the kernel's tables hold back into Services, for people to read. It is pure: it is
// given tables that somebody read, needs neither the API nor the proxy, and so tells what packets really meet.
//
// [Collect] makes the model of one family, [Dump] is the document that the structured forms print, and [Text]
// is the form for the eye.
package inspect

import "github.com/nftproxy/nftproxy/routing"

// APIVersion and Kind head the structured forms. Fields are only ever added to a version; readers must ignore
// those they do not know.
const (
	APIVersion = "nftproxy.io/v1alpha1"
	Kind       = "Dump"
)

// Dump is all that the tables of a node say.
type Dump struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Tables     []Table `json:"tables"`
	// Routing are the addresses, routes, rules and neighbours that are ours.
	Routing []routing.Line `json:"routing,omitempty"`
	// Conntrack is there when flows were counted.
	Conntrack *Conntrack `json:"conntrack,omitempty"`
	// ServicePorts are sorted by name, then family, then protocol.
	ServicePorts []ServicePort `json:"servicePorts"`
}

// Table is what concerns no single Service of one family's table.
type Table struct {
	// Family is ip or ip6.
	Family string `json:"family"`
	// Exists tells whether there is a table; if not, all below is empty.
	Exists bool `json:"exists"`
	// Unsteady tells that commits came faster than the table could be read, so that what belongs together may not fit.
	Unsteady bool `json:"unsteady,omitempty"`
	// AsWritten tells that chains, rules, sets and programs are those that this version writes.
	AsWritten   bool     `json:"asWritten"`
	Differences []string `json:"differences,omitempty"`
	// MasqueradeMark is the bit of the packet mark that asks for masquerade, as a hexadecimal number.
	MasqueradeMark string `json:"masqueradeMark,omitempty"`
	MasqueradeAll  bool   `json:"masqueradeAll,omitempty"`
	// Pods are the ranges, or "iifname NAME", that tell this node's pods from others.
	Pods []string `json:"pods,omitempty"`
	// NodePortAddresses are the addresses that take NodePorts, or "all" alone.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`
	ServiceCIDRs      []string `json:"serviceCIDRs,omitempty"`
	// Chains, Rules and Sets are their numbers, Elements those of the sets by name.
	Chains   int            `json:"chains"`
	Rules    int            `json:"rules"`
	Sets     int            `json:"sets"`
	Elements map[string]int `json:"elements,omitempty"`
	// Orphans is how many frontends have elements but no name: a load that was cut short leaves them.
	Orphans int `json:"orphans,omitempty"`
}

// ServicePort is one port of a Service in one family.
type ServicePort struct {
	// Name is "namespace/service:port" as the elements' comments have it. Of a name over 128 bytes the comment
	// holds the beginning and a hash.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Port is the port's name, often empty.
	Port string `json:"port,omitempty"`
	// Family is ip or ip6, Protocol tcp, udp or sctp.
	Family    string     `json:"family"`
	Protocol  string     `json:"protocol"`
	Frontends []Frontend `json:"frontends"`
	Endpoints Endpoints  `json:"endpoints"`
	// Affinity is there when clients stay on their endpoints.
	Affinity *Affinity `json:"affinity,omitempty"`
	// Flows are its tracked connections, when they were counted.
	Flows *Flows `json:"flows,omitempty"`
	// Problems are what does not fit together; the proxy repairs it, so what stays is worth a report.
	Problems []string `json:"problems,omitempty"`
}

// Frontend is an address and port, or a NodePort, at which a Service port is reached.
type Frontend struct {
	// Kind is ClusterIP, External (external and load balancer addresses) or NodePort.
	Kind string `json:"kind"`
	// Address is empty for a NodePort.
	Address string `json:"address,omitempty"`
	Port    uint16 `json:"port"`
	// Policy is Cluster or Local, empty where nothing in the kernel tells it.
	Policy string `json:"policy,omitempty"`
	// Program is the chain that runs for it, empty when none does.
	Program string `json:"program,omitempty"`
	State   State  `json:"state"`
	// Restricted tells that only SourceRanges are admitted.
	Restricted   bool     `json:"restricted,omitempty"`
	SourceRanges []string `json:"sourceRanges,omitempty"`
	// HandedTo is what packets are translated to for another balancer, behind a device of the node (docs/routing.md).
	HandedTo string `json:"handedTo,omitempty"`
	// Steered tells that packets of processes of the node are left to that balancer, HostEndpoint that they are led to this
	// endpoint instead of others.
	Steered      bool   `json:"steered,omitempty"`
	HostEndpoint string `json:"hostEndpoint,omitempty"`
	// Flows is the number of tracked connections to it, when they were counted.
	Flows *int `json:"flows,omitempty"`
}

// State is what becomes of packets to a frontend.
type State string

const (
	// Served means that an endpoint gets them.
	Served State = "served"
	// Refused means that there is no endpoint anywhere.
	Refused State = "refused"
	// Dropped means that there is one, but none on this node where the policy wants one.
	Dropped State = "dropped"
	// Internal means that this node and its pods are served, and those of others dropped for want of an endpoint here.
	Internal State = "internal"
)

// Endpoints are "address:port" by view, in the order of their slots. A slot that is empty but should not be is "".
type Endpoints struct {
	// Cluster are those that any traffic may go to, Local those on this node. A view that no frontend needs is
	// not in the kernel, and empty here.
	Cluster []string `json:"cluster,omitempty"`
	Local   []string `json:"local,omitempty"`
	// Hairpin are those on this node that are masqueraded when they reach themselves.
	Hairpin []string `json:"hairpin,omitempty"`
}

// Affinity is how clients stay on their endpoints.
type Affinity struct {
	TimeoutSeconds int `json:"timeoutSeconds"`
	// Clients is the number of clients remembered by view (cluster, local), Size the most there can be per view.
	Clients map[string]int `json:"clients,omitempty"`
	Size    uint32         `json:"size,omitempty"`
}
