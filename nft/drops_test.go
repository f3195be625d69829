// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
)

// externalBalancer has everything that the rules can do for a balancer behind a device.
func externalBalancer(f Family) ExternalBalancer {
	b := ExternalBalancer{Steering: true, Mark: 1, Mask: 1, HandOff: true, SteeringHop: netip.MustParseAddr("10.244.1.1"),
		HandOffHop: netip.MustParseAddr("10.244.1.2"), Virtual: netip.MustParseAddr("169.254.169.3")}
	if f == IPv6 {
		b.SteeringHop, b.HandOffHop = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
		b.Virtual = netip.MustParseAddr("fd69::3")
	}
	return b
}

// Every rule that counts is known with its reason, and every reason has a rule.
func TestJudgesAreAll(t *testing.T) {
	known := DropRules()
	for _, f := range Families() {
		found := map[DropReason]bool{}
		for _, c := range Skeleton(f, Config{NodePortAll: true, External: externalBalancer(f)}, []int{24, 32}) {
			comments := map[string]bool{}
			for _, r := range c.Rules {
				if !slices.ContainsFunc(r.Exprs, func(e expr.Any) bool { _, ok := e.(*expr.Counter); return ok }) {
					continue
				}
				reason, ok := known[c.Name][r.Comment]
				if !ok || comments[r.Comment] {
					t.Errorf("%s %s %q counts, and is not known", f, c.Name, r.Comment)
				}
				last, _ := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
				if last == nil || (last.Kind == expr.VerdictDrop) == reason.Refused {
					t.Errorf("%s %s %q ends in %+v", f, c.Name, r.Comment, last)
				}
				found[reason], comments[r.Comment] = true, true
			}
		}
		for _, r := range DropReasons() {
			if !found[r] {
				t.Errorf("%s: no rule for %+v", f, r)
			}
		}
		if len(found) != len(DropReasons()) {
			t.Errorf("%s: reasons %v", f, found)
		}
	}
}
