// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Why a Service is set aside: a label of a metric.
const (
	asideRefused  = "refused"   // by the kernel
	asideTooLarge = "too-large" // for the bound on one Service
	asideNoRoom   = "no-room"   // for the bound on all of them
)

// asideReasons are the reasons of the Events.
var asideReasons = map[string]string{
	asideRefused: "FailedToProgramService", asideTooLarge: "ServiceTooLarge", asideNoRoom: "NoRoomForService",
}

// maxAddresses bounds the addresses of one Service in one family, whatever the bound on elements: frontends of a port are
// compared with each other in some places, which for 1,024 takes about a millisecond.
const maxAddresses = 1024

// leaveOut takes a Service out of a batch that asks for too much. What was committed of it goes: its endpoints would
// grow stale, and what is served would depend on what happened in which order.
func (p *Proxier) leaveOut(ctx context.Context, u *update, reason string, size int, err error) {
	u.next, u.out, u.refused = nil, services.Output{}, true
	a := p.aside[u.name]
	if a == nil {
		a = &aside{}
		p.aside[u.name] = a
	}
	a.due, a.size = time.Now().Add(idle), size // another size, or room, is what helps
	if a.reason == reason {
		return // told
	}
	a.reason = reason
	p.tellAside(ctx, u, a, err)
}

// tellAside logs that a Service was set aside, counts it, and writes an Event.
func (p *Proxier) tellAside(ctx context.Context, u *update, a *aside, err error) {
	p.opt.Metrics.SetAside("Service", len(p.aside))
	p.opt.Metrics.SetAsideEvent("Service")
	p.opt.Metrics.ServiceAside(u.name.Namespace, u.name.Name, a.reason)
	klog.FromContext(ctx).Error(err, "Set a Service aside, all others are served", "service", u.name, "reason", a.reason,
		"retryIn", time.Until(a.due).Round(time.Millisecond))
	if u.service != nil {
		p.event(kube.Ref{Kind: kube.KindService, Name: u.name}, u.service.UID, asideReasons[a.reason], err.Error())
	}
}

// estimateSlack is by how much an estimate may be above the bound before a Service is built to know its size exactly: the
// estimate counts endpoints that are not ready, and frontends that another Service has. It bounds the memory of one build to
// some 32 bytes, the size of an address with its port, for each element of the bound and each unit of the slack.
const estimateSlack = 4

// tooMany says what is too much about a Service, from counts alone, before anything is made of it.
func tooMany(own *config.Own, s *kube.Service, slices []*kube.EndpointSlice) error {
	limit, e := own.MaxServiceElements, services.EstimateOf(s, slices)
	switch {
	case limit == 0:
	case e.Addresses > maxAddresses:
		return fmt.Errorf("%d addresses of one family: at most %d are served", e.Addresses, maxAddresses)
	case e.Frontends > limit || e.Elements > estimateSlack*limit:
		return fmt.Errorf("%d frontends, some %d elements: at most %d elements of the kernel's tables are one Service's (maxServiceElements)", e.Frontends, e.Elements, limit)
	}
	return nil
}

// tooLarge says what is too much about the size of a Service.
func tooLarge(own *config.Own, size int) error {
	if limit := own.MaxServiceElements; limit > 0 && size > limit {
		return fmt.Errorf("%d elements: at most %d of the kernel's tables are one Service's (maxServiceElements)", size, limit)
	}
	return nil
}

// length is the number of elements that an entry asks for, 0 for none.
func (e *entry) length() int {
	if e == nil {
		return 0
	}
	return e.size
}

// fit makes the updates keep the bound on the elements of all Services: what does not fit is left out, youngest first, and
// what was left out and fits now joins. While everything fits it costs a sum over the batch.
func (p *Proxier) fit(ctx context.Context, updates []*update) []*update {
	limit := p.opt.Config.Own.MaxElements
	if limit == 0 {
		return updates
	}
	total := p.size
	byName := make(map[kube.Name]*update, len(updates))
	for _, u := range updates {
		total += u.next.length() - u.prev.length()
		byName[u.name] = u
	}
	least := 0
	for n, a := range p.aside {
		if a.reason == asideNoRoom && byName[n] == nil && (least == 0 || a.size < least) {
			least = a.size
		}
	}
	if total <= limit && (least == 0 || total+least > limit) {
		return updates
	}
	return p.fitByAge(ctx, updates, byName, limit)
}

// candidate is a Service that wants elements.
type candidate struct {
	name    kube.Name
	created int64
	size    int
}

// fitByAge grants elements to the oldest Services first, as their addresses are granted. It looks at every Service, which
// is done only where the bound is reached.
func (p *Proxier) fitByAge(ctx context.Context, updates []*update, byName map[kube.Name]*update, limit int) []*update {
	left := limit
	for _, c := range p.candidates(byName) {
		u, fits := byName[c.name], c.size <= left
		if fits {
			left -= c.size
		}
		if u == nil && fits == (p.entries[c.name] != nil) {
			continue // as it is
		}
		if u == nil {
			u = p.update(ctx, c.name)
			updates = append(updates, u)
		}
		if !fits && u.next != nil {
			p.leaveOut(ctx, u, asideNoRoom, c.size, fmt.Errorf("%d elements: of %d for all Services there are %d left (maxElements)", c.size, limit, left))
		}
	}
	return updates
}

// candidates are all Services that are served, are to be, or wait for room, in the order in which they are granted it.
func (p *Proxier) candidates(byName map[kube.Name]*update) []candidate {
	var out []candidate
	add := func(n kube.Name, size int) {
		svc, _ := p.tracker.service(n)
		if svc != nil && size > 0 {
			out = append(out, candidate{n, svc.Created, size})
		}
	}
	for n, u := range byName {
		add(n, u.next.length())
	}
	for n, e := range p.entries {
		if byName[n] == nil {
			add(n, e.size)
		}
	}
	for n, a := range p.aside {
		if a.reason == asideNoRoom && byName[n] == nil {
			add(n, a.size)
		}
	}
	slices.SortFunc(out, func(a, b candidate) int {
		if (a.created == 0) != (b.created == 0) { // not known counts as younger than any other
			return cmp.Compare(b.created, a.created)
		}
		return cmp.Or(cmp.Compare(a.created, b.created), a.name.Compare(b.name))
	})
	return out
}
