// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// before is what the tables led to when they were first read, IPv4 first.
	before [2][]ctsync.Change
}

func newTables(families []nft.Family, m *metrics.Metrics) *tables {
	return &tables{families: families, metrics: m, table: map[nft.Family]*table{}, own: &ownPorts{}}
}

// table is what is known of one family's table.
type table struct {
	*nft.Table
	shared   nft.Counter
	elements map[nft.SetID]int // their number
	node     []nft.Element     // those that belong to no Service
	config   nft.Config
}

func (t *tables) family(f nft.Family) *metrics.Family { return t.metrics.Family(ipFamily(f)) }

// sameConfig tells whether the rules of all tables were made for this state of the node.
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
	chains  []*nft.Batch // what the elements refer to
	raw     nft.Change   // before shared elements were counted
	change  nft.Change
	release []string // sticky views out of use
}

// change commits what updates change. The tables must be known. After an error they are as they were, if the error says that
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
		atOnce = atOnce && len(part.chains) <= 1
	}
	if atOnce {
		err = t.changeAtOnce(parts)
	} else {
		err = t.changeInStages(parts)
	}
	if err != nil {
		for _, part := range parts {
			part.table.shared.Undo(part.raw)
			part.table.Discard()
		}
		t.known = atOnce && blamesElement(err)
		return 0, err
	}
	for _, part := range parts {
		part.table.Committed()
		part.table.node = node.of(part.family).elements
		part.count(t.family(part.family))
	}
	return elements, nil
}

// stickyChunk is how many Service ports may get sticky chains in one transaction: each takes the kernel some 0.2 ms.
const stickyChunk = 32

// plan works out one family's part of a change. Shared elements are counted here; change takes that back on failure.
func (t *tables) plan(f nft.Family, updates []*update, node *nodeState) *familyChange {
	part := &familyChange{family: f, table: t.table[f]}
	part.raw = nft.DiffElements(part.table.node, node.of(f).elements)
	sticky := 0
	chains := &nft.Batch{}
	for _, u := range updates {
		for i := range u.nextPorts() {
			next := &u.next.ports[i]
			if next.Family != f {
				continue
			}
			prev := u.present().port(next)
			part.table.Number(&next.Service)
			part.table.Require(chains, &next.Service)
			if next.Affinity != 0 {
				sticky++
			}
			if sticky >= stickyChunk && !chains.Empty() {
				part.chains = append(part.chains, chains)
				chains, sticky = &nft.Batch{}, 0
			}
			if prev == nil {
				part.add(nft.Diff(nil, &next.Service))
			} else {
				part.add(nft.Diff(&prev.Service, &next.Service))
				kept := next.AffinityOwners()
				for _, owner := range prev.AffinityOwners() {
					if !slices.Contains(kept, owner) {
						part.release = append(part.release, owner)
					}
				}
			}
		}
		for i := range u.present().all() {
			prev := &u.prev.ports[i]
			if prev.Family == f && u.next.port(prev) == nil {
				part.add(nft.Diff(&prev.Service, nil))
				part.release = append(part.release, prev.AffinityOwners()...)
			}
		}
	}
	if !chains.Empty() {
		part.chains = append(part.chains, chains)
	}
	part.change = part.table.shared.Apply(part.raw)
	return part
}

func (c *familyChange) add(d nft.Change) {
	c.raw.Delete = append(c.raw.Delete, d.Delete...)
	c.raw.Add = append(c.raw.Add, d.Add...)
}

// changeAtOnce commits both families in one transaction.
func (t *tables) changeAtOnce(parts []*familyChange) error {
	b := &nft.Batch{}
	for _, part := range parts {
		for _, c := range part.chains {
			b.Append(c)
		}
		b.Change(part.family, part.change)
		part.table.Release(b, part.release)
	}
	return t.commit(t.conns[0], b)
}

// changeInStages commits a large change in transactions that are safe one after the other.
func (t *tables) changeInStages(parts []*familyChange) error {
	for _, part := range parts {
		batches := part.chains
		for _, c := range nft.Stage(part.change, nft.ChunkSize) {
			b := &nft.Batch{}
			b.Change(part.family, c)
			batches = append(batches, b)
		}
		last := &nft.Batch{}
		part.table.Release(last, part.release)
		if err := t.commit(t.conns[0], append(batches, last)...); err != nil {
			return err
		}
	}
	return nil
}

// count follows the number of elements of the sets that the change touched.
func (c *familyChange) count(m *metrics.Family) {
	touched := map[nft.SetID]bool{}
	for i := range c.change.Delete {
		c.table.elements[c.change.Delete[i].Set]--
		touched[c.change.Delete[i].Set] = true
	}
	for i := range c.change.Add {
		c.table.elements[c.change.Add[i].Set]++
		touched[c.change.Add[i].Set] = true
	}
	for set := range touched {
		m.Elements(set.String(), c.table.elements[set])
	}
}

// sweep deletes the chains that a change released. They are not in the way: a failure is for next time.
func (t *tables) sweep(ctx context.Context) {
	for _, f := range t.families {
		b := &nft.Batch{}
		if !t.table[f].Sweep(b) {
			continue
		}
		if err := t.commit(t.conns[0], b); err != nil {
			t.table[f].Discard()
			t.family(f).CleanupFailed()
			klog.FromContext(ctx).V(2).Info("Unused chains could not be deleted yet", "family", f, "err", err)
			continue
		}
		t.table[f].Committed()
	}
}

// blamesElement tells whether the kernel refused an element for what it is. Other errors are no Service's fault: the table is
// gone, memory is short, or another program was faster.
func blamesElement(err error) bool {
	var op *kernel.OpError
	if !errors.As(err, &op) || op.Element == nil {
		return false
	}
	switch op.Errno {
	case syscall.ENOENT, syscall.ENOMEM, syscall.EBUSY, syscall.EINTR, syscall.ENOBUFS, syscall.EAGAIN, syscall.EPERM:
		return false
	}
	return true
}
