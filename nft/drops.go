// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

// DropReason is why a packet is not let through.
type DropReason struct {
	Refused bool   // answered, so that the client fails at once; otherwise dropped silently
	Name    string // label of a metric
}

// DropCounter is how many packets one rule refused or dropped.
type DropCounter struct {
	DropReason
	// Rule is the chain and the comment of the rule, Handle its number in the table: a rule that was written anew counts from
	// 0 and usually has another handle.
	Rule    string
	Handle  uint64
	Packets uint64
}

// DropRules are the rules that refuse or drop, by chain and comment. A test holds that the list is complete.
func DropRules() map[string]map[string]DropReason {
	refused := DropReason{true, "no-endpoints"}
	dropped := DropReason{false, "no-local-endpoints"}
	unserved := map[string]DropReason{noEndpoint: refused, noLocalEndpoint: dropped}
	return map[string]map[string]DropReason{
		"unserved":           unserved,
		"unserved-nodeports": unserved,
		"unused":             {unusedPort: {true, "unused-port"}, noService: {false, "no-service"}},
		"source-ranges":      {notAdmitted: {false, "source-ranges"}},
		"filter-output":      {NoBalancer: {true, "no-external-balancer"}},
		noBalancerChain:      {NoBalancer: {true, "no-external-balancer"}},
	}
}

// DropReasons lists all reasons, each once.
func DropReasons() []DropReason {
	return []DropReason{{true, "no-endpoints"}, {true, "unused-port"}, {true, "no-external-balancer"}, {false, "no-local-endpoints"}, {false, "no-service"}, {false, "source-ranges"}}
}
