// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube defines what the proxy uses of Kubernetes objects, converts API objects into it, and watches an API
// server for them.
//
// In: lists and watches of an API server ([API]), or decoded API objects (FromService and its siblings; package manifests
// reads those from files). Out: [Service], [EndpointSlice], [Node] and [ServiceCIDR], delivered to a [Sink]. They are plain,
// compact, immutable values without API objects behind them, so that a node of a large cluster needs a few MiB. The
// package never writes to the API and never deletes an object because the server is unreachable.
//
// A field that cannot be used becomes a [FieldError] and is left out; the rest of the object is used. The conversion is
// linear in the size of the object, and all text that it keeps is printable.
package kube

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Name is the namespace and name of an object. Namespace is empty for cluster-scoped objects.
type Name struct{ Namespace, Name string }

// String returns "namespace/name", or the name alone without a namespace.
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

// The kinds that a source delivers, and File, to which only problems refer.
const (
	KindService Kind = iota
	KindEndpointSlice
	KindNode
	KindServiceCIDR
	KindFile // a manifest file or directory; its name is the path
)

// Kinds lists the kinds of objects. A source reports each of them as synced once.
func Kinds() []Kind { return []Kind{KindService, KindEndpointSlice, KindNode, KindServiceCIDR} }

// String returns the kind as a manifest spells it.
func (k Kind) String() string {
	return [...]string{"Service", "EndpointSlice", "Node", "ServiceCIDR", "File"}[k]
}

// Ref identifies an object. It is comparable.
type Ref struct {
	Kind Kind
	Name Name
}

// String returns "Kind namespace/name".
func (r Ref) String() string { return r.Kind.String() + " " + r.Name.String() }

// Object is a *Service, *EndpointSlice, *Node or *ServiceCIDR, and nothing else.
type Object interface {
	Ref() Ref
	// same reports whether the proxy would do the same for both.
	same(o Object) bool
}

// Sink receives the objects of a source. A source calls it from several goroutines, but about one kind of object only
// from one of them at a time. A call must not block for long and must not call the source.
//
// A source calls Set only with what differs from what it set before, and Delete only for what it set. It never deletes
// an object because its origin is unreachable: an API server that is away, or a file that cannot be read, leaves
// everything as it was.
type Sink interface {
	// Set delivers a new or changed object, which is not changed afterwards.
	Set(Object)
	// Delete reports that an object that was set is gone or is no longer the proxy's.
	Delete(Ref)
	// Synced reports, once per kind, that all existing objects of the kind have been set. Before that the absence of
	// an object means nothing. A kind that the source cannot list (ServiceCIDRs of an old API server) is synced too,
	// without objects.
	Synced(Kind)
	// Problem reports what is wrong with an object or a manifest file; nil reports that nothing is any more. The error
	// joins one error per place. The rest of the object is used.
	Problem(Ref, error)
}

// FieldError names the field of an object that cannot be used. The rest of the object is used.
type FieldError struct {
	Object Ref
	Field  string // a path as in "spec.ports[1].port"
	Err    error
}

// Error returns "Kind namespace/name: field: reason".
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Object, e.Field, e.Err) }

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }

// Printable returns s as it is safe in a log, a metric label, an nft comment and on a terminal: text of printable
// characters is returned unchanged, other text is escaped as in a Go string. Different texts stay different, so that the
// result still identifies the object, port, node or zone. The API server does not validate all names (a zone of an
// endpoint, for one), and no server validates those of a manifest.
func Printable(s string) string {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == 0x7f || c == '\\' || c == '"' {
			quoted := strconv.Quote(s)
			return quoted[1 : len(quoted)-1]
		}
	}
	return s
}

// Cache passes objects of one kind on to a Sink and remembers them, so that the Sink sees changes only and what is missing
// from a new list is deleted. The objects are shared with the Sink: a cached object costs one map entry. It is not safe for
// concurrent use.
type Cache struct {
	kind     Kind
	sink     Sink
	objects  map[Name]Object
	problems map[Name]string // the text last reported
	synced   bool
}

// NewCache returns an empty cache in front of sink.
func NewCache(kind Kind, sink Sink) *Cache {
	return &Cache{kind: kind, sink: sink, objects: map[Name]Object{}, problems: map[Name]string{}}
}

// Set takes the present state of an object, nil if the proxy does not use it, and what is wrong with it.
func (c *Cache) Set(name Name, o Object, problems []error) {
	c.report(name, errors.Join(problems...))
	old, known := c.objects[name]
	switch {
	case o == nil && known:
		delete(c.objects, name)
		c.sink.Delete(Ref{c.kind, name})
	case o != nil && (!known || !o.same(old)):
		c.objects[name] = o
		c.sink.Set(o)
	}
}

// report passes a problem on unless it is the one reported last.
func (c *Cache) report(name Name, err error) {
	if err == nil && c.problems[name] == "" || err != nil && c.problems[name] == err.Error() {
		return
	}
	delete(c.problems, name)
	if err != nil {
		c.problems[name] = err.Error()
	}
	c.sink.Problem(Ref{c.kind, name}, err)
}

// Retain deletes the objects and problems whose names are not in listed.
func (c *Cache) Retain(listed map[Name]bool) {
	for name := range c.objects {
		if !listed[name] {
			c.Set(name, nil, nil)
		}
	}
	for name := range c.problems { // an object may have problems only, such as a slice of an unknown address type
		if !listed[name] {
			c.Set(name, nil, nil)
		}
	}
}

// Synced reports the kind as synced, once.
func (c *Cache) Synced() {
	if !c.synced {
		c.synced = true
		c.sink.Synced(c.kind)
	}
}
