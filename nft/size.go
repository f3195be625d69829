// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

// Size is the number of elements that a Service asks for, or more by at most one for each frontend, without making them:
// it grows with the product of frontends and endpoints, and with that of frontends and source ranges. Elements of shared
// sets count as if they were its own.
func (s *Service) Size() int {
	perSlot := 1
	if s.Affinity != 0 {
		perSlot = 2 // by slot, and by id
	}
	n := len(s.Hairpin)
	for _, a := range s.Affinities() {
		n += len(a.programs()) // their draws
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		n += frontendSize(f)
		if s.Counted {
			n++
		}
		for _, v := range f.views() {
			n += perSlot * len(s.endpoints(v))
			if len(s.endpoints(v)) > 0 {
				n++ // what leads to the view
			}
		}
	}
	return n
}

// frontendSize is the number of elements that do not depend on endpoints, or one more.
func frontendSize(f *Frontend) int {
	n := 1 // the address of a ClusterIP, or the policy of the others; or, without endpoints, the refusal
	if f.Kind == ClusterIP || f.Local {
		n++ // both
	}
	if f.Restricted {
		n += 1 + len(f.Sources)
	}
	if f.Steered || f.HostEndpoint.IsValid() {
		n++
	}
	return n
}
