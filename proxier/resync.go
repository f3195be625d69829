// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/build"
)

// setAsideAtOnce bounds how many objects one resync sets aside before it leaves the rest to the next one.
const setAsideAtOnce = 100

// resync reads the tables and makes them what they are to be. updates must cover every Service. Services that the
// kernel refuses are set aside one by one, so that all others are served.
func (p *Proxier) resync(ctx context.Context, updates []*update) error {
	p.announce(updates)
	for range setAsideAtOnce {
		err := p.resyncOnce(ctx, updates)
		culprit := p.culprit(err, updates)
		if culprit == nil {
			return err
		}
		p.setAside(ctx, culprit, err)
	}
	return fmt.Errorf("set aside %d Services: %w", setAsideAtOnce, errTooManyRefused)
}

var errTooManyRefused = errors.New("the kernel refuses too many")

// resyncOnce is one attempt for both families.
func (p *Proxier) resyncOnce(ctx context.Context, updates []*update) error {
	for _, f := range p.families {
		if err := p.resyncFamily(ctx, f, updates); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxier) resyncFamily(ctx context.Context, f nft.Family, updates []*update) error {
	content, err := p.kernel.Read(f)
	if err = errors.Join(err, p.ignoreOurs()); err != nil {
		return err
	}
	t := &table{Table: nft.NewTable(content), node: p.around.byFam[f].elements, config: p.around.byFam[f].config}
	if _, again := p.formerly[f]; !again && !p.synced && p.opt.Flows != nil {
		p.formerly[f] = flowsOffered(content) // an attempt that failed may have changed it since
	}
	want := wanted(f, t, nft.NewMemory(content), updates)
	batches := t.Reconcile(content, t.config, want, t.node)
	elements := 0
	for _, b := range batches {
		if err := p.commit(b, f); err != nil {
			return err
		}
		elements += b.Elements()
	}
	t.Committed()
	t.shared, t.counts = countAll(want, t.node)
	m := p.opt.Metrics.Family(ipFamily(f))
	for _, set := range nft.Sets() {
		m.Elements(set.String(), t.counts[set])
	}
	p.tables[f] = t
	p.countRepair(f, content, batches, elements)
	klog.FromContext(ctx).V(2).Info("Compared with the kernel", "family", f, "services", len(want),
		"transactions", len(batches), "elements", elements)
	return nil
}

// wanted lists the Services of a family with slots and affinity numbers: as they were committed, or else as the
// table has them.
func wanted(f nft.Family, t *table, memory *nft.Memory, updates []*update) []*nft.Service {
	var out []*nft.Service
	for _, u := range updates {
		for i := range u.nextPorts() {
			port := &u.next.ports[i]
			if port.Family != f {
				continue
			}
			if u.prev.port(port) == nil {
				memory.Adopt(&port.Service)
			}
			t.Number(&port.Service)
			out = append(out, &port.Service)
		}
	}
	return out
}

// countRepair counts what a resync had to mend, unless it is the first one.
func (p *Proxier) countRepair(f nft.Family, was *nft.Content, batches []*nft.Batch, elements int) {
	if !p.synced || len(batches) == 0 {
		return
	}
	m := p.opt.Metrics.Family(ipFamily(f))
	switch {
	case !was.Exists:
		m.DriftRepaired("table", 1)
	case batches[0].Elements() == 0:
		m.DriftRepaired("chain", 1)
	}
	m.DriftRepaired("element", elements)
}

// culprit returns the update that a refused transaction is about; nil if there is no error, or it is about
// none in particular.
func (p *Proxier) culprit(err error, updates []*update) *update {
	var op *nft.OpError
	if !errors.As(err, &op) || op.Element == nil {
		return nil
	}
	i := slices.IndexFunc(updates, func(u *update) bool {
		return slices.ContainsFunc(u.nextPorts(), func(port build.Port) bool {
			return port.Family == op.Family && slices.Contains(nft.Elements(&port.Service), *op.Element)
		})
	})
	if i < 0 {
		return nil
	}
	return updates[i]
}
