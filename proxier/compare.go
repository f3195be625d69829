// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
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

// replaceAfter is how many comparisons in a row the kernel refuses, without a Service's element being the reason, before the
// next one replaces the whole table: another program has put something into it that cannot be removed piece by piece.
const replaceAfter = 2

// comparison makes one family's table what it is to be. It changes of the updates the ports of its family only, so that both
// families' can run at once.
type comparison struct {
	tables  *tables
	family  nft.Family
	conn    dataplane
	updates []*update // of every Service
	node    *nodeState
	first   bool // no comparison has succeeded yet

	table    *table
	repaired repair
	err      error
}

// repair is what a comparison wrote.
type repair struct {
	batches, elements int
	tableGone, chains bool
}

// compare reads the tables and makes them what they are to be. updates must cover every Service. It returns one comparison for
// each family; those without an error are committed.
func (t *tables) compare(ctx context.Context, updates []*update, node *nodeState, first bool) ([]*comparison, error) {
	list := make([]*comparison, len(t.families))
	var others sync.WaitGroup
	for i, f := range t.families {
		c := &comparison{tables: t, family: f, conn: t.connOf(i), updates: updates, node: node, first: first}
		list[i] = c
		if c.conn != t.conns[0] { // then neither waits for the other's tables, nor for its failures
			others.Go(func() { c.err = c.run(ctx) })
		}
	}
	for _, c := range list {
		if c.conn == t.conns[0] {
			c.err = c.run(ctx)
		}
	}
	others.Wait()
	var errs []error
	for _, c := range list {
		errs = append(errs, c.err)
		if c.err == nil {
			t.table[c.family] = c.table
		}
	}
	err := errors.Join(errs...)
	t.known = err == nil
	return list, err
}

func (c *comparison) run(ctx context.Context) error {
	start, t := time.Now(), c.tables
	content, err := c.conn.Read(c.family)
	if err = errors.Join(err, t.own.update(t.conns)); err != nil {
		return err
	}
	if before := &t.before[familyIndex(c.family)]; *before == nil { // an attempt that fails may change the table
		*before = append([]ctsync.Change{}, flowsOffered(content)...)
	}
	content.Replace = content.Exists && t.refused[familyIndex(c.family)] >= replaceAfter
	node := c.node.of(c.family)
	have := &table{Table: nft.NewTable(content), config: node.config}
	want := c.wanted(have, nft.NewSlotRecovery(content))
	batches := have.Reconcile(content, have.config, want, node.elements)
	c.repaired = repair{batches: len(batches), tableGone: !content.Exists}
	for i, b := range batches {
		c.repaired.elements += b.Elements()
		c.repaired.chains = c.repaired.chains || i == 0 && b.Elements() == 0
	}
	content.Elements = nil // as large as all that follows
	if err := t.commit(c.conn, batches...); err != nil {
		if op := (*kernel.OpError)(nil); errors.As(err, &op) && !transient(op.Errno) && (!blamesElement(err) || culprit(err, c.updates) == nil) {
			t.refused[familyIndex(c.family)]++
		}
		return err
	}
	t.refused[familyIndex(c.family)] = 0
	c.table = have
	m := t.family(c.family)
	for _, set := range nft.Sets() {
		m.Elements(set.String(), have.Count(set))
	}
	if !c.first {
		c.repaired.count(m)
	}
	klog.FromContext(ctx).V(2).Info("Compared with the kernel", "family", c.family, "services", len(want),
		"transactions", c.repaired.batches, "elements", c.repaired.elements, "took", time.Since(start))
	return nil
}

// wanted lists the Services of the family with slots and numbers of sticky views: as they were committed, or else as the table
// has them.
func (c *comparison) wanted(have *table, slots *nft.SlotRecovery) []*nft.Service {
	var out []*nft.Service
	for _, u := range c.updates {
		for i := range u.nextPorts() {
			port := &u.next.ports[i]
			if port.Family != c.family {
				continue
			}
			if u.prev.port(port) == nil {
				slots.Adopt(&port.Service)
			}
			have.Number(&port.Service)
			out = append(out, &port.Service)
		}
	}
	return out
}

// count reports a repair. Of the first comparison there is nothing to report.
func (r repair) count(m *metrics.Family) {
	switch {
	case r.batches == 0:
		return
	case r.tableGone:
		m.DriftRepaired("table", 1)
	case r.chains:
		m.DriftRepaired("chain", 1)
	}
	m.DriftRepaired("element", r.elements)
}

// culprit returns the update that has the element of a refused transaction, nil if none has.
func culprit(err error, updates []*update) *update {
	var op *kernel.OpError
	if !errors.As(err, &op) || op.Element == nil {
		return nil
	}
	for _, u := range updates {
		for i := range u.nextPorts() {
			port := &u.next.ports[i]
			if port.Family == op.Family && slices.Contains(nft.Elements(&port.Service), *op.Element) {
				return u
			}
		}
	}
	return nil
}

// missing returns the updates that have elements which the kernel does not.
func (t *tables) missing(updates []*update) (out []*update, err error) {
	have := map[nft.Family]map[nft.Element]bool{}
	for i, f := range t.families {
		content, err := t.connOf(i).Read(f)
		if err != nil {
			return nil, err
		}
		have[f] = make(map[nft.Element]bool, len(content.Elements))
		for _, e := range content.Elements {
			have[f][e] = true
		}
	}
	for _, u := range updates {
		if slices.ContainsFunc(u.nextPorts(), func(p services.Port) bool {
			return have[p.Family] != nil && slices.ContainsFunc(nft.Elements(&p.Service), func(e nft.Element) bool { return !have[p.Family][e] })
		}) {
			out = append(out, u)
		}
	}
	return out, nil
}
