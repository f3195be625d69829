// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain evaluates the rules of a node's tables on a packet, and describes what happens to it and why.
//
// In come a table that package inspect read, the first packet of a connection, and facts about the node: its addresses,
// routes and remembered clients. Out comes an [Explanation]; with [Describer], the same text for a path that a real packet
// took, which package trace prints.
//
// It is pure: it sends nothing and reads no kernel, clock or API. It follows all paths where the kernel draws a random
// number. It never looks at tables of others, such as those of a firewall, and does not know how Services should be: it
// describes what is programmed. The evaluation is our own code since no library evaluates nftables expressions.
package explain

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Kind heads the structured form; its version is inspect.APIVersion.
const Kind = "Explanation"

// Packet is the first packet of a connection.
type Packet struct {
	Proto nft.Proto
	To    netip.AddrPort
	// From is the source; our rules do not look at its port.
	From netip.AddrPort
	// IIF is the interface that the packet comes in by. It is empty for a packet of a process on the node.
	IIF string
}

// Node is what has to be known of the node besides its tables. Each function may be nil.
type Node struct {
	// Local returns whether an address is one of the node's own. Loopback addresses need not be among them.
	Local func(netip.Addr) bool
	// Route returns the interface that packets to an address leave by, or ok = false when there is no route.
	Route func(netip.Addr) (iface string, ok bool)
	// NextHop returns the next hop of packets to an address with a mark: the address itself if it is on link, not valid
	// without a route. If it is nil, packets to another balancer are taken to have a route there.
	NextHop func(to netip.Addr, mark uint32) netip.Addr
	// Client returns the datum that an affinity map has for a client, empty if none; key and datum in wire form.
	Client func(set, key string) string
}

func (n Node) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || n.Local != nil && n.Local(a)
}

// Outcome is what happens to a packet.
type Outcome string

const (
	// Delivered means that an endpoint gets it.
	Delivered Outcome = "delivered"
	// Refused means that it is dropped and the client gets an error at once.
	Refused Outcome = "refused"
	// Dropped means that it is dropped silently.
	Dropped Outcome = "dropped"
	// Untouched means that no rule of nftproxy applies to it.
	Untouched Outcome = "untouched"
	// Unroutable means that the node has no route for it: it does not reach the rules, or not the endpoint.
	Unroutable Outcome = "unroutable"
	// Steered means that it is left to the balancer behind the device, which chooses the endpoint (docs/routing.md).
	Steered Outcome = "steered"
	// Mixed means that it depends on the endpoint that is drawn.
	Mixed Outcome = "mixed"

	// Outcomes of real packets, see package trace.

	// Sent means that it left the node, or went to a pod of it, by an interface.
	Sent Outcome = "sent"
	// Received means that a process of the node gets it.
	Received Outcome = "received"
	// Queued means that a rule handed it to a program, or a program took it.
	Queued Outcome = "queued"
	// Lost means that no later hook saw it, though no rule dropped it: there is no route, or the kernel refused it.
	Lost Outcome = "lost"
	// Bridged means that the kernel's trace ends at a bridge whose packets pass the IP hooks (br_netfilter); what happens
	// to the packet behind that is not known.
	Bridged Outcome = "bridged"
)

// Explanation is the answer.
type Explanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	inspect.Stamp
	Request PacketDoc `json:"packet"`
	Outcome Outcome   `json:"outcome"`
	// Summary is the answer in one sentence.
	Summary string `json:"summary"`
	// Service is "namespace/service:port" of the destination, if it is known.
	Service string `json:"service,omitempty"`
	// Candidates are the endpoints that may be chosen, sorted by share and address.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Steps are the rules that decided something, in order.
	Steps []Step `json:"steps"`
	// Hints say what may help where the packet fails; Warnings what makes the answer doubtful.
	Hints    []string `json:"hints,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// PacketDoc is a packet in a document.
type PacketDoc struct {
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	From     string `json:"from"`
	To       string `json:"to"`
	// Origin is host, pod or outside, Sender the same in words. Package trace leaves them empty.
	Origin string `json:"origin,omitempty"`
	Sender string `json:"sender,omitempty"`
	// IIF is empty for what a process of the node sent.
	IIF string `json:"iif,omitempty"`
}

// Candidate is an endpoint that may be chosen.
type Candidate struct {
	Endpoint string  `json:"endpoint"`
	Share    float64 `json:"share"` // probability, 0 to 1
	// OnNode is true when the endpoint's address is one of the node's own.
	OnNode bool `json:"onNode,omitempty"`
	// Masqueraded is true when the endpoint sees an address of this node as the source, for the reason Why.
	Masqueraded bool    `json:"masqueraded"`
	Why         string  `json:"why,omitempty"`
	Outcome     Outcome `json:"outcome"`
}

// Step is a rule that matched, or the policy of a base chain. An Explanation has only the rules of nftproxy that decided
// something, without Priority, Table, Handle and Verdict.
type Step struct {
	Hook     string `json:"hook"`
	Priority *int32 `json:"priority,omitempty"`
	Table    string `json:"table,omitempty"` // with its family: "ip nftproxy"
	Chain    string `json:"chain"`
	// Rule is the position of the rule in its chain, from 1; 0 for a policy and for a rule that is gone. Handle is the one
	// that "nft -a list ruleset" shows.
	Rule   int    `json:"rule,omitempty"`
	Handle uint64 `json:"handle,omitempty"`
	Policy bool   `json:"policy,omitempty"`
	// Verdict is as nft prints it: continue, accept, drop, jump CHAIN and so on.
	Verdict string `json:"verdict,omitempty"`
	Comment string `json:"comment,omitempty"`
	// Ours is true for rules of nftproxy.
	Ours bool `json:"ours,omitempty"`
	// Set and Element are the set that decided and the element found in it, as nft prints it; Text describes the step.
	Set     string `json:"set,omitempty"`
	Element string `json:"element,omitempty"`
	Text    string `json:"text,omitempty"`
}
