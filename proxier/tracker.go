// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// tracker holds the latest version of every object and the names of the Services that changed. It is the kube.Sink of the
// proxy and safe for concurrent use.
type tracker struct {
	kick func() // called after each change; must not block
	// count is called with the number of new and of pending changes of a kind, Services or EndpointSlices; must not block.
	count func(kind kube.Kind, changes, pending int)

	mu       sync.Mutex
	services map[kube.Name]*kube.Service
	slices   map[kube.Name][]*kube.EndpointSlice // by Service, in name order
	owner    map[kube.Name]kube.Name             // of a slice
	// node is what was last known of the own Node; nodeGone means that the object has been deleted.
	node     *kube.Node
	nodeGone bool
	cidrs    map[kube.Name]*kube.ServiceCIDR
	synced   map[kube.Kind]bool
	pending  pending
}

// pending is what has happened since the last pass.
type pending struct {
	services map[kube.Name]bool // to be built anew
	problems map[kube.Ref]error // new ones, nil for those solved
	// since is when the first of the changes came in, zero if there is none.
	since time.Time
	// triggers are when the changes of endpoints began, as far as the slices have it.
	triggers                        []trigger
	serviceChanges, endpointChanges int
}

// trigger is when the change began that an EndpointSlice is the result of.
type trigger struct {
	at   time.Time
	ipv6 bool
}

// maxTriggers bounds what is kept for a metric while nothing is committed, as before all kinds are listed.
const maxTriggers = 10000

func newTracker(kick func(), count func(kind kube.Kind, changes, pending int)) *tracker {
	t := &tracker{
		kick: kick, count: count,
		services: map[kube.Name]*kube.Service{},
		slices:   map[kube.Name][]*kube.EndpointSlice{},
		owner:    map[kube.Name]kube.Name{},
		cidrs:    map[kube.Name]*kube.ServiceCIDR{},
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
	defer t.change()()
	switch o := o.(type) {
	case *kube.Service:
		t.services[o.Name] = o
		t.serviceChanged(o.Name)
	case *kube.EndpointSlice:
		t.setSlice(o)
	case *kube.Node:
		t.setNode(o)
	case *kube.ServiceCIDR:
		t.cidrs[o.Name] = o
	}
}

// Delete forgets an object. What was known of the own Node stays: without its addresses NodePorts and health check ports
// would move.
func (t *tracker) Delete(r kube.Ref) {
	defer t.change()()
	switch r.Kind {
	case kube.KindService:
		delete(t.services, r.Name)
		t.serviceChanged(r.Name)
	case kube.KindEndpointSlice:
		t.dropSlice(r.Name)
	case kube.KindNode:
		t.nodeGone = true
	case kube.KindServiceCIDR:
		delete(t.cidrs, r.Name)
	}
}

// Synced notes that a kind is complete.
func (t *tracker) Synced(k kube.Kind) {
	defer t.change()()
	t.synced[k] = true
}

// Problem notes what is wrong with an object.
func (t *tracker) Problem(r kube.Ref, err error) {
	t.mu.Lock()
	t.pending.problems[r] = err
	t.mu.Unlock()
	t.kick()
}

// change begins a change, which ends with a call of what it returns.
func (t *tracker) change() (end func()) {
	t.mu.Lock()
	if t.pending.since.IsZero() {
		t.pending.since = time.Now()
	}
	return func() {
		t.mu.Unlock()
		t.kick()
	}
}

// setNode takes the own Node. A Node that is not initialised, as one of a cloud provider before its controller has seen
// it, has no addresses and no pod ranges: those last known stay.
func (t *tracker) setNode(n *kube.Node) {
	if was := t.node; was != nil && was.Name == n.Name && (len(n.Addrs) == 0 || len(n.PodCIDRs) == 0) {
		merged := *n
		if len(n.Addrs) == 0 {
			merged.Addrs = was.Addrs
		}
		if len(n.PodCIDRs) == 0 {
			merged.PodCIDRs = was.PodCIDRs
		}
		n = &merged
	}
	t.node, t.nodeGone = n, false
}

func (t *tracker) serviceChanged(n kube.Name) {
	t.pending.services[n] = true
	t.pending.serviceChanges++
	t.count(kube.KindService, 1, t.pending.serviceChanges)
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
	if !s.Changed.IsZero() && len(t.pending.triggers) < maxTriggers {
		t.pending.triggers = append(t.pending.triggers, trigger{s.Changed, s.IPv6})
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
	t.count(kube.KindEndpointSlice, 1, t.pending.endpointChanges)
}

// complete reports whether every kind has been listed. Before that nothing may be removed.
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
	t.count(kube.KindService, 0, 0)
	t.count(kube.KindEndpointSlice, 0, 0)
	return p
}

// giveBack puts the changes of a pass that failed back, with the Services that it looked at.
func (t *tracker) giveBack(p pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.pending.services, p.services)
	t.pending.triggers = append(p.triggers, t.pending.triggers...)
	t.pending.triggers = t.pending.triggers[:min(len(t.pending.triggers), maxTriggers)]
	if t.pending.since.IsZero() || !p.since.IsZero() && p.since.Before(t.pending.since) {
		t.pending.since = p.since
	}
	t.pending.serviceChanges += p.serviceChanges
	t.pending.endpointChanges += p.endpointChanges
	t.count(kube.KindService, 0, t.pending.serviceChanges)
	t.count(kube.KindEndpointSlice, 0, t.pending.endpointChanges)
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

// cluster returns what is known of the own Node, nil if nothing is, whether the Node has been deleted, and the ranges of
// ClusterIPs, by name.
func (t *tracker) cluster() (node *kube.Node, gone bool, cidrs []*kube.ServiceCIDR) {
	t.mu.Lock()
	defer t.mu.Unlock()
	cidrs = slices.SortedFunc(maps.Values(t.cidrs), func(a, b *kube.ServiceCIDR) int { return a.Name.Compare(b.Name) })
	return t.node, t.nodeGone, cidrs
}

// endpoints counts the endpoints of all slices.
func (t *tracker) endpoints() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range t.slices {
		for _, s := range list {
			n += len(s.Endpoints)
		}
	}
	return n
}

// state computes the state of the node from the objects, the interfaces, and where the proxy's own connections to the API
// server lead.
func (t *tracker) state(c *config.Config, interfaces interfaces, connections []netip.AddrPort) nodeState {
	node, _, cidrs := t.cluster()
	svc, list := t.service(kube.Name{Namespace: "default", Name: "kubernetes"}) // what the API server calls itself
	in := nodeInputs{config: c, node: node, cidrs: cidrs, interfaces: interfaces}
	if svc != nil {
		in.apiServer.clusterIPs = svc.ClusterIPs
	}
	in.apiServer.endpoints = slices.Clone(connections)
	for _, s := range list {
		for i := range s.Endpoints {
			for _, p := range s.Ports {
				in.apiServer.endpoints = append(in.apiServer.endpoints, netip.AddrPortFrom(s.Endpoints[i].Addr, p.Port))
			}
		}
	}
	slices.SortFunc(in.apiServer.endpoints, netip.AddrPort.Compare)
	in.apiServer.endpoints = slices.Compact(in.apiServer.endpoints)
	return in.state()
}
