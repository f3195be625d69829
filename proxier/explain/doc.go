// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain tells what happens to a packet on a node, and why. It is pure: it evaluates the rules that somebody read
// from the kernel, on the elements that are there, as the kernel would do with the first packet of a connection,
// and follows all ways where the kernel draws a random number. Nothing is sent, and nothing in the kernel changes.
//
// It knows nothing of how Services should be: what it tells is what is programmed. Tables of others, as those of a
// firewall, are not looked at.
package explain

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// APIVersion and Kind head the structured form.
const (
	APIVersion = "nftproxy.io/v1alpha1"
	Kind       = "Explanation"
)

// Packet is the first of a connection.
type Packet struct {
	Proto nft.Proto
	To    netip.AddrPort
	// From is the source; its port is of no consequence for our rules.
	From netip.AddrPort
	// IIF is the interface that the packet comes in by. It is empty for a packet of a process on the node.
	IIF string
}

// Node is what has to be known of the node besides its tables.
type Node struct {
	// Local tells the node's own addresses. Loopback addresses need not be among them.
	Local func(netip.Addr) bool
	// Route returns the interface that packets to an address leave by, or ok = false when there is no route. May be nil.
	Route func(netip.Addr) (iface string, ok bool)
	// Client returns what a sticky map has for a client, empty if nothing; key and result in wire form. May be nil.
	Client func(set, key string) string
}

func (n Node) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || n.Local != nil && n.Local(a)
}

// Outcome is what becomes of a packet.
type Outcome string

const (
	// Delivered means that an endpoint gets it.
	Delivered Outcome = "delivered"
	// Refused means that the client is told at once that nobody serves.
	Refused Outcome = "refused"
	// Dropped means that the client hears nothing.
	Dropped Outcome = "dropped"
	// Untouched means that no rule of ours concerns it.
	Untouched Outcome = "untouched"
	// Unroutable means that the node has no route for it: it does not reach the rules, or not the endpoint.
	Unroutable Outcome = "unroutable"
	// Steered means that it is left to the balancer behind the pod gateway, which chooses the endpoint (docs/routing.md).
	Steered Outcome = "steered"
	// Mixed means that it depends on the endpoint chosen.
	Mixed Outcome = "mixed"
)

// Explanation is the answer.
type Explanation struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Request    Request `json:"packet"`
	Outcome    Outcome `json:"outcome"`
	// Summary is the answer in one sentence.
	Summary string `json:"summary"`
	// Service is "namespace/service:port" of what is addressed, if it is known.
	Service string `json:"service,omitempty"`
	// Candidates are the endpoints that may be chosen, sorted by share and address.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Steps are the rules that had a say, in order.
	Steps []Step `json:"steps"`
	// Hints are what may help where the packet fails; Warnings what makes the answer doubtful.
	Hints    []string `json:"hints,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Request is the packet that was asked about.
type Request struct {
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	To       string `json:"to"`
	From     string `json:"from"`
	// Origin is host, pod or outside.
	Origin string `json:"origin"`
	IIF    string `json:"iif,omitempty"`
}

// Candidate is an endpoint that may be chosen.
type Candidate struct {
	Endpoint string  `json:"endpoint"`
	Share    float64 `json:"share"` // probability, 0 to 1
	// OnNode tells that the endpoint's address is one of the node's own.
	OnNode bool `json:"onNode,omitempty"`
	// Masqueraded tells that it sees an address of this node as the source, Why why.
	Masqueraded bool    `json:"masqueraded"`
	Why         string  `json:"why,omitempty"`
	Outcome     Outcome `json:"outcome"`
}

// Step is a rule that had a say.
type Step struct {
	Hook  string `json:"hook"`
	Chain string `json:"chain"`
	// Rule is the place of the rule in its chain, from 1.
	Rule int `json:"rule"`
	// Set and Element are the set that decided and the key found in it, as nft prints it.
	Set     string `json:"set,omitempty"`
	Element string `json:"element,omitempty"`
	Text    string `json:"text"`
}
