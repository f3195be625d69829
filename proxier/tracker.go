// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// tracker holds the latest version of every object and which Services are to be looked at again. It is the
// kube.Sink of the proxy, safe for concurrent use, and calls kick after each change.
type tracker struct {
	kick func()

	mu       sync.Mutex
	services map[kube.Name]*kube.Service
	slices   map[kube.Name][]*kube.EndpointSlice // by Service, in name order
	owner    map[kube.Name]kube.Name             // of a slice
	node     *kube.Node
	cidrs    map[kube.Name]*kube.ServiceCIDR
	problems map[kube.Ref]error
	synced   map[kube.Kind]bool
	pending  pending
}

// pending is what has happened since the last batch.
type pending struct {
	services map[kube.Name]bool // to be built anew
	node     bool               // what belongs to no Service is to be built anew
	problems map[kube.Ref]error // new ones, nil for those solved
	// since is when the first of the changes came in, zero if there is none.
	since time.Time
	// triggers are when the changes of endpoints began, as far as the slices tell.
	triggers                        []time.Time
	serviceChanges, endpointChanges int
}

func newTracker(kick func()) *tracker {
	t := &tracker{
		kick:     kick,
		services: map[kube.Name]*kube.Service{},
		slices:   map[kube.Name][]*kube.EndpointSlice{},
		owner:    map[kube.Name]kube.Name{},
		cidrs:    map[kube.Name]*kube.ServiceCIDR{},
		problems: map[kube.Ref]error{},
		synced:   map[kube.Kind]bool{},
	}
	t.pending.reset()
	return t
}

func (p *pending) reset() {
	*p = pending{services: map[kube.Name]bool{}, problems: map[kube.Ref]error{}}
}

// Set takes a new or changed object.
func (t *tracker) Set(o kube.Object) {
	t.mu.Lock()
	switch o := o.(type) {
	case *kube.Service:
		t.services[o.Name] = o
		t.serviceChanged(o.Name)
	case *kube.EndpointSlice:
		t.setSlice(o)
	case *kube.Node:
		t.node = o
		t.pending.node = true
		t.touch()
	case *kube.ServiceCIDR:
		t.cidrs[o.Name] = o
		t.pending.node = true
		t.touch()
	}
	t.mu.Unlock()
	t.kick()
}

// Delete forgets an object.
func (t *tracker) Delete(r kube.Ref) {
	t.mu.Lock()
	switch r.Kind {
	case kube.KindService:
		delete(t.services, r.Name)
		t.serviceChanged(r.Name)
	case kube.KindEndpointSlice:
		t.dropSlice(r.Name)
	case kube.KindNode:
		t.node = nil
		t.pending.node = true
		t.touch()
	case kube.KindServiceCIDR:
		delete(t.cidrs, r.Name)
		t.pending.node = true
		t.touch()
	}
	t.mu.Unlock()
	t.kick()
}

// Synced notes that a kind is complete.
func (t *tracker) Synced(k kube.Kind) {
	t.mu.Lock()
	t.synced[k] = true
	t.touch()
	t.mu.Unlock()
	t.kick()
}

// Problem notes what is wrong with an object.
func (t *tracker) Problem(r kube.Ref, err error) {
	t.mu.Lock()
	if err == nil {
		delete(t.problems, r)
	} else {
		t.problems[r] = err
	}
	t.pending.problems[r] = err
	t.mu.Unlock()
	t.kick()
}

// touch notes the time of the first change of a batch; t.mu must be held.
func (t *tracker) touch() {
	if t.pending.since.IsZero() {
		t.pending.since = time.Now()
	}
}

func (t *tracker) serviceChanged(n kube.Name) {
	t.pending.services[n] = true
	t.pending.serviceChanges++
	t.touch()
}

// setSlice puts a slice with its Service, and takes it from another that it belonged to before.
func (t *tracker) setSlice(s *kube.EndpointSlice) {
	if was, ok := t.owner[s.Name]; ok && was != s.Service {
		t.dropSlice(s.Name)
	}
	t.owner[s.Name] = s.Service
	list := t.slices[s.Service]
	i, found := slices.BinarySearchFunc(list, s.Name, bySliceName)
	if found {
		list = slices.Clone(list) // batches hold the old one
		list[i] = s
	} else {
		list = slices.Insert(slices.Clone(list), i, s)
	}
	t.slices[s.Service] = list
	t.endpointsChanged(s.Service)
	if !s.Changed.IsZero() {
		t.pending.triggers = append(t.pending.triggers, s.Changed)
	}
}

func bySliceName(s *kube.EndpointSlice, n kube.Name) int { return strings.Compare(s.Name.Name, n.Name) }

func (t *tracker) dropSlice(n kube.Name) {
	svc, ok := t.owner[n]
	if !ok {
		return
	}
	delete(t.owner, n)
	list := slices.DeleteFunc(slices.Clone(t.slices[svc]), func(s *kube.EndpointSlice) bool { return s.Name == n })
	if len(list) == 0 {
		delete(t.slices, svc)
	} else {
		t.slices[svc] = list
	}
	t.endpointsChanged(svc)
}

func (t *tracker) endpointsChanged(svc kube.Name) {
	t.pending.services[svc] = true
	t.pending.endpointChanges++
	t.touch()
}

// complete tells whether every kind has been listed. Before that nothing may be removed.
func (t *tracker) complete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range kube.Kinds() {
		if !t.synced[k] {
			return false
		}
	}
	return true
}

// take returns what has happened since the last call.
func (t *tracker) take() pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pending
	t.pending.reset()
	return p
}

// maxTriggers bounds what is kept for a metric while nothing can be committed, as long as that may be.
const maxTriggers = 10000

// giveBack puts the Services of a batch that failed back, so that they are looked at again.
func (t *tracker) giveBack(p pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.pending.services, p.services)
	t.pending.node = t.pending.node || p.node
	t.pending.triggers = append(p.triggers, t.pending.triggers...)
	t.pending.triggers = t.pending.triggers[:min(len(t.pending.triggers), maxTriggers)]
	if t.pending.since.IsZero() || !p.since.IsZero() && p.since.Before(t.pending.since) {
		t.pending.since = p.since
	}
}

// again asks for Services to be looked at again.
func (t *tracker) again(names []kube.Name) {
	t.mu.Lock()
	for _, n := range names {
		t.pending.services[n] = true
	}
	if len(names) > 0 {
		t.touch()
	}
	t.mu.Unlock()
}

// service returns the latest version of a Service, nil if there is none, and of its slices.
func (t *tracker) service(n kube.Name) (*kube.Service, []*kube.EndpointSlice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.services[n], t.slices[n]
}

// names lists all Services.
func (t *tracker) names() []kube.Name {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.services))
}

// cluster returns the own Node, nil if it is not known, and the ranges of ClusterIPs.
func (t *tracker) cluster() (*kube.Node, []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var cidrs []netip.Prefix
	for _, c := range t.cidrs {
		cidrs = append(cidrs, c.Prefixes...)
	}
	slices.SortFunc(cidrs, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return t.node, cidrs
}
