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
// difference, apart from a comparison of the endpoints: those that kept their slots are not even encoded.
func Diff(prev, next *Service) Change {
	var c Change
	none := &Service{}
	if prev == nil {
		prev = none
	}
	if next == nil {
		next = none
	}
	c.diffElements(appendFixed(nil, nil, prev), appendFixed(nil, nil, next))
	for i := range prev.Frontends {
		f := &prev.Frontends[i]
		for _, v := range f.views() {
			if g := next.sameFrontend(prev, f, v); g == nil {
				c.Delete = appendSlots(c.Delete, nil, prev, f, v)
			} else {
				c.diffSlots(prev, next, g, v)
			}
		}
	}
	for i := range next.Frontends {
		f := &next.Frontends[i]
		for _, v := range f.views() {
			if prev.sameFrontend(next, f, v) == nil {
				c.Add = appendSlots(c.Add, nil, next, f, v)
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
		c.diffElements(appendSlots(nil, nil, prev, f, v), appendSlots(nil, nil, next, f, v))
		return
	}
	for i := range max(len(was), len(is)) {
		a, b := at(was, i), at(is, i)
		if a == b {
			continue
		}
		if a.IsValid() {
			c.Delete = appendSlot(c.Delete, nil, prev, f, NewSlot(v, i), a, nil)
		}
		if b.IsValid() {
			c.Add = appendSlot(c.Add, nil, next, f, NewSlot(v, i), b, nil)
		}
	}
}

func at(s []netip.AddrPort, i int) netip.AddrPort {
	if i < len(s) {
		return s[i]
	}
	return netip.AddrPort{}
}

// DiffElements returns what leads from one set of elements to another. The order of both is kept. The change may share its
// memory with want.
func DiffElements(have, want []Element) Change {
	if len(have) == 0 {
		return Change{Add: want} // the first start of a node: all there is
	}
	var c Change
	c.diffElements(have, want)
	return c
}

func (c *Change) diffElements(have, want []Element) {
	switch {
	case slices.Equal(have, want):
		return
	case len(have) == 0:
		c.Add = append(c.Add, want...)
		return
	}
	index := newElementIndex(have)
	wanted := make([]bool, len(have))
	for i := range want {
		if at := index.find(&want[i]); at >= 0 && !wanted[at] {
			wanted[at] = true
		} else {
			c.Add = append(c.Add, want[i])
		}
	}
	for i, is := range wanted {
		// A list with a repeated element deletes none that is wanted, and no element twice.
		if !is && index.find(&have[i]) == i {
			c.Delete = append(c.Delete, have[i])
		}
	}
}

// Counter counts how many Services want each element of the shared sets, so that only the
// first and the last reach the kernel. The zero value is not usable; it is not safe for concurrent use.
type Counter map[sharedKey]int32

// sharedKey stands for an element of a shared set: a node may have as many as it has endpoints, so that it holds no pointers.
type sharedKey struct {
	set SetID
	key [24]byte
}

// sharedKeyOf takes the key's last bytes. In the pair of an IPv6 endpoint with itself the bytes before them are the same again.
func sharedKeyOf(e *Element) (k sharedKey) {
	k.set = e.Set
	copy(k.key[:], e.Key[max(0, len(e.Key)-len(k.key)):])
	return k
}

// first counts an element that is wanted and reports whether the kernel needs it.
func (n Counter) first(e *Element) bool {
	if !e.Set.shared() {
		return true
	}
	k := sharedKeyOf(e)
	n[k]++
	return n[k] == 1
}

// last counts an element that is not wanted any more and reports whether the kernel has to delete it.
func (n Counter) last(e *Element) bool {
	if !e.Set.shared() {
		return true
	}
	k := sharedKeyOf(e)
	if n[k]--; n[k] != 0 {
		return false
	}
	delete(n, k)
	return true
}

// Apply folds a change into the counts and returns what of it concerns the kernel.
func (n Counter) Apply(c Change) Change {
	var out Change
	// Additions first, so that an element which moves from one Service to another within c is never sent.
	for i := range c.Add {
		if n.first(&c.Add[i]) {
			out.Add = append(out.Add, c.Add[i])
		}
	}
	for i := range c.Delete {
		if n.last(&c.Delete[i]) {
			out.Delete = append(out.Delete, c.Delete[i])
		}
	}
	return out
}

// Undo takes back what Apply did for c, in reverse.
func (n Counter) Undo(c Change) {
	for i := range c.Delete {
		n.first(&c.Delete[i])
	}
	for i := range c.Add {
		n.last(&c.Add[i])
	}
}
