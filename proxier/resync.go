// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/services"
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

// resyncOnce is one attempt for both families, at once if there is a connection for each: then neither waits for the
// other's tables, nor for its failures.
func (p *Proxier) resyncOnce(ctx context.Context, updates []*update) error {
	list := make([]*comparison, len(p.families))
	var others sync.WaitGroup
	for i, f := range p.families {
		c := &comparison{Proxier: p, family: f, kernel: p.kernel}
		list[i] = c
		if i == 0 || p.second == nil {
			continue
		}
		c.kernel = p.second
		others.Go(func() { c.err = c.run(ctx, updates) })
	}
	for _, c := range list {
		if c.kernel == p.kernel {
			c.err = c.run(ctx, updates)
		}
	}
	others.Wait()
	var errs []error
	for _, c := range list {
		errs = append(errs, c.err)
		if c.before != nil {
			p.formerly[c.family] = c.before
		}
		if c.err == nil {
			p.tables[c.family] = c.table
		}
	}
	return errors.Join(errs...)
}

// comparison makes one family's table what it is to be. Of the Proxier it changes nothing, and of the updates the ports of
// its family only, so that both families' can run at once.
type comparison struct {
	*Proxier
	family nft.Family
	kernel dataplane
	table  *table
	before []ctsync.Change // what the table led to, if it is the first one
	err    error
}

func (c *comparison) run(ctx context.Context, updates []*update) error {
	f, start := c.family, time.Now()
	content, err := c.kernel.Read(f)
	if err = errors.Join(err, c.ignoreOurs()); err != nil {
		return err
	}
	if _, again := c.formerly[f]; !again && !c.synced && c.opt.Flows != nil { // an attempt that failed may have changed it since
		c.before = append([]ctsync.Change{}, flowsOffered(content)...)
	}
	around := c.around.byFam[f]
	t := &table{Table: nft.NewTable(content), node: around.elements, config: around.config}
	want := wanted(f, t, nft.NewMemory(content), updates)
	batches := t.Reconcile(content, t.config, want, t.node)
	mended := drift{batches: len(batches), tableGone: !content.Exists}
	for i, b := range batches {
		mended.elements += b.Elements()
		mended.chain = mended.chain || i == 0 && b.Elements() == 0
	}
	content.Elements = nil // as large as all that follows
	if err := c.commitAll(c.kernel, batches, f); err != nil {
		return err
	}
	t.Committed()
	t.shared, t.counts = t.Tally()
	c.table = t
	m := c.opt.Metrics.Family(ipFamily(f))
	for _, set := range nft.Sets() {
		m.Elements(set.String(), t.counts[set])
	}
	if c.synced {
		mended.count(m)
	}
	klog.FromContext(ctx).V(2).Info("Compared with the kernel", "family", f, "services", len(want),
		"transactions", mended.batches, "elements", mended.elements, "took", time.Since(start))
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

// drift is what a comparison had to mend.
type drift struct {
	batches, elements int
	tableGone, chain  bool
}

// count reports it. Of the first comparison there is nothing to report.
func (d drift) count(m *metrics.Family) {
	switch {
	case d.batches == 0:
		return
	case d.tableGone:
		m.DriftRepaired("table", 1)
	case d.chain:
		m.DriftRepaired("chain", 1)
	}
	m.DriftRepaired("element", d.elements)
}

// culprit returns the update that a refused transaction is about; nil if there is no error, or it is about
// none in particular.
func (p *Proxier) culprit(err error, updates []*update) *update {
	var op *kernel.OpError
	if !errors.As(err, &op) || op.Element == nil {
		return nil
	}
	i := slices.IndexFunc(updates, func(u *update) bool {
		return slices.ContainsFunc(u.nextPorts(), func(port services.Port) bool {
			return port.Family == op.Family && slices.Contains(nft.Elements(&port.Service), *op.Element)
		})
	})
	if i < 0 {
		return nil
	}
	return updates[i]
}
