// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"
	"time"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Why a Service is set aside: a label of a metric.
const (
	refused  = "refused"   // by the kernel
	tooLarge = "too-large" // for the limit of one Service
	noRoom   = "no-room"   // for the limits of its namespace or of all Services
)

// asideEvents are the reasons of the Events.
var asideEvents = map[string]string{
	refused: "FailedToProgramService", tooLarge: "ServiceTooLarge", noRoom: "NoRoomForService",
}

// aside is a Service that is not served as its objects ask, until they change or a retry is due.
type aside struct {
	retry  backoff
	due    time.Time
	reason string
	growth int // how many elements it lacks, where that is the reason
}

// maxAddresses limits the addresses of one Service in one family, whatever the limit of elements is.
const maxAddresses = 1024

// estimateSlack is by how much an estimate may exceed the limit of one Service before the Service is built to know its size
// exactly: the estimate counts endpoints that are not ready, and frontends that another Service has. It limits the memory of
// one build to some 32 bytes, the size of an address with its port, for each element of the limit and each unit of the slack.
const estimateSlack = 4

// checkEstimate returns an error if a Service is too large by its estimate, before anything is built of it.
func checkEstimate(own *config.Own, e services.Estimate) error {
	limit := own.MaxServiceElements
	switch {
	case limit == 0:
	case e.Addresses > maxAddresses:
		return fmt.Errorf("the Service has %d addresses of one family, the limit is %d", e.Addresses, maxAddresses)
	case e.Frontends > limit || e.Elements > estimateSlack*limit:
		return fmt.Errorf("the Service needs some %d elements for %d frontends, the limit is %d (maxServiceElements)", e.Elements, e.Frontends, limit)
	}
	return nil
}

// usage counts the elements of all Services.
type usage struct {
	total       int
	byNamespace map[string]int
}

func (u *usage) add(namespace string, n int) {
	u.total += n
	u.byNamespace[namespace] += n
	if u.byNamespace[namespace] == 0 {
		delete(u.byNamespace, namespace)
	}
}

// fits reports whether the limits leave room for a growth.
func (u *usage) fits(own *config.Own, namespace string, growth int) bool {
	g := grants{committed: u}
	return g.check(own, namespace, growth) == nil
}

// namespaceShare is the part of the elements of all Services that those of one namespace may have, as a divisor: a user of
// one namespace leaves room for others.
const namespaceShare = 2

// grants are what one pass adds to the usage.
type grants struct {
	committed *usage
	pass      usage
}

// check returns an error with the limit that forbids a growth.
func (g *grants) check(own *config.Own, namespace string, growth int) error {
	limit := own.MaxElements
	if limit == 0 || growth <= 0 {
		return nil
	}
	if left := limit - g.committed.total - g.pass.total; growth > left {
		return fmt.Errorf("%d elements more: of %d for all Services there are %d left (maxElements)", growth, limit, max(left, 0))
	}
	share := limit / namespaceShare
	if left := share - g.committed.byNamespace[namespace] - g.pass.byNamespace[namespace]; growth > left {
		return fmt.Errorf("%d elements more: of %d for one namespace there are %d left (half of maxElements)", growth, share, max(left, 0))
	}
	return nil
}

func (g *grants) add(namespace string, n int) {
	if n == 0 {
		return
	}
	if g.pass.byNamespace == nil {
		g.pass.byNamespace = map[string]int{}
	}
	g.pass.add(namespace, n)
}

// setAside notes that a Service is not served as its objects ask. The same reason is reported once.
func (p *planner) setAside(ctx context.Context, u *update, reason string, growth int, err error) {
	u.setAside = true
	a := p.aside[u.name]
	if a == nil {
		a = &aside{}
		p.aside[u.name] = a
	}
	wait := idle // other objects, or room, are what helps
	if reason == refused {
		wait = a.retry.next(firstRetry, refusedRetry)
	}
	known := a.reason == reason && reason != refused
	a.due, a.reason, a.growth = time.Now().Add(wait), reason, growth
	if known {
		return
	}
	p.report.setAside(ctx, u, reason, len(p.aside), wait, err)
}

// refuse takes a Service out of a batch that the kernel refused: what was committed of it stays, unless that is what the
// kernel refuses.
func (p *planner) refuse(ctx context.Context, u *update, err error) {
	if u.absent || u.next == u.prev {
		u.next = nil
	} else {
		u.next = u.prev
	}
	p.setAside(ctx, u, refused, 0, err)
}
