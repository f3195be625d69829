// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// dataplane is a connection to nf_tables: kernel.Conn, or one that fails on purpose in a test.
type dataplane interface {
	Read(nft.Family) (*nft.Content, error)
	CommitAll([]*nft.Batch, func(kernel.Committed)) error
	PortID() uint32
}

// tables are the tables of the kernel with what is known of them. It belongs to the goroutine of the loop.
type tables struct {
	families []nft.Family
	metrics  *metrics.Metrics
	// conns are connections, one for each family if there are as many: both are compared at once then. The first one
	// carries changes.
	conns []dataplane
	own   *ownPorts
	table map[nft.Family]*table
	known bool // table, and the committed entries, are what the kernel has
	// unsettled means that comparisons have tried to write something since the last one that succeeded: of one that fails it
	// is not known what the kernel carried out.
	unsettled bool
	// before is what the tables led to when they were first read, IPv4 first.
	before [2][]ctsync.Change
	// refused counts, for each family, the comparisons in a row that the kernel refused for no Service's element.
	refused [2]int
}

func newTables(families []nft.Family, m *metrics.Metrics) *tables {
	return &tables{families: families, metrics: m, table: map[nft.Family]*table{}, own: &ownPorts{}}
}

// table is what is known of one family's table.
type table struct {
	*nft.Table
	config nft.Config
}

func (t *tables) family(f nft.Family) *metrics.Family { return t.metrics.Family(ipFamily(f)) }

// sameConfig reports whether the rules of all tables were made for this state of the node.
func (t *tables) sameConfig(s *nodeState) bool {
	for f, have := range t.table {
		if have.config != s.of(f).config {
			return false
		}
	}
	return len(t.table) == len(t.families)
}

// connOf returns the connection of the i-th family.
func (t *tables) connOf(i int) dataplane { return t.conns[min(i, len(t.conns)-1)] }

// commit carries out transactions one after the other, and removes from the list those that are done.
func (t *tables) commit(conn dataplane, batches ...*nft.Batch) error {
	err := t.own.update(t.conns)
	if err == nil {
		err = errors.Join(conn.CommitAll(batches, func(c kernel.Committed) {
			t.family(c.Family).Transaction(c.Took, c.Elements, c.Bytes)
		}), t.own.update(t.conns))
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// familyChange is one family's part of a change.
type familyChange struct {
	family  nft.Family
	table   *table
	batches []*nft.Batch
	change  nft.Change
}

// change commits what updates change. The tables must be known. After an error they are as they were, if the error means that
// a transaction was refused and the change was one transaction; otherwise they are not known any more.
func (t *tables) change(updates []*update, node *nodeState) (elements int, err error) {
	var parts []*familyChange
	for _, f := range t.families {
		part := t.plan(f, updates, node)
		parts = append(parts, part)
		elements += part.change.Len()
	}
	atOnce := elements <= nft.ChunkSize
	for _, part := range parts {
		atOnce = atOnce && len(part.batches) <= 1
	}
	if atOnce { // both families in one transaction
		b := &nft.Batch{}
		for _, part := range parts {
			for _, x := range part.batches {
				b.Append(x)
			}
		}
		err = t.commit(t.conns[0], b)
	}
	for _, part := range parts {
		if !atOnce && err == nil {
			err = t.commit(t.conns[0], part.batches...)
		}
	}
	if err != nil {
		for _, part := range parts {
			part.table.Discard()
		}
		t.known = atOnce && blamesElement(err)
		return 0, err
	}
	for _, part := range parts {
		part.table.Committed()
		part.count(t.family(part.family))
	}
	return elements, nil
}

// plan works out one family's part of a change.
func (t *tables) plan(f nft.Family, updates []*update, node *nodeState) *familyChange {
	part := &familyChange{family: f, table: t.table[f]}
	var list []nft.Update
	for _, u := range updates {
		for i := range u.nextPorts() {
			next := &u.next.ports[i]
			if next.Family != f {
				continue
			}
			change := nft.Update{Next: &next.Service}
			if prev := u.present().port(next); prev != nil {
				change.Prev = &prev.Service
			}
			list = append(list, change)
		}
		for i := range u.present().all() {
			prev := &u.prev.ports[i]
			if prev.Family == f && u.next.port(prev) == nil {
				list = append(list, nft.Update{Prev: &prev.Service})
			}
		}
	}
	part.batches, part.change = part.table.Plan(list, node.of(f).elements)
	return part
}

// count reports the number of elements of the sets that the change touched.
func (c *familyChange) count(m *metrics.Family) {
	touched := map[nft.SetID]bool{}
	for _, list := range [][]nft.Element{c.change.Delete, c.change.Add} {
		for i := range list {
			touched[list[i].Set.Group()] = true
		}
	}
	for set := range touched {
		m.Elements(set.String(), c.table.Count(set))
	}
}

// sweep deletes the chains that a change released. They are not in the way: a failure is for next time.
func (t *tables) sweep(ctx context.Context) {
	for _, f := range t.families {
		for b := t.table[f].Sweep(); b != nil; b = t.table[f].Sweep() {
			if err := t.commit(t.conns[0], b); err != nil {
				t.family(f).CleanupFailed()
				klog.FromContext(ctx).V(2).Info("Unused chains could not be deleted yet", "family", f, "err", err)
				break
			}
			t.table[f].Swept()
		}
	}
}

// blamesElement reports whether the kernel refused an element for what it is. Other errors are no Service's fault: the table is
// gone, memory is short, or another program was faster.
func blamesElement(err error) bool {
	var op *kernel.OpError
	if !errors.As(err, &op) || op.Element == nil || op.Element.Set.IsVerdictMap() {
		return false
	}
	return !transient(op.Errno) && op.Errno != syscall.ENOENT && op.Errno != syscall.EBUSY
}

// transient reports that an error is about the system and not about what is in the tables.
func transient(errno syscall.Errno) bool {
	switch errno {
	case syscall.ENOMEM, syscall.EINTR, syscall.ENOBUFS, syscall.EAGAIN, syscall.EPERM:
		return true
	}
	return false
}
