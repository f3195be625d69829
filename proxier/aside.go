// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// aside is a Service that the kernel refused, or that asks for too much (see bound.go). The former stays as it was
// committed, if it ever was, until its objects change or a retry is due.
type aside struct {
	retry  backoff
	due    time.Time
	reason string
	size   int // in elements, where that is the reason
}

// setAside takes a Service out of a batch: what was committed of it stays.
func (p *Proxier) setAside(ctx context.Context, u *update, err error) {
	a := p.aside[u.name]
	if a == nil {
		a = &aside{}
		p.aside[u.name] = a
	}
	wait := a.retry.next(asideRetryLimit)
	a.due = time.Now().Add(wait)
	a.reason, a.size = asideRefused, 0
	u.next, u.refused = u.prev, true
	p.tellAside(ctx, u, a, err)
}

// asideRetryLimit is the longest pause between two tries of a Service that the kernel refused.
const asideRetryLimit = 5 * time.Minute

// dueAside returns the Services set aside that are to be tried again.
func (p *Proxier) dueAside() []kube.Name {
	var due []kube.Name
	now := time.Now()
	for n, a := range p.aside {
		if !a.due.After(now) {
			due = append(due, n)
		}
	}
	return due
}

// settleAside forgets those of a committed batch that made it.
func (p *Proxier) settleAside(updates []*update) {
	if len(p.aside) == 0 {
		return
	}
	for _, u := range updates {
		if !u.refused {
			delete(p.aside, u.name)
			p.opt.Metrics.ServiceAside(u.name.Namespace, u.name.Name, "")
		}
	}
	p.opt.Metrics.SetAside("Service", len(p.aside))
}

// nextAside returns how long until a Service set aside is due.
func (p *Proxier) nextAside() time.Duration {
	wait := idle
	for _, a := range p.aside {
		wait = min(wait, max(time.Until(a.due), 0))
	}
	return wait
}

// backoff doubles a pause from try to try.
type backoff struct{ wait time.Duration }

// firstRetry is the pause after the first failure: most are a transaction that somebody else's overtook.
const firstRetry = 20 * time.Millisecond

// next returns the pause before the next try.
func (b *backoff) next(limit time.Duration) time.Duration {
	b.wait = min(max(2*b.wait, firstRetry), limit)
	return b.wait
}

func (b *backoff) reset() { b.wait = 0 }

func (p *Proxier) event(r kube.Ref, uid, reason, message string) {
	if p.opt.Recorder != nil {
		p.opt.Recorder.Event(r, uid, reason, message)
	}
}

// lossesTold is how many frontends an Event names; its note has room for no more.
const lossesTold = 16

// reportLosses logs, and writes an Event about, frontends of a Service that an older one has, when they change.
func (p *Proxier) reportLosses(svc *kube.Service) {
	losses := p.index.Losses(svc.Name)
	var all strings.Builder
	for i, l := range losses {
		if i == lossesTold {
			fmt.Fprintf(&all, "and %d more; ", len(losses)-i)
			break
		}
		fmt.Fprintf(&all, "%s belongs to %s; ", l.Claim, l.Winner)
	}
	text := all.String()
	if text == p.losses[svc.Name] {
		return
	}
	if text == "" {
		delete(p.losses, svc.Name)
		return
	}
	p.losses[svc.Name] = text
	klog.InfoS("Service does not get all it asks for, an older one has it", "service", svc.Name, "losses", text)
	p.event(svc.Ref(), svc.UID, "FrontendTaken", text)
}

// reportProblems logs what sources found wrong and writes an Event about it.
func (p *Proxier) reportProblems(problems map[kube.Ref]error) {
	for r, err := range problems {
		if err == nil {
			klog.InfoS("Object is as it should be again", "object", r)
			continue
		}
		klog.ErrorS(err, "Object has fields that cannot be used, the rest of it is", "object", r)
		svc, _ := p.tracker.service(r.Name)
		uid := ""
		if svc != nil && r.Kind == kube.KindService {
			uid = svc.UID
		}
		p.event(r, uid, "InvalidField", err.Error())
	}
}
