// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/routing"
	routingkernel "github.com/nftproxy/nftproxy/routing/kernel"
)

// addRouting adds the part that keeps addresses, routes and rules, if a mode of routing is switched on. It refuses to start
// where something of others is in the way; it waits for what is only missing.
func (p *parts) addRouting(ctx context.Context) error {
	if !p.cfg.Own.Routing.Enabled() {
		return nil
	}
	conn, err := routingkernel.Open()
	if err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	manager, err := routingkernel.New(conn, p.cfg.Own.Routing, slog.New(logr.ToSlogHandler(klog.FromContext(ctx))))
	if err == nil {
		err = manager.Check(ctx)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("routing: %w", err)
	}
	inputs := newRoutingInputs(p.cfg.Own.Routing, p.cfg.NodeIP, manager.Update)
	p.routing = inputs
	manager.OnProblems = p.routingProblems
	p.metrics.RoutingFrom(func() metrics.Routing { return routingStats(manager.Stats()) })
	p.more = append(p.more, part{"routing", func(ctx context.Context) error {
		defer conn.Close()
		select {
		case <-inputs.complete: // until then the entries of an earlier run stay
			return manager.Run(ctx)
		case <-ctx.Done():
			return nil
		}
	}})
	return nil
}

// routingProblems shows in the health answers that routing is incomplete. The log has the problems themselves.
func (p *parts) routingProblems(found []routing.Problem) {
	n := map[routing.Severity]int{}
	for _, problem := range found {
		n[problem.Severity]++
	}
	text := ""
	if n[routing.Waiting]+n[routing.Conflict] > 0 {
		text = fmt.Sprintf("missing devices or addresses: %d, conflicts with others: %d; the log has each", n[routing.Waiting], n[routing.Conflict])
	}
	p.health.SetDegraded("routing", text)
}

// routingInputs completes the configuration of routing by the own Node and the ServiceCIDRs. It passes all objects on.
type routingInputs struct {
	kube.Sink  // the next; set it before the source runs
	update     func(routing.Config) error
	configured routing.Config
	nodeIP     netip.Addr // overrides the Node's address of its family

	mu       sync.Mutex
	node     *kube.Node // the last known: routes stay when the object is deleted
	cidrs    map[kube.Name][]netip.Prefix
	synced   bool          // all ServiceCIDRs are known
	complete chan struct{} // closed with the first complete configuration
}

func newRoutingInputs(c routing.Config, nodeIP netip.Addr, update func(routing.Config) error) *routingInputs {
	return &routingInputs{update: update, configured: c, nodeIP: nodeIP, cidrs: map[kube.Name][]netip.Prefix{}, complete: make(chan struct{})}
}

// Set implements kube.Sink.
func (r *routingInputs) Set(obj kube.Object) {
	switch obj := obj.(type) {
	case *kube.Node:
		r.change(func() { r.node = obj })
	case *kube.ServiceCIDR:
		r.change(func() { r.cidrs[obj.Name] = obj.Prefixes })
	}
	r.Sink.Set(obj)
}

// Delete implements kube.Sink.
func (r *routingInputs) Delete(ref kube.Ref) {
	if ref.Kind == kube.KindServiceCIDR {
		r.change(func() { delete(r.cidrs, ref.Name) })
	}
	r.Sink.Delete(ref)
}

// Synced implements kube.Sink.
func (r *routingInputs) Synced(kind kube.Kind) {
	if kind == kube.KindServiceCIDR {
		r.change(func() { r.synced = true })
	}
	r.Sink.Synced(kind)
}

// change changes what is known, and updates routing once all ServiceCIDRs are known: so no route is removed for a moment.
func (r *routingInputs) change(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	if !r.synced {
		return
	}
	if err := r.update(r.config()); err != nil {
		klog.ErrorS(err, "Routing keeps its previous configuration")
	}
	select {
	case <-r.complete:
	default:
		close(r.complete)
	}
}

// config completes the configuration; configured values have precedence. NodeAddrs is one address per family.
func (r *routingInputs) config() routing.Config {
	c := r.configured
	if len(c.ServiceCIDRs) == 0 {
		for _, prefixes := range r.cidrs {
			c.ServiceCIDRs = append(c.ServiceCIDRs, prefixes...)
		}
		slices.SortFunc(c.ServiceCIDRs, netip.Prefix.Compare)
	}
	for _, ipv6 := range []bool{false, true} {
		var addr netip.Addr
		if r.node != nil {
			addr = r.node.Addr(ipv6)
		}
		if r.nodeIP.IsValid() && r.nodeIP.Is6() == ipv6 {
			addr = r.nodeIP
		}
		if addr.IsValid() && len(r.configured.NodeAddrs) == 0 {
			c.NodeAddrs = append(c.NodeAddrs, addr)
		}
	}
	return c
}

// removeRouting removes the entries that an earlier run made when routing was switched on. Call it once our tables no longer
// lead packets to them.
func removeRouting(ctx context.Context) {
	conn, err := routingkernel.Open()
	if err != nil {
		klog.ErrorS(err, "Cannot look for routing entries of an earlier run")
		return
	}
	defer conn.Close()
	n, err := routingkernel.Cleanup(ctx, conn)
	if n > 0 {
		klog.InfoS("Removed the routing entries of an earlier run, routing is switched off", "entries", n)
	}
	if err != nil {
		klog.ErrorS(err, "Cannot remove routing entries of an earlier run; run `nftproxy cleanup` when nftproxy is stopped")
	}
}

// routingStats has an entry for every kind, so that each series exists from the start.
func routingStats(s routingkernel.Stats) metrics.Routing {
	out := metrics.Routing{Entries: map[string]int{}, Wanted: map[string]int{}, Repaired: map[string]uint64{}, Problems: map[string]int{}}
	for _, s := range routing.Severities() {
		out.Problems[s.String()] = 0
	}
	for _, p := range s.Problems {
		out.Problems[p.Severity.String()]++
	}
	for _, k := range routing.Kinds() {
		out.Entries[k.String()], out.Wanted[k.String()], out.Repaired[k.String()] = s.Entries[k], s.Wanted[k], s.Repaired[k]
	}
	return out
}
