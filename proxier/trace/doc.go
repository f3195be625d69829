// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package trace turns the kernel's messages about traced packets into the paths that the packets took, in the words of
// package explain where a rule is ours. It is pure: what it has to know of the node comes from Facts.
package trace

import (
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
)

// APIVersion and Kind head the structured form.
const (
	APIVersion = "nftproxy.io/v1alpha1"
	Kind       = "Trace"
)

// Facts is what has to be known of the node. A function that cannot find out returns zero values.
type Facts struct {
	// Hook returns where a base chain is attached; ok is false for other chains.
	Hook func(table nft.TraceTable, chain string) (hook nft.Hook, ok bool)
	// Rule returns a rule by its handle, and its place in the chain from 1; 0 if it is gone.
	Rule func(table nft.TraceTable, chain string, handle uint64) (rule nft.TracedRule, place int)
	// Interface is the name of an interface by its index.
	Interface func(index uint32) string
	// Words are those of the table of the Services of a family, nil if it cannot be read.
	Words func(nft.Family) *explain.Words
	Node  func(nft.Family) explain.Node
}

// Outcome is what became of a packet on this node.
type Outcome string

const (
	// Sent means that it left the node, or went to a pod of it, by an interface.
	Sent Outcome = "sent"
	// Received means that a process of the node gets it.
	Received Outcome = "received"
	// Refused means that it was dropped and the sender told so.
	Refused Outcome = "refused"
	// Dropped means that it was dropped in silence.
	Dropped Outcome = "dropped"
	// Queued means that it was handed to a program (queue), or taken out of the rules' sight by one of them.
	Queued Outcome = "queued"
	// Lost means that no later hook saw it, though no rule dropped it: there is no route, or the kernel refused it.
	Lost Outcome = "lost"
)

// Path is the way of one packet through the node: the first of a connection, unless all are traced.
type Path struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Time       time.Time `json:"time"`
	Packet     Packet    `json:"packet"`
	// Service is "namespace/service:port" of what is addressed, if it is known.
	Service string  `json:"service,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Summary is what became of it, in one sentence.
	Summary string `json:"summary"`
	// Endpoint is what the destination was translated to, if it was.
	Endpoint string `json:"endpoint,omitempty"`
	// OIF is the interface that it left by.
	OIF string `json:"oif,omitempty"`
	// Masqueraded tells that a rule has the receiver see another source.
	Masqueraded bool `json:"masqueraded"`
	// Steps are all rules of all tables that matched, and the policies of base chains.
	Steps    []Step   `json:"steps"`
	Warnings []string `json:"warnings,omitempty"`
}

// Packet is what was sent.
type Packet struct {
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	From     string `json:"from"`
	To       string `json:"to"`
	IIF      string `json:"iif,omitempty"` // empty for what a process of the node sent
}

// Step is a rule that matched, or the policy of a base chain.
type Step struct {
	Hook     string `json:"hook"`
	Priority int32  `json:"priority"`
	Table    string `json:"table"` // with its family: "ip nftproxy"
	Chain    string `json:"chain"`
	// Rule is the place of the rule in its chain, from 1; 0 for a policy and for a rule that is gone. Handle is what
	// "nft -a list ruleset" shows of it.
	Rule   int    `json:"rule,omitempty"`
	Handle uint64 `json:"handle,omitempty"`
	Policy bool   `json:"policy,omitempty"`
	// Verdict is as nft prints it: continue, accept, drop, jump CHAIN and so on.
	Verdict string `json:"verdict"`
	Comment string `json:"comment,omitempty"`
	// Ours tells rules of nftproxy. Of these there are words, and the element that decided, where there is something to say.
	Ours    bool   `json:"ours,omitempty"`
	Set     string `json:"set,omitempty"`
	Element string `json:"element,omitempty"`
	Text    string `json:"text,omitempty"`
}
