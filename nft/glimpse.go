// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"

	"golang.org/x/sys/unix"
)

// glimpses is how often Glimpse tries to read all of one generation.
const glimpses = 3

// Glimpse is Snapshot for people, who would rather see a table in motion than none: where commits, anyone's, come faster than
// it can be read (100 a second suffice where that takes 10 ms), steady is false after some tries, and parts are of
// different moments. No element is in it twice.
func (k *Kernel) Glimpse(f Family) (s *Snapshot, steady bool, err error) {
	k.lenient = true
	defer func() { k.lenient = false }()
	for range glimpses {
		var before, after uint32
		if before, err = k.Generation(); err != nil {
			return nil, false, err
		}
		s, err = k.glimpse(f)
		if err != nil && !errors.Is(err, unix.ENOENT) { // a table that goes while it is read
			return nil, false, err
		}
		var errGen error
		if after, errGen = k.Generation(); errGen != nil {
			return nil, false, errGen
		}
		if before == after {
			return s, err == nil, err
		}
	}
	if err == nil {
		s.Elements = distinct(s.Elements)
	}
	return s, false, err
}

func (k *Kernel) glimpse(f Family) (*Snapshot, error) {
	c, err := k.read(f)
	if err != nil {
		return nil, err
	}
	rules, err := k.rules(f)
	if err != nil {
		return nil, err
	}
	return &Snapshot{c, rules}, nil
}

// distinct leaves out elements whose key came before: a dump that others interrupt may show one twice.
func distinct(list []Element) []Element {
	seen := make(map[Element]bool, len(list))
	out := list[:0]
	for _, e := range list {
		key := Element{Set: e.Set, Key: e.Key, End: e.End}
		if !seen[key] {
			seen[key] = true
			out = append(out, e)
		}
	}
	return out
}
