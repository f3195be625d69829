// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package trace turns the kernel's messages about traced packets into the paths that the packets took through the rules of
// all tables, with the descriptions of package explain where a rule is nftproxy's.
//
// In come decoded messages (NFT_MSG_TRACE) and, through Facts, the ruleset and the node; out come a [Path] for each packet,
// and its forms [Text] and [JSON]. It is pure: it opens no socket and reads no clock. It never guesses what happens to a
// packet where the kernel does not trace it.
package trace

import (
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// Kind heads the structured form; its version is inspect.APIVersion.
const Kind = "Trace"

// Facts is what has to be known of the ruleset and the node. A function that cannot find out returns zero values.
type Facts struct {
	// Hook returns where a base chain is attached; ok is false for other chains.
	Hook func(table nft.TraceTable, chain string) (hook nft.Hook, ok bool)
	// Rule returns a rule by its handle, and its position in the chain from 1; 0 if it is gone.
	Rule func(table nft.TraceTable, chain string, handle uint64) (rule nft.TracedRule, position int)
	// Interface is the name of an interface by its index.
	Interface func(index uint32) string
	// BridgeNetfilter returns whether an interface is a bridge and packets of a family that it forwards pass the IP hooks
	// (net.bridge.bridge-nf-call-iptables and -ip6tables of br_netfilter).
	BridgeNetfilter func(iface string, f nft.Family) bool
	// Describer is that of nftproxy's table of a family, nil if it cannot be read.
	Describer func(nft.Family) *explain.Describer
	Node      func(nft.Family) explain.Node
}

// Path is the path of one packet through the node: the first of a connection, unless all are traced.
type Path struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Stamp has the time of the packet.
	inspect.Stamp
	Packet explain.PacketDoc `json:"packet"`
	// Service is "namespace/service:port" of the destination, if it is known.
	Service string          `json:"service,omitempty"`
	Outcome explain.Outcome `json:"outcome"`
	// Summary is the outcome in one sentence.
	Summary string `json:"summary"`
	// Endpoint is the translated destination.
	Endpoint string `json:"endpoint,omitempty"`
	// OIF is the interface that it left by.
	OIF string `json:"oif,omitempty"`
	// Masqueraded is true when a rule changed the source that the receiver sees.
	Masqueraded bool `json:"masqueraded"`
	// Steps are all rules of all tables that matched, and the policies of base chains.
	Steps    []explain.Step `json:"steps"`
	Warnings []string       `json:"warnings,omitempty"`
}
