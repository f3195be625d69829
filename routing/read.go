// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Read returns the state of the node. table is the steering table, whose foreign routes are of interest; 0 for none.
//
// The parts are read one after the other. If somebody changes something in between, they may not fit together;
// then a notification is under way that makes the caller read again.
func (k *Kernel) Read(ctx context.Context, table uint32) (State, error) {
	r := reader{ctx: ctx, k: k, s: State{
		Ours: Set{}, Neighbours: map[Neighbour]bool{}, Forwarding: map[Family]bool{},
	}}
	r.links()
	for _, f := range []Family{IPv4, IPv6} {
		r.addrs(f)
		r.neighbours(f)
		r.routes(f, table)
		r.rules(f)
		r.netconf(f)
	}
	if err := errors.Join(r.failed...); err != nil {
		return State{}, fmt.Errorf("routing: read the kernel: %w", err)
	}
	return r.s, nil
}

// reader is one run of Read.
type reader struct {
	ctx    context.Context
	k      *Kernel
	s      State
	failed []error
}

// take runs a dump and remembers its failure under a name. A family that the kernel was built or booted without has
// nothing to dump.
func take[E any](r *reader, what string, m message, decode func([]byte) (E, bool)) []E {
	out, err := dump(r.ctx, r.k, m, decode)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
		r.failed = append(r.failed, fmt.Errorf("dump %s: %w", what, err))
	}
	return out
}

func (r *reader) links() {
	r.s.Links = take(r, "links", dumpLinks(), decodeLink)
	slices.SortFunc(r.s.Links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
}

func (r *reader) addrs(f Family) {
	type both struct {
		Addr
		ours bool
	}
	for _, a := range take(r, f.String()+" addresses", dumpAddrs(f), func(b []byte) (both, bool) {
		a, ours, ok := decodeAddr(b)
		return both{a, ours}, ok
	}) {
		if a.ours {
			r.s.Ours[Address{a.Index, a.Prefix}] = struct{}{}
		} else {
			r.s.Addrs = append(r.s.Addrs, a.Addr)
		}
	}
}

func (r *reader) neighbours(f Family) {
	type both struct {
		Neighbour
		ours bool
	}
	for _, n := range take(r, f.String()+" neighbours", dumpNeighbours(f), func(b []byte) (both, bool) {
		n, ours, permanent, ok := decodeNeighbour(b)
		return both{n, ours}, ok && permanent
	}) {
		if n.ours {
			r.s.Ours[n.Neighbour] = struct{}{}
		} else {
			r.s.Neighbours[n.Neighbour] = true
		}
	}
}

func (r *reader) routes(f Family, table uint32) {
	ours := take(r, f.String()+" routes", dumpOurRoutes(f), func(b []byte) (Route, bool) {
		route, protocol, ok := decodeRoute(b)
		return route, ok && protocol == Protocol
	})
	for _, route := range ours {
		r.s.Ours[route] = struct{}{}
	}
	if table == 0 {
		return
	}
	foreign, err := dump(r.ctx, r.k, dumpTable(f, table), func(b []byte) (ForeignRoute, bool) {
		route, protocol, ok := decodeRoute(b)
		return ForeignRoute{route.Dst, protocol}, ok && protocol != Protocol && route.Table == table
	})
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: nobody uses that table
		r.failed = append(r.failed, fmt.Errorf("dump %s table %d: %w", f, table, err))
	}
	r.s.TableRoutes = append(r.s.TableRoutes, foreign...)
}

func (r *reader) rules(f Family) {
	type both struct {
		ForeignRule
		kernel bool
	}
	for _, x := range take(r, f.String()+" rules", dumpRules(f), func(b []byte) (both, bool) {
		rule, kernel, ok := decodeRule(b)
		return both{rule, kernel}, ok
	}) {
		switch {
		case x.kernel:
		case x.Protocol == Protocol:
			r.s.Ours[Rule{x.Fam, x.Priority, x.Mark, x.Mask, x.Table}] = struct{}{}
		default:
			r.s.Rules = append(r.s.Rules, x.ForeignRule)
		}
	}
}

func (r *reader) netconf(f Family) {
	for _, c := range take(r, f.String()+" settings", dumpNetconf(f), decodeNetconf) {
		if c.index == netconfAll {
			r.s.Forwarding[f] = c.forwarding
			if f == IPv4 {
				r.s.AllRPFilter = c.rpFilter
			}
			continue
		}
		for i := range r.s.Links {
			if f == IPv4 && r.s.Links[i].Index == c.index {
				r.s.Links[i].RPFilter = c.rpFilter
			}
		}
	}
}
