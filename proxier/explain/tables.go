// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// tables answer lookups as the kernel's sets do.
type tables struct {
	exact  map[nft.SetID]map[string]*nft.Element
	ranges map[nft.SetID][]*nft.Element
}

func index(s *nft.Snapshot) *tables {
	t := &tables{map[nft.SetID]map[string]*nft.Element{}, map[nft.SetID][]*nft.Element{}}
	for i := range s.Elements {
		e := &s.Elements[i]
		if e.Set.IsInterval() {
			t.ranges[e.Set] = append(t.ranges[e.Set], e)
			continue
		}
		if t.exact[e.Set] == nil {
			t.exact[e.Set] = map[string]*nft.Element{}
		}
		t.exact[e.Set][e.Key] = e
	}
	return t
}

// find returns the element that a key matches.
func (t *tables) find(set nft.SetID, key string) *nft.Element {
	if !set.IsInterval() {
		return t.exact[set][key]
	}
	for _, e := range t.ranges[set] {
		if within(e, key) {
			return e
		}
	}
	return nil
}

// within tells whether a key is in an interval. In a concatenation each field has to be in its own interval; ours
// differ in the last, the address, only. A plain interval ends before its End, or never.
func within(e *nft.Element, key string) bool {
	if e.Set == nft.Allowed {
		return e.Key <= key && key <= e.End
	}
	return e.Key <= key && (e.End == "" || key < e.End)
}

// lookup evaluates a lookup in any set or map of the table.
func (r *run) lookup(e *expr.Lookup, s *state, did *step) {
	decl, ok := r.snapshot.Sets[e.SetName]
	if !ok {
		r.warn("%s looks up set %s, which does not exist", r.name, e.SetName)
		did.action.verdict = mismatch
		return
	}
	h := hit{set: e.SetName, key: string(s.get(e.SourceRegister, int(decl.KeyLen)))}
	if decl.DataType == unix.NFT_DATA_VERDICT {
		p := nft.Program(binary.NativeEndian.Uint32([]byte(h.key)))
		if h.found = r.programs(e.SetName)[p]; h.found {
			if did.action.verdict, did.action.target = goTo, p.Chain(); p.Kind().IsPolicy() {
				did.action.verdict = jump
			}
		}
	} else {
		h.data, h.found = r.datum(e.SetName, h.key, s)
		if h.found && e.IsDestRegSet {
			s.put(e.DestRegister, []byte(h.data))
		}
	}
	if h.found == e.Invert {
		did.action.verdict = mismatch
	}
	did.hits = append(did.hits, h)
}

func (m *machine) programs(set string) map[nft.Program]bool {
	switch set {
	case "policies":
		return m.snapshot.Policies
	case "draws":
		return m.snapshot.Draws
	}
	return m.snapshot.Programs
}

// datum looks a key up in a set or map of data.
func (r *run) datum(name, key string, s *state) (data string, found bool) {
	if set, ok := nft.ParseSet(name); ok {
		if e := r.tables.find(set, key); e != nil {
			return e.Data, true
		}
		return "", false
	}
	for l := s.learned; l != nil; l = l.prev {
		if l.set == name && l.key == key {
			return l.data, l.data != ""
		}
	}
	if r.node.Client == nil {
		return "", false
	}
	data = r.node.Client(name, key)
	return data, data != ""
}

// Operations of a dynset (enum nft_dynset_ops).
const (
	dynsetAdd    = 0
	dynsetUpdate = 1
	dynsetDelete = 2
)

// dynset remembers what the kernel would store in a sticky map, without storing it.
func (r *run) dynset(e *expr.Dynset, s *state) {
	key := string(s.get(e.SrcRegKey, s.family.AddrLen()))
	data := ""
	if e.Operation != dynsetDelete {
		data = string(s.get(e.SrcRegData, 4))
		if had, found := r.datum(e.SetName, key, s); found && e.Operation == dynsetAdd {
			data = had // what is there stays
		}
	}
	s.learned = &learned{s.learned, e.SetName, key, data}
}
