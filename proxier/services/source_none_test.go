// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// Source ranges none of which could be read admit nobody, whatever the operator chose for missing families.
func TestNoValidRangeAdmitsNobody(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := service(t, nft.IPv4, ":80 lb=1")
		s.NoValidRange = true
		p := only(t, Build(Input{Service: s, Node: here, Slices: slicesOf(t, "1 here"), Options: Options{FailOpenSourceRanges: open}}))
		for _, f := range p.Frontends {
			if want := f.Addr == s.LoadBalancerIPs[0]; f.Restricted != want || len(f.Sources) != 0 {
				t.Errorf("%s restricted %t to %v, want %t", f.Addr, f.Restricted, f.Sources, want)
			}
		}
	}
}
