// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// isolation finds the Services that the kernel refuses, so that all others are served. Of an error it uses
// only whether it is about an element.
type isolation struct {
	tables  *tables
	planner *planner
	node    *nodeState
	// committed takes updates that the kernel has.
	committed func([]*update)
	// wrote and elements count what comparisons and changes have written; repaired means that a comparison other than the
	// first wrote something.
	wrote, elements int
	repaired        bool
	// inChunks commits what fits into one transaction at a time: after a refusal of several the tables are not known.
	inChunks bool
	// suspects were refused on their own, with the error: they are tried again after all others, as what they collide with
	// may be about to go.
	suspects []suspect
}

type suspect struct {
	*update
	err error
}

// change commits updates, in halves if the kernel refuses something. The Services that it refuses on their own are set aside.
func (i *isolation) change(ctx context.Context, updates []*update) error {
	if err := i.halve(ctx, updates); err != nil {
		return err
	}
	for _, s := range i.suspects {
		n, err := i.tables.change([]*update{s.update}, i.node)
		i.elements += n
		switch {
		case err == nil:
		case blamesElement(err):
			i.planner.refuse(ctx, s.update, err)
			if !i.tables.known {
				return err
			}
		default:
			return err
		}
		i.committed([]*update{s.update})
	}
	return nil
}

// halve commits updates, and the halves of those that the kernel refuses together.
func (i *isolation) halve(ctx context.Context, updates []*update) error {
	if !i.inChunks || len(updates) == 1 || sizeOf(updates) <= nft.ChunkSize {
		n, err := i.tables.change(updates, i.node)
		i.elements += n
		switch {
		case err == nil:
			i.committed(updates)
			return nil
		case !blamesElement(err), !i.tables.known && len(updates) > 1:
			return err // a comparison finds out
		case !i.tables.known: // it is so large that it is more than one transaction
			i.planner.refuse(ctx, updates[0], err)
			return err
		case len(updates) == 1:
			i.suspects = append(i.suspects, suspect{updates[0], err})
			return nil
		}
	}
	half := len(updates) / 2
	if err := i.halve(ctx, updates[:half]); err != nil {
		return err
	}
	return i.halve(ctx, updates[half:])
}

// sizeOf bounds the elements that updates change.
func sizeOf(updates []*update) (n int) {
	for _, u := range updates {
		n += u.present().length() + u.next.length()
	}
	return n
}

// singleCulprits is how many Services one comparison sets aside one by one. More are held back together and added by halves:
// each comparison reads the tables as a whole.
const singleCulprits = 4

// compare compares, and sets the Services aside that the kernel refuses. updates must cover every Service.
func (i *isolation) compare(ctx context.Context, updates []*update, first bool) error {
	for range singleCulprits {
		err := i.compareOnce(ctx, updates, first)
		u := culprit(err, updates)
		if err == nil || u == nil || !blamesElement(err) {
			return err
		}
		i.planner.refuse(ctx, u, err)
	}
	held, err := i.tables.missing(updates)
	if err != nil {
		return err
	}
	missing := make(map[*update]bool, len(held))
	for _, u := range held {
		missing[u] = true
	}
	others := slices.DeleteFunc(slices.Clone(updates), func(u *update) bool { return missing[u] })
	if err := i.compareOnce(ctx, others, first); err != nil {
		return fmt.Errorf("compare without %d Services that the tables lack: %w", len(held), err)
	}
	for _, u := range held {
		u.absent = true
	}
	i.inChunks = true
	return i.change(ctx, held)
}

func (i *isolation) compareOnce(ctx context.Context, updates []*update, first bool) error {
	list, err := i.tables.compare(ctx, updates, i.node, first)
	for _, c := range list {
		i.wrote += c.repaired.batches
		i.elements += c.repaired.elements
	}
	i.tables.unsettled = i.tables.unsettled || i.wrote > 0
	if err != nil {
		return err
	}
	i.repaired = i.tables.unsettled && !first
	i.tables.unsettled = false
	i.committed(updates)
	return nil
}
