// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import "fmt"

// Object is a *Service, *EndpointSlice, *Node or *ServiceCIDR, and nothing else.
type Object interface {
	// Ref says which object it is.
	Ref() Ref
	// same is Equal on the type that o must be of.
	same(o Object) bool
}

// Sink takes what a source learns. A source calls it from several goroutines, but about one kind of object only
// from one of them at a time. A call must not block for long, and must not call the source.
//
// A source calls Set only with what differs from what it set before, and Delete only for what it set. It never
// deletes because it lost sight of its origin: an API server that is away, or a file that cannot be read just now,
// leaves everything as it was.
type Sink interface {
	// Set says that the object is new or has changed. It is not changed afterwards by anyone.
	Set(Object)
	// Delete says that an object that was set is gone, or is none of the proxy's business any more.
	Delete(Ref)
	// Synced says, once per kind, that all objects of the kind that exist have been set. Before that, the absence of
	// an object means nothing. A kind that the source cannot know (ServiceCIDRs of an old API server) is synced
	// too, with no objects.
	Synced(Kind)
	// Problem says what is wrong with an object or a manifest file now; nil says that nothing is any more. The error
	// joins one *FieldError or *FileError for each place. The rest of the object is used.
	Problem(Ref, error)
}

// FieldError says which field of which object cannot be used. Everything else of the object is.
type FieldError struct {
	Object Ref
	Field  string // a path as in "spec.ports[1].port"
	Err    error
}

// Error returns "Kind namespace/name: field: reason".
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Object, e.Field, e.Err) }

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }
