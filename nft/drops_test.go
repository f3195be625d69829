// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"
	"testing"

	"github.com/google/nftables/expr"
)

// Every rule that counts is known with its reason, and every reason has a rule.
func TestJudgesAreAll(t *testing.T) {
	known := DropRules()
	for _, f := range Families() {
		found := map[DropReason]bool{}
		for _, c := range Skeleton(f, Config{NodePortAll: true, Beyond: Beyond{Steering: true, HandOff: true}}) {
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
