// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
)

// Change is the difference between two states of the elements: first Delete, then Add. Within one
// transaction an element whose datum changes is in both.
type Change struct{ Delete, Add []Element }

// Len is the number of elements sent.
func (c *Change) Len() int { return len(c.Delete) + len(c.Add) }

// Diff returns what leads from one version of a Service to the next; nil is no Service. Its cost follows the
// difference but for a comparison of the endpoints: those that kept their slots are not even encoded.
func Diff(prev, next *Service) Change {
	var c Change
	none := &Service{}
	if prev == nil {
		prev = none
	}
	if next == nil {
		next = none
	}
	c.diffElements(fixedElements(prev), fixedElements(next))
	for i := range prev.Frontends {
		f := &prev.Frontends[i]
		for _, v := range f.views() {
			if g := next.sameFrontend(prev, f, v); g == nil {
				c.Delete = appendSlots(c.Delete, prev, f, v, 0)
			} else {
				c.diffSlots(prev, next, g, v)
			}
		}
	}
	for i := range next.Frontends {
		f := &next.Frontends[i]
		for _, v := range f.views() {
			if prev.sameFrontend(next, f, v) == nil {
				c.Add = appendSlots(c.Add, next, f, v, 0)
			}
		}
	}
	return c
}

// sameFrontend finds the frontend of s that has its endpoints of view v under the same keys as f of o has.
func (s *Service) sameFrontend(o *Service, f *Frontend, v View) *Frontend {
	if s.Proto != o.Proto || (s.Affinity != 0) != (o.Affinity != 0) {
		return nil
	}
	for i := range s.Frontends {
		g := &s.Frontends[i]
		if g.Addr == f.Addr && g.Port == f.Port && (g.Kind == NodePort) == (f.Kind == NodePort) && slices.Contains(g.views(), v) {
			return g
		}
	}
	return nil
}

// diffSlots adds the slots of one frontend and view that differ. A sticky view is compared element by
// element, because an id may be wanted by one endpoint before and another after.
func (c *Change) diffSlots(prev, next *Service, f *Frontend, v View) {
	was, is := prev.endpoints(v), next.endpoints(v)
	if slices.Equal(was, is) {
		return
	}
	if prev.Affinity != 0 {
		c.diffElements(appendSlots(nil, prev, f, v, 0), appendSlots(nil, next, f, v, 0))
		return
	}
	for i := range max(len(was), len(is)) {
		a, b := at(was, i), at(is, i)
		if a == b {
			continue
		}
		if a.IsValid() {
			c.Delete = appendSlot(c.Delete, prev, f, NewSlot(v, i), a, nil)
		}
		if b.IsValid() {
			c.Add = appendSlot(c.Add, next, f, NewSlot(v, i), b, nil)
		}
	}
}

func at(s []netip.AddrPort, i int) netip.AddrPort {
	if i < len(s) {
		return s[i]
	}
	return netip.AddrPort{}
}

// DiffElements returns what leads from one set of elements to another. The order of both is kept.
func DiffElements(have, want []Element) Change {
	var c Change
	c.diffElements(have, want)
	return c
}

func (c *Change) diffElements(have, want []Element) {
	if slices.Equal(have, want) {
		return
	}
	had := make(map[Element]bool, len(have))
	for _, e := range have {
		had[e] = true
	}
	for _, e := range want {
		if had[e] {
			had[e] = false // wanted and there
		} else {
			c.Add = append(c.Add, e)
		}
	}
	for _, e := range have {
		if had[e] {
			c.Delete = append(c.Delete, e)
		}
	}
}

// Counter counts how many Services want each element of the shared sets, so that the kernel is told of the
// first and the last only. The zero value is not usable; it is not safe for concurrent use.
type Counter map[Element]int

// Apply folds a change into the counts and returns what of it concerns the kernel.
func (n Counter) Apply(c Change) Change {
	var out Change
	// Additions first, so that an element which moves from one Service to another within c is never sent.
	for _, e := range c.Add {
		if !e.Set.shared() {
			out.Add = append(out.Add, e)
			continue
		}
		if n[e]++; n[e] == 1 {
			out.Add = append(out.Add, e)
		}
	}
	for _, e := range c.Delete {
		if !e.Set.shared() {
			out.Delete = append(out.Delete, e)
			continue
		}
		switch n[e]--; n[e] {
		case 0:
			delete(n, e)
			out.Delete = append(out.Delete, e)
		}
	}
	return out
}

// Undo takes back what Apply did for c, in reverse.
func (n Counter) Undo(c Change) {
	for _, e := range c.Delete {
		if e.Set.shared() {
			n[e]++
		}
	}
	for _, e := range c.Add {
		if !e.Set.shared() {
			continue
		}
		if n[e]--; n[e] == 0 {
			delete(n, e)
		}
	}
}
