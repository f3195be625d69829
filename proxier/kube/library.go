// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// claim is what one place in one file says about an object.
type claim struct {
	ref Ref
	// object is the last good state, which may be older than the text; known is false where there never was one.
	object         Object
	known          bool
	document, item int32
	*trouble       // nil if there is none; nothing ignored is a claim
	file           *manifestFile
	// hash is of the text that it was read from, if nothing else was; else 0.
	hash uint64
	next *claim // about the same object, after this one in the order of precedence
}

// place wraps an error into where it happened.
func (c *claim) place(err error) error {
	return &FileError{c.file.path, int(c.document), int(c.item), err}
}

// before tells the order of precedence: by the name of the file, and within it from top to bottom.
func (c *claim) before(o *claim) bool {
	if c.file != o.file {
		return c.file.path < o.file.path
	}
	if c.document != o.document {
		return c.document < o.document
	}
	return c.item < o.item
}

// manifestFile is what is known of one file.
type manifestFile struct {
	path   string
	stamp  stamp
	claims []*claim // with a name, in the order of the file
	// problem is what is wrong with the file beyond single objects; ignored are the kinds in it that are not for us.
	problem error
	ignored []string
}

// byHash returns the claims that need no new reading while their text stays.
func (f *manifestFile) byHash() map[uint64]*claim {
	if f == nil {
		return nil
	}
	out := make(map[uint64]*claim, len(f.claims))
	for _, c := range f.claims {
		if c.hash != 0 && c.trouble == nil {
			out[c.hash] = c
		}
	}
	return out
}

// library is the state of all files, and what the sink was told of it. It is not safe for concurrent use.
type library struct {
	sink  Sink
	node  string // the only Node that is of interest
	seed  maphash.Seed
	files map[string]*manifestFile // by path
	first map[Ref]*claim           // of those about the same object, in the order of precedence
	told  map[Ref]string           // problems
}

func newLibrary(sink Sink, node string) *library {
	return &library{
		sink: sink, node: node, seed: maphash.MakeSeed(),
		files: map[string]*manifestFile{}, first: map[Ref]*claim{}, told: map[Ref]string{},
	}
}

// update takes the present contents of files. What says the same as before costs next to nothing.
func (l *library) update(contents []content) {
	var pieces []piece
	counts := make([]int, len(contents))
	for i, c := range contents {
		if c.err != nil || c.gone {
			continue
		}
		cut := cutFile(c.path, c.data)
		old := l.files[c.path].byHash()
		for i := range cut {
			cut[i].old = old
		}
		counts[i] = len(cut)
		pieces = append(pieces, cut...)
	}
	all := readAll(pieces, l.seed)
	was := map[Ref]Object{}
	for i, c := range contents {
		l.take(c, all[:counts[i]], was)
		all = all[counts[i]:]
	}
	l.tell(was)
}

// content is what a file holds now.
type content struct {
	path  string
	stamp stamp
	data  []byte
	gone  bool  // there is no such file any more
	err   error // it cannot be read just now
}

// take replaces what a file says. was collects the state of the objects concerned before that.
func (l *library) take(c content, all []reads, was map[Ref]Object) {
	f := l.files[c.path]
	if f == nil {
		f = &manifestFile{path: c.path}
		l.files[c.path] = f
	}
	f.stamp = c.stamp
	switch {
	case c.gone:
		l.replace(f, nil, was)
		f.problem = nil
		delete(l.files, c.path)
	case c.err != nil:
		f.problem = &FileError{Path: c.path, Err: c.err}
	default:
		l.replace(f, l.claims(f, all), was)
	}
	l.report(Ref{KindFile, Name{"", f.path}}, f.problem)
}

// claims makes the claims of a file out of what it was read as, and keeps of the old ones what has not changed and
// what cannot be read any more.
func (l *library) claims(f *manifestFile, all []reads) []*claim {
	byRef := map[Ref]*claim{}
	for _, c := range f.claims {
		byRef[c.ref] = c
	}
	used := map[*claim]bool{}
	out := make([]*claim, 0, len(all))
	var problems []error
	ignored := map[string]bool{}
	for i := range all {
		r := &all[i]
		if c := r.same; c != nil {
			if used[c] { // the same text twice
				c = &claim{ref: c.ref, object: c.object, known: c.known, file: f, hash: c.hash}
			}
			used[c] = true
			c.document, c.item = int32(r.document), int32(r.item)
			out = append(out, c)
		}
		for _, one := range r.list {
			switch {
			case one.ref.Name.Name != "":
				if one.ref.Kind != KindNode || one.ref.Name.Name == l.node {
					out = append(out, newClaim(f, r, &one, byRef[one.ref]))
				}
			case one.ignored != "":
				ignored[one.ignored] = true
			default:
				problems = append(problems, &FileError{f.path, r.document, one.item, one.broken})
			}
		}
	}
	f.problem, f.ignored = errors.Join(problems...), slices.Sorted(maps.Keys(ignored))
	if len(problems) > 0 {
		out = append(out, missing(f.claims, out)...)
	}
	return out
}

// newClaim makes a claim out of one of the readings of r. Where that does not say what the object should be it is as
// in old, the claim before it, if any.
func newClaim(f *manifestFile, r *reads, one *reading, old *claim) *claim {
	c := &claim{ref: one.ref, trouble: one.trouble, file: f, document: int32(r.document), item: int32(one.item)}
	if len(r.list) == 1 {
		c.hash = r.hash
	}
	switch {
	case c.trouble == nil || c.broken == nil:
		c.object, c.known = one.object, true
	case old != nil:
		c.object, c.known = old.object, old.known
	}
	return c
}

// missing returns those of old that are about objects that none of now is about. Where a document cannot be read
// there is no telling which of them it was.
func missing(old, now []*claim) (out []*claim) {
	there := map[Ref]bool{}
	for _, c := range now {
		there[c.ref] = true
	}
	for _, c := range old {
		if !there[c.ref] {
			out = append(out, c)
		}
	}
	return out
}

// replace puts new claims of a file in the place of its old ones.
func (l *library) replace(f *manifestFile, claims []*claim, was map[Ref]Object) {
	old, now := f.claims, claims
	f.claims = claims
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] { // a change is small, as a rule
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	for _, c := range old {
		l.remember(c.ref, was)
		l.unlink(c)
	}
	for _, c := range now {
		l.remember(c.ref, was)
		l.link(c)
	}
}

// remember notes the state of an object before the first change of this update.
func (l *library) remember(ref Ref, was map[Ref]Object) {
	if _, known := was[ref]; !known {
		was[ref] = l.state(ref)
	}
}

// state returns what is to be known of an object: what the first claim says that says anything.
func (l *library) state(ref Ref) Object {
	for c := l.first[ref]; c != nil; c = c.next {
		if c.known {
			return c.object
		}
	}
	return nil
}

func (l *library) unlink(c *claim) {
	at := l.first[c.ref]
	if at == c {
		if l.first[c.ref] = c.next; c.next == nil {
			delete(l.first, c.ref)
		}
		c.next = nil
		return
	}
	for ; at.next != c; at = at.next {
	}
	at.next, c.next = c.next, nil
}

func (l *library) link(c *claim) {
	at := l.first[c.ref]
	if at == nil || c.before(at) {
		l.first[c.ref], c.next = c, at
		return
	}
	for ; at.next != nil && at.next.before(c); at = at.next {
	}
	at.next, c.next = c, at.next
}

// tell hands the sink what has changed. What is new comes before what is gone, so that an endpoint that only moved
// from one slice to another is never missing.
func (l *library) tell(was map[Ref]Object) {
	var gone []Ref
	for ref, old := range was {
		l.report(ref, l.problems(ref))
		switch now := l.state(ref); {
		case now == nil && old != nil:
			gone = append(gone, ref)
		case now != nil && (old == nil || !now.same(old)):
			l.sink.Set(now)
		}
	}
	for _, ref := range gone {
		l.sink.Delete(ref)
	}
}

// problems returns what all files have wrong about an object.
func (l *library) problems(ref Ref) error {
	var all []error
	counts := (*claim)(nil)
	for c := l.first[ref]; c != nil; c = c.next {
		if c.trouble != nil {
			for _, err := range c.trouble.problems {
				all = append(all, c.place(err))
			}
			if c.broken != nil {
				all = append(all, c.place(c.broken))
			}
		}
		if counts != nil {
			err := fmt.Errorf("also given in %s: %w", counts.place(nil), errDuplicate)
			all = append(all, c.place(&FieldError{ref, "metadata.name", err}))
		} else if c.known {
			counts = c
		}
	}
	return errors.Join(all...)
}

// report tells a problem, or that there is none, if that is news.
func (l *library) report(ref Ref, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == l.told[ref] {
		return
	}
	if l.told[ref] = text; err == nil {
		delete(l.told, ref)
	}
	l.sink.Problem(ref, err)
}

// ignoredKinds lists the kinds in all files that are not for the proxy.
func (l *library) ignoredKinds() string {
	kinds := map[string]bool{}
	for _, f := range l.files {
		for _, k := range f.ignored {
			kinds[k] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
}
