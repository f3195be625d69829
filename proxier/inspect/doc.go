// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package inspect turns the nftables tables of a node back into Services.
//
// In come tables as package nft/kernel read them, for a comparison also what the sources of objects ask for, and flows
// that package ctsync streams. Out go documents: [Dump] with its forms [Text], [JSON], [YAML] and [DOT], and [Drift].
// [Read] makes the model of one family's table, which packages explain and trace use too.
//
// It is pure: it reads neither the kernel nor the API nor a clock, and it never guesses what the API server knows; a
// document shows what packets find in the kernel.
package inspect

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nftproxy/nftproxy/routing"
)

// APIVersion and the kinds head the structured forms. Fields are only ever added to a version; readers must ignore
// those they do not know.
const (
	APIVersion = "nftproxy.io/v1alpha1"
	Kind       = "Dump"
	KindDrift  = "Drift"
)

// Stamp says where, when and by which version a document was made, so that documents of several nodes can be told apart.
type Stamp struct {
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// Time is when the kernel was read.
	Time time.Time `json:"time,omitzero"`
	// Version is that of the program that made the document.
	Version string `json:"version,omitempty"`
}

func (s Stamp) String() string {
	return "node " + orDash(s.Node) + ", " + s.Time.UTC().Format(time.RFC3339) + ", nftproxy " + orDash(s.Version)
}

// Dump is the content of a node's tables.
type Dump struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Stamp
	Tables []Table `json:"tables"`
	// Routing are the addresses, routes, rules and neighbours that nftproxy owns.
	Routing []routing.Line `json:"routing,omitempty"`
	// Conntrack is there when flows were counted.
	Conntrack *Conntrack `json:"conntrack,omitempty"`
	// ServicePorts are sorted by name, then family, then protocol.
	ServicePorts []ServicePort `json:"servicePorts"`
}

// Table is what belongs to no single Service of one family's table.
type Table struct {
	// Family is ip or ip6.
	Family string `json:"family"`
	// Exists is false when there is no table; then all below is empty.
	Exists bool `json:"exists"`
	// Unsteady is true when the table changed faster than it could be read, so that parts of it may not fit together.
	Unsteady bool `json:"unsteady,omitempty"`
	// AsWritten is true when chains, rules, sets and programs are those that this version writes.
	AsWritten   bool     `json:"asWritten"`
	Differences []string `json:"differences,omitempty"`
	// MasqueradeMark is the bit of the packet mark that selects packets for masquerade, as a hexadecimal number.
	MasqueradeMark string `json:"masqueradeMark,omitempty"`
	MasqueradeAll  bool   `json:"masqueradeAll,omitempty"`
	// Pods are the ranges, or "iifname NAME", by which packets of pods are recognized (detectLocalMode): those of this
	// node, or with a cluster CIDR those of all nodes.
	Pods []string `json:"pods,omitempty"`
	// NodePortAddresses are the addresses that take NodePorts, or "all" alone.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`
	ServiceCIDRs      []string `json:"serviceCIDRs,omitempty"`
	// Chains, Rules and Sets are numbers, Elements those of the sets by name.
	Chains   int            `json:"chains"`
	Rules    int            `json:"rules"`
	Sets     int            `json:"sets"`
	Elements map[string]int `json:"elements,omitempty"`
	// Orphans is the number of frontends that have elements but no name: an interrupted load leaves them.
	Orphans int `json:"orphans,omitempty"`
}

// ServicePort is one port of a Service in one family.
type ServicePort struct {
	// Name is "namespace/service:port", from the comment of the elements. Of a name over 128 bytes the comment has the
	// beginning and a hash.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Port is the name of the port, often empty.
	Port string `json:"port,omitempty"`
	// Family is ip or ip6, Protocol tcp, udp or sctp.
	Family    string     `json:"family"`
	Protocol  string     `json:"protocol"`
	Frontends []Frontend `json:"frontends"`
	Endpoints Endpoints  `json:"endpoints"`
	// Affinity is there for sessionAffinity ClientIP.
	Affinity *Affinity `json:"affinity,omitempty"`
	// Flows are its tracked connections, when they were counted.
	Flows *Flows `json:"flows,omitempty"`
	// Problems are elements that do not fit together. The proxy repairs them; report those that stay.
	Problems []string `json:"problems,omitempty"`
}

// Frontend is an address and port, or a NodePort, of a Service port.
type Frontend struct {
	// Kind is ClusterIP, External (external and load balancer addresses) or NodePort.
	Kind string `json:"kind"`
	// Address is empty for a NodePort.
	Address string `json:"address,omitempty"`
	Port    uint16 `json:"port"`
	// Policy is Cluster or Local, empty where nothing in the kernel depends on it.
	Policy string `json:"policy,omitempty"`
	// Program is the chain that handles its packets, empty when there is none.
	Program string `json:"program,omitempty"`
	State   State  `json:"state"`
	// Restricted is true when only SourceRanges are admitted.
	Restricted   bool     `json:"restricted,omitempty"`
	SourceRanges []string `json:"sourceRanges,omitempty"`
	// HandedTo is the destination that packets get for another balancer, behind a device of the node (docs/routing.md).
	HandedTo string `json:"handedTo,omitempty"`
	// Steered is true when packets of processes of the node are left to that balancer; HostEndpoint is the endpoint that
	// they get instead of the others.
	Steered      bool   `json:"steered,omitempty"`
	HostEndpoint string `json:"hostEndpoint,omitempty"`
	// Flows is the number of tracked connections to it, when they were counted.
	Flows *int `json:"flows,omitempty"`
}

// State is what happens to packets to a frontend.
type State string

const (
	// Served means that an endpoint receives them.
	Served State = "served"
	// Refused means that there is no endpoint on any node.
	Refused State = "refused"
	// Dropped means that there is one, but none on this node, and the policy is Local.
	Dropped State = "dropped"
	// Internal means that this node and its pods are served, and packets of others dropped for lack of an endpoint here.
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

// Affinity is the session affinity of a Service port.
type Affinity struct {
	TimeoutSeconds int `json:"timeoutSeconds"`
	// Clients is the number of remembered clients by view (cluster, local), Size the limit of each view.
	Clients map[string]int `json:"clients,omitempty"`
	Size    uint32         `json:"size,omitempty"`
}

// Conntrack is how the flows of a Dump were counted.
type Conntrack struct {
	// Scanned is the number of entries read. Exact is false when the table was resized meanwhile.
	Scanned int  `json:"scanned"`
	Exact   bool `json:"exact"`
}

// Flows are the tracked connections of a Service port.
type Flows struct {
	Total int `json:"total"`
	// Endpoints counts them by endpoint, Elsewhere those to endpoints that are not in the tables: terminating, or gone.
	Endpoints map[string]int `json:"endpoints,omitempty"`
	Elsewhere int            `json:"elsewhere,omitempty"`
}

// Printable returns a text with all control characters, line breaks, directional marks and invalid bytes escaped as in a
// Go string. Comments in the tables, chain names and API objects may have any bytes; what is not printable must not
// reach a terminal.
func Printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// splitName splits "namespace/service:port". The name of a Service has no colon.
func splitName(name string) (namespace, service, port string) {
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		namespace, rest = "", name
	}
	service, port, _ = strings.Cut(rest, ":")
	return namespace, service, port
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
