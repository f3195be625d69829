// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	conntrack "github.com/nftproxy/nftproxy/ctsync/kernel"
	"github.com/nftproxy/nftproxy/proxier"
	"github.com/nftproxy/nftproxy/proxier/events"
	"github.com/nftproxy/nftproxy/proxier/localhost"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// addFlows makes the part that deletes stale conntrack entries.
func (p *parts) addFlows(options *proxier.Options) error {
	own := p.cfg.Own.StaleFlows
	report := &flowReport{metrics: p.metrics, deleted: map[v1.IPFamily]map[string]int{}}
	syncer, err := conntrack.New(conntrack.Options{
		Scope:   ctsync.Scope{TCP: own.TCP, SCTP: own.SCTP, Zone: own.Zone},
		Reset:   own.Reset,
		OnPass:  report.pass,
		OnStale: report.stale,
	})
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	options.Flows = syncer
	p.more = append(p.more, part{"conntrack", syncer.Run})
	return nil
}

// flowReport turns what ctsync reports into metrics and logs. Both methods are
// called by one goroutine, that of Syncer.Run.
type flowReport struct {
	metrics *metrics.Metrics
	deleted map[v1.IPFamily]map[string]int // of the pass that runs
}

// stale counts a flow that is about to be deleted.
func (r *flowReport) stale(f ctsync.Flow, why ctsync.Reason) {
	family := v1.IPv4Protocol
	if f.Dst.Addr().Is6() {
		family = v1.IPv6Protocol
	}
	if r.deleted[family] == nil {
		r.deleted[family] = map[string]int{}
	}
	r.deleted[family][why.String()]++
	if log := klog.V(4); log.Enabled() {
		log.InfoS("Deleting conntrack entry", "reason", why, "proto", f.Proto, "src", f.Src, "dst", f.Dst, "endpoint", f.ReplySrc)
	}
}

// pass reports a pass. Entries that could not be deleted come again with the
// next pass, so they are counted there too: the failures tell how many.
func (r *flowReport) pass(pass conntrack.Pass) {
	r.metrics.ConntrackPass(metrics.ConntrackPass{
		Took: pass.Duration, Scanned: pass.Scanned, Failed: pass.Failed, Resets: pass.Resets, Deleted: r.deleted,
	})
	clear(r.deleted)
	switch {
	case pass.Err != nil:
		klog.ErrorS(pass.Err, "Some stale conntrack entries are not deleted, the next pass tries again", "deleted", pass.Deleted(), "failed", pass.Failed, "givenUp", pass.GivenUp)
	case pass.Deleted() > 0:
		klog.V(2).InfoS("Deleted stale conntrack entries", "deleted", pass.Deleted(), "scanned", pass.Scanned, "took", pass.Duration)
	}
}

// addLocalhost makes the part that serves NodePorts on loopback addresses, if that is asked for.
func (p *parts) addLocalhost(options *proxier.Options) {
	if !p.cfg.NodePorts.Localhost {
		return
	}
	forwarder := localhost.New(localhost.Options{Report: p.loopbackPortFailed})
	options.Localhost = forwarder
	p.metrics.LocalhostFrom(func() metrics.Localhost { return metrics.Localhost(forwarder.Stats()) })
	p.more = append(p.more, part{"localhost", forwarder.Run})
}

// loopbackPortFailed reports that a NodePort cannot be served on a loopback address, or that it can after all. That
// the node lacks a family is no news about a Service.
func (p *parts) loopbackPortFailed(port localhost.Port, target localhost.Target, err error) {
	switch {
	case err == nil:
		klog.InfoS("NodePort is served on localhost now", "service", target.Owner, "port", port)
	case errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT):
		klog.V(2).InfoS("NodePort is not served on localhost, the node has no such address", "service", target.Owner, "port", port)
	default:
		klog.ErrorS(err, "Cannot serve a NodePort on localhost, will try again", "service", target.Owner, "port", port)
		p.cannotListen(target.Owner.Namespace, target.Owner.Name, "FailedToServeLocalhostNodePort", err)
	}
}

// healthPortFailed reports that the health check port of a Service cannot be bound, or, with nil, that it is served again.
func (p *parts) healthPortFailed(name types.NamespacedName, err error) {
	if err == nil {
		klog.InfoS("Health check port is served again", "service", name)
		return
	}
	klog.ErrorS(err, "Cannot serve a health check port, will try again", "service", name)
	p.cannotListen(name.Namespace, name.Name, "FailedToStartServiceHealthcheck", err)
}

// cannotListen is the Event of a port of a Service that cannot be bound on this node.
func (p *parts) cannotListen(namespace, name, reason string, err error) {
	if p.events != nil {
		p.events.Emit(events.Event{
			Object:  v1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name},
			Warning: true, Reason: reason, Action: "Listen", Note: fmt.Sprintf("node %s: %v", p.cfg.NodeName, err),
		})
	}
}
