// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
)

// feed hands the objects of one kind to a Sink and remembers what it handed over, so that it can tell news from
// repetition, and what is missing from a new list. The values are shared with the Sink: remembering costs a map
// entry each. It is not safe for concurrent use.
type feed struct {
	kind   Kind
	sink   Sink
	have   map[Name]Object
	bad    map[Name]string // the text of the problem last told
	synced bool
}

func newFeed(kind Kind, sink Sink) *feed {
	return &feed{kind: kind, sink: sink, have: map[Name]Object{}, bad: map[Name]string{}}
}

// set takes the present state of an object: nil if it is none of ours. problems is what is wrong with it.
func (f *feed) set(name Name, o Object, problems []error) {
	f.problem(name, errors.Join(problems...))
	old, known := f.have[name]
	switch {
	case o == nil && known:
		delete(f.have, name)
		f.sink.Delete(Ref{f.kind, name})
	case o != nil && (!known || !o.same(old)):
		f.have[name] = o
		f.sink.Set(o)
	}
}

// remove takes that an object is gone.
func (f *feed) remove(name Name) { f.set(name, nil, nil) }

// problem passes on what is wrong with an object where that differs from what was said last.
func (f *feed) problem(name Name, err error) {
	switch told, known := f.bad[name]; {
	case err == nil && !known, err != nil && known && err.Error() == told:
		return
	case err == nil:
		delete(f.bad, name)
	default:
		f.bad[name] = err.Error()
	}
	f.sink.Problem(Ref{f.kind, name}, err)
}

// retain removes what the predicate does not keep: after a new list, those that are not in it.
func (f *feed) retain(keep func(Name) bool) {
	for name := range f.have {
		if !keep(name) {
			f.remove(name)
		}
	}
	for name := range f.bad { // what has problems only, such as a slice of an unknown address type
		if !keep(name) {
			f.remove(name)
		}
	}
}

// markSynced tells the sink once that the kind is complete.
func (f *feed) markSynced() {
	if !f.synced {
		f.synced = true
		f.sink.Synced(f.kind)
	}
}
