// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// counts are the numbers of elements by set.
type counts map[nft.SetID]int

// add follows a change and reports the sets that it touched to m, if that is not nil.
func (n counts) add(m *metrics.Family, c nft.Change) {
	touched := map[nft.SetID]bool{}
	for _, e := range c.Delete {
		n[e.Set]--
		touched[e.Set] = true
	}
	for _, e := range c.Add {
		n[e.Set]++
		touched[e.Set] = true
	}
	if m != nil {
		n.report(m, touched)
	}
}

func (n counts) report(m *metrics.Family, sets map[nft.SetID]bool) {
	for set := range sets {
		m.Elements(set.String(), n[set])
	}
}

// noLocal counts Service ports with endpoints but none on this node.
type noLocal struct{ internal, external int }

// countNoLocal follows the Service ports whose Local policy finds no endpoint here.
func (p *Proxier) countNoLocal(updates []*update) {
	for _, u := range updates {
		for i := range u.prevPorts() {
			p.noLocal[u.prev.ports[i].Family].add(u.prev.ports[i].NoLocalInternal, u.prev.ports[i].NoLocalExternal, -1)
		}
		for i := range u.nextPorts() {
			p.noLocal[u.next.ports[i].Family].add(u.next.ports[i].NoLocalInternal, u.next.ports[i].NoLocalExternal, 1)
		}
	}
	for f, n := range p.noLocal {
		p.opt.Metrics.Family(ipFamily(f)).NoLocalEndpoints(n.internal, n.external)
	}
}

func (n *noLocal) add(internal, external bool, by int) {
	if internal {
		n.internal += by
	}
	if external {
		n.external += by
	}
}

// sampleEvery is how often the maps of sticky clients are counted: the kernel tells their size only by listing them.
const sampleEvery = 30 * time.Second

// watchAffinity counts the clients of sticky Services until ctx ends. It has a socket of its own, so that no commit
// waits for it.
func (p *Proxier) watchAffinity(ctx context.Context) error {
	conn, err := kernel.Open(p.opt.NetNS)
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, f := range p.families {
			p.sampleAffinity(ctx, conn, f)
		}
	}
}

// sampleAffinity counts the clients of one family.
func (p *Proxier) sampleAffinity(ctx context.Context, conn *kernel.Conn, f nft.Family) {
	counts, complete, err := conn.AffinityCounts(f)
	if err != nil || !complete {
		klog.FromContext(ctx).V(4).Info("Sticky clients could not be counted", "family", f, "err", err)
		return
	}
	total, fullest := 0, 0.0
	m := p.opt.Metrics.Family(ipFamily(f))
	for _, a := range counts {
		if a.Size == 0 {
			continue
		}
		total += a.Clients
		fullest = max(fullest, float64(a.Clients)/float64(a.Size))
		if a.Clients >= a.Size {
			m.AffinityFull()
		}
	}
	m.Affinity(total, fullest)
}
