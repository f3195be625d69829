// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// planner decides what each Service gets, in one walk: estimate, claims, build, slots, limits. It knows what is committed.
type planner struct {
	own     *config.Own
	tracker *tracker
	report  *reporter
	state   nodeState

	index     *services.Index
	committed map[kube.Name]*entry
	usage     usage
	aside     map[kube.Name]*aside
	budgets   map[kube.Name]time.Time // when large Services may be built again
	deferred  map[kube.Name]bool      // those that were not built because of that
}

func newPlanner(own *config.Own, t *tracker, r *reporter) *planner {
	return &planner{
		own: own, tracker: t, report: r,
		index:     services.NewIndex(),
		committed: map[kube.Name]*entry{},
		usage:     usage{byNamespace: map[string]int{}},
		aside:     map[kube.Name]*aside{},
		budgets:   map[kube.Name]time.Time{},
		deferred:  map[kube.Name]bool{},
	}
}

// everything adds all Services, those of the sources and those committed, but for those that the kernel refused and that
// are not due.
func (p *planner) everything(names map[kube.Name]bool) {
	for _, n := range p.tracker.names() {
		if a := p.aside[n]; a == nil || a.reason != refused {
			names[n] = true
		}
	}
	for n := range p.committed {
		names[n] = true
	}
}

// addDue adds the Services whose time has come: refused ones, large ones, and those for which there is room now.
func (p *planner) addDue(names map[kube.Name]bool, now time.Time) {
	for n, a := range p.aside {
		if !a.due.After(now) || a.reason == noRoom && p.usage.fits(p.own, n.Namespace, a.growth) {
			names[n] = true
		}
	}
	for n := range p.deferred {
		if !p.budgets[n].After(now) {
			names[n] = true
		}
	}
}

// next returns how long until addDue adds a Service.
func (p *planner) next(now time.Time) time.Duration {
	wait := idle
	for n, a := range p.aside {
		if a.reason == noRoom && p.usage.fits(p.own, n.Namespace, a.growth) {
			return 0
		}
		wait = min(wait, a.due.Sub(now))
	}
	for n := range p.deferred {
		wait = min(wait, p.budgets[n].Sub(now))
	}
	return max(wait, 0)
}

// plan decides about the named Services and those that gain or lose a claim because of them. The updates are sorted by name,
// so that equal input makes equal transactions. Nothing is remembered as committed.
func (p *planner) plan(ctx context.Context, names map[kube.Name]bool) []*update {
	now := time.Now()
	p.addDue(names, now)
	all := map[kube.Name]*update{}
	grants := grants{committed: &p.usage}
	for len(names) > 0 {
		batch := p.buildAll(names, now)
		names = map[kube.Name]bool{}
		for _, u := range batch {
			if was := all[u.name]; was != nil { // its claims have changed since
				grants.add(u.name.Namespace, was.prev.length()-was.next.length())
			}
			all[u.name] = u
			p.limit(ctx, u, &grants)
			if u.service == nil || u.next != nil {
				continue
			}
			for _, n := range p.index.Remove(u.name) { // what is not served keeps no address from others
				names[n] = true
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *update) int { return a.name.Compare(b.name) })
}

// buildAll builds Services and those that gain or lose a claim because of them. The oldest come first, as limits are granted
// in this order.
func (p *planner) buildAll(names map[kube.Name]bool, now time.Time) []*update {
	large := p.claim(names, now)
	batch := make([]*update, 0, len(names))
	for n := range names {
		svc, endpoints := p.tracker.service(n)
		u := &update{name: n, service: svc, prev: p.committed[n]}
		u.tooLarge = large[n]
		switch {
		case svc == nil:
			p.report.forget(n)
		case u.tooLarge == nil:
			p.build(u, endpoints)
		}
		batch = append(batch, u)
	}
	slices.SortFunc(batch, func(a, b *update) int {
		return cmp.Or(cmp.Compare(a.age(), b.age()), a.name.Compare(b.name))
	})
	return batch
}

// withKept adds the Services that are committed and not among updates, as they are: what a comparison needs.
func (p *planner) withKept(updates []*update) []*update {
	planned := make(map[kube.Name]bool, len(updates))
	for _, u := range updates {
		planned[u.name] = true
	}
	for n, e := range p.committed {
		if !planned[n] {
			svc, _ := p.tracker.service(n)
			updates = append(updates, &update{name: n, service: svc, prev: e, next: e, kept: true})
		}
	}
	slices.SortFunc(updates, func(a, b *update) int { return a.name.Compare(b.name) })
	return updates
}

// age orders Services, the oldest first. A Service without a creation time counts as younger than any other.
func (u *update) age() uint64 {
	if u.service == nil {
		return 0 // a deletion makes room
	}
	return uint64(u.service.Created) - 1
}

// claim brings the claims of Services up to date and adds the Services whose grants change by that. It takes away those
// whose time budget is used up, and returns what is wrong with those that are too large to be built.
func (p *planner) claim(names map[kube.Name]bool, now time.Time) (large map[kube.Name]error) {
	var affected []kube.Name
	for n := range names {
		svc, endpoints := p.tracker.service(n)
		delete(p.deferred, n)
		if svc == nil {
			delete(p.budgets, n)
			affected = append(affected, p.index.Remove(n)...)
			continue
		}
		if p.budgets[n].After(now) {
			p.deferred[n] = true
			delete(names, n)
			continue
		}
		e := services.EstimateOf(svc, endpoints)
		if err := checkEstimate(p.own, e); err != nil {
			if large == nil {
				large = map[kube.Name]error{}
			}
			large[n] = err
			affected = append(affected, p.index.Remove(n)...)
			continue
		}
		if e.Elements > largeService {
			p.budgets[n] = now // build sets it
		}
		affected = append(affected, p.index.Set(n, svc.Created, p.claims(svc))...)
	}
	for _, n := range affected {
		names[n] = true
	}
	return large
}

// claims returns the claims of a Service that it may be granted.
func (p *planner) claims(s *kube.Service) []services.Claim {
	claims := services.Claims(s)
	if len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 {
		return claims
	}
	return slices.DeleteFunc(claims, func(c services.Claim) bool { return p.state.guarded.refuses(c) != "" })
}

// lost returns which claims of a Service it is not granted, nil for none.
func (p *planner) lost(s *kube.Service) func(services.Claim) bool {
	toOthers := p.index.Lost(s.Name)
	if len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 {
		return toOthers
	}
	return func(c services.Claim) bool {
		return toOthers != nil && toOthers(c) || p.state.guarded.refuses(c) != ""
	}
}

// build computes the next entry of a Service, with its endpoints in the slots that they have.
func (p *planner) build(u *update, endpoints []*kube.EndpointSlice) {
	start := time.Now()
	out := services.Build(services.Input{
		Service: u.service, Slices: endpoints, Node: p.state.facts, Lost: p.lost(u.service),
		Options: services.Options{
			FailOpenSourceRanges: !p.own.StrictSourceRanges, CountConnections: p.own.CountConnections, External: p.state.external,
		},
	})
	u.next = newEntry(out.Ports, out.Size())
	u.health = health.Service{Port: out.HealthCheckNodePort, LocalEndpoints: out.LocalReady}
	for i := range u.next.ports {
		port := &u.next.ports[i]
		if was := u.prev.port(port); was != nil {
			port.Cluster = nft.AssignSlots(was.Cluster, port.Cluster)
			port.Local = nft.AssignSlots(was.Local, port.Local)
		}
		port.AffinitySize = uint32(p.own.AffinityMapSize)
	}
	guarded, n := p.claimsRefused(u.service)
	p.report.losses(u.service, p.index, guarded, n)
	if _, large := p.budgets[u.name]; large {
		now := time.Now()
		p.budgets[u.name] = now.Add((buildShare - 1) * now.Sub(start))
	}
}

// claimsRefused describes the first of the addresses of a Service that are guarded, and counts all of them: a user may ask for
// 100,000.
func (p *planner) claimsRefused(s *kube.Service) (out []string, n int) {
	if len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 {
		return nil, 0
	}
	for _, c := range services.Claims(s) {
		why := p.state.guarded.refuses(c)
		if why == "" {
			continue
		}
		if n++; n <= maxLosses {
			out = append(out, fmt.Sprintf("%s %s", c, why))
		}
	}
	return out, n
}

// limit makes an update keep the limits. A Service that is served keeps what it has: its growth is refused.
func (p *planner) limit(ctx context.Context, u *update, g *grants) {
	size := u.next.length()
	growth := size - u.prev.length()
	var reason string
	err := u.tooLarge
	switch {
	case u.service == nil:
	case err != nil:
		reason = tooLarge
	case p.own.MaxServiceElements > 0 && size > p.own.MaxServiceElements:
		reason, err = tooLarge, fmt.Errorf("the Service needs %d elements, the limit is %d (maxServiceElements)", size, p.own.MaxServiceElements)
		u.next = u.next.within(u.prev)
	default:
		if err = g.check(p.own, u.name.Namespace, growth); err != nil {
			reason = noRoom
			u.next = u.next.within(u.prev)
		}
	}
	if reason != "" {
		if u.next == nil {
			u.health = health.Service{}
		}
		p.setAside(ctx, u, reason, growth, err)
	}
	g.add(u.name.Namespace, u.next.length()-u.prev.length())
}

// remember takes a committed batch for what the tables hold.
func (p *planner) remember(updates []*update) {
	for _, u := range updates {
		p.usage.add(u.name.Namespace, u.next.length()-u.prev.length())
		if u.next == nil {
			delete(p.committed, u.name)
		} else {
			p.committed[u.name] = u.next
		}
		if !u.setAside && p.aside[u.name] != nil {
			delete(p.aside, u.name)
			p.report.asideEnded(u.name, len(p.aside))
		}
	}
}
