// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/routing"
)

// observer stands between the source and the loop and tells routing of the
// objects that concern it: the own Node and the ServiceCIDRs.
type observer struct {
	kube.Sink // set it before the source runs
	// reroute takes over a configuration of routing; nil without routing.
	reroute func(routing.Config) error
	routing routing.Config // as configured
	nodeIP  netip.Addr     // overrides the Node's address of its family

	mu    sync.Mutex
	node  *kube.Node
	cidrs map[kube.Name][]netip.Prefix
	ready bool // all ServiceCIDRs are known
	// rerouted is closed when routing has its first complete configuration.
	rerouted chan struct{}
	once     sync.Once
}

// Set implements kube.Sink.
func (o *observer) Set(obj kube.Object) {
	switch obj := obj.(type) {
	case *kube.Node:
		o.update(func() { o.node = obj })
	case *kube.ServiceCIDR:
		o.update(func() { o.cidrs[obj.Name] = obj.Prefixes })
	}
	o.Sink.Set(obj)
}

// Delete implements kube.Sink.
func (o *observer) Delete(ref kube.Ref) {
	switch ref.Kind {
	case kube.KindNode:
		o.update(func() { o.node = nil })
	case kube.KindServiceCIDR:
		o.update(func() { delete(o.cidrs, ref.Name) })
	}
	o.Sink.Delete(ref)
}

// Synced implements kube.Sink.
func (o *observer) Synced(kind kube.Kind) {
	if kind == kube.KindServiceCIDR {
		o.update(func() { o.ready = true })
	}
	o.Sink.Synced(kind)
}

// newObserver returns an observer that completes the given configuration.
func newObserver(c routing.Config, nodeIP netip.Addr) *observer {
	return &observer{routing: c, nodeIP: nodeIP, cidrs: map[kube.Name][]netip.Prefix{}, rerouted: make(chan struct{})}
}

// update changes what is known and hands it to routing. Before all ServiceCIDRs
// are known nothing is handed on, so that no route is removed for a moment.
func (o *observer) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	if o.reroute == nil || !o.ready {
		return
	}
	if err := o.reroute(o.config()); err != nil {
		klog.ErrorS(err, "Routing keeps its former configuration")
	}
	o.once.Do(func() { close(o.rerouted) })
}

// complete waits until routing has its first complete configuration. It reports
// false when ctx ends before.
func (o *observer) complete(ctx context.Context) bool {
	select {
	case <-o.rerouted:
		return true
	case <-ctx.Done():
		return false
	}
}

// config completes the configuration of routing by what is known. Configured
// values win.
func (o *observer) config() routing.Config {
	c := o.routing
	if len(c.ServiceCIDRs) == 0 {
		for _, prefixes := range o.cidrs {
			c.ServiceCIDRs = append(c.ServiceCIDRs, prefixes...)
		}
		slices.SortFunc(c.ServiceCIDRs, netip.Prefix.Compare)
	}
	if len(c.NodeAddrs) == 0 {
		c.NodeAddrs = o.nodeAddrs()
	}
	return c
}

// nodeAddrs is one address per family: the override, else the Node's.
func (o *observer) nodeAddrs() []netip.Addr {
	var out []netip.Addr
	for _, ipv6 := range []bool{false, true} {
		var addr netip.Addr
		if o.node != nil {
			addr = o.node.Addr(ipv6)
		}
		if o.nodeIP.IsValid() && o.nodeIP.Is6() == ipv6 {
			addr = o.nodeIP
		}
		if addr.IsValid() {
			out = append(out, addr)
		}
	}
	return out
}
