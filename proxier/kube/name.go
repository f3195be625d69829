// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"unique"
)

// Name is the namespace and name of an object. Namespace is empty for what lives in none.
type Name struct{ Namespace, Name string }

// String returns "namespace/name", or the name alone where there is no namespace.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Compare orders names by namespace and then by name, as strings.Compare does.
func (n Name) Compare(o Name) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// Kind is a kind of object.
type Kind uint8

// The kinds that a source delivers, and File, which only problems refer to.
const (
	KindService Kind = iota
	KindEndpointSlice
	KindNode
	KindServiceCIDR
	KindFile // a manifest file; its name is the path

	kinds = int(KindFile) // the number of kinds of objects
)

// Kinds lists the kinds of objects, each of which a source reports as synced once.
func Kinds() []Kind { return []Kind{KindService, KindEndpointSlice, KindNode, KindServiceCIDR} }

// String returns the kind as a manifest spells it.
func (k Kind) String() string {
	return [...]string{"Service", "EndpointSlice", "Node", "ServiceCIDR", "File"}[k]
}

// Ref says which object is meant. It is comparable.
type Ref struct {
	Kind Kind
	Name Name
}

// String returns "Kind namespace/name".
func (r Ref) String() string { return r.Kind.String() + " " + r.Name.String() }

// Sym is a string that many objects repeat (the name of a node, a zone, a port), stored once and compared as a
// pointer. The zero Sym is the empty string. It is comparable and safe for concurrent use.
type Sym struct{ h unique.Handle[string] }

// Intern returns the Sym of s.
func Intern(s string) Sym {
	if s == "" {
		return Sym{}
	}
	return Sym{unique.Make(s)}
}

// String returns the string that was interned.
func (s Sym) String() string {
	if s == (Sym{}) {
		return ""
	}
	return s.h.Value()
}

// Hints says for which zones and nodes an endpoint is meant, and in which zone it is itself. It is comparable and takes one
// word: endpoints with equal hints share them. The zero Hints has none of it.
type Hints struct{ h unique.Handle[hints] }

// hints holds each list sorted and joined by commas, which neither a label value nor a node name contains: so it
// is comparable and can be interned.
type hints struct{ zones, nodes, own string }

// NewHints returns the hints for the zones and nodes given, in any order. Empty names are left out.
func NewHints(zones, nodes []string) Hints {
	return newHints(hints{joinSet(zones), joinSet(nodes), ""})
}

// In returns the hints of an endpoint that is in a zone itself.
func (h Hints) In(zone string) Hints {
	all := h.get()
	all.own = zone
	return newHints(all)
}

// Zone is the zone that the endpoint itself is in, empty if not told. Nothing depends on it but what people are shown.
func (h Hints) Zone() string { return h.get().own }

func newHints(h hints) Hints {
	if h == (hints{}) {
		return Hints{}
	}
	return Hints{unique.Make(h)}
}

func joinSet(names []string) string {
	names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(s string) bool { return s == "" })
	return strings.Join(slices.Compact(names), ",")
}

func (h Hints) get() hints {
	if h == (Hints{}) {
		return hints{}
	}
	return h.h.Value()
}

// HasZones tells whether any zone is named; HasNodes the same of nodes.
func (h Hints) HasZones() bool { return h.get().zones != "" }

// HasNodes tells whether any node is named.
func (h Hints) HasNodes() bool { return h.get().nodes != "" }

// ForZone tells whether zone is among those named. An empty zone never is.
func (h Hints) ForZone(zone string) bool { return inSet(h.get().zones, zone) }

// ForNode tells whether node is among those named. An empty node never is.
func (h Hints) ForNode(node string) bool { return inSet(h.get().nodes, node) }

func inSet(set, name string) bool {
	for set != "" && name != "" {
		var first string
		if first, set, _ = strings.Cut(set, ","); first == name {
			return true
		}
	}
	return false
}
