// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// Trace makes the kernel trace packets, by rules in tables of its own that Close removes. If the process is killed the
// kernel removes them; before Linux 5.12 they stay, without effect after the filter's Lifetime, until RemoveTraces. Run is
// for one goroutine, beside which Counts and Close may be called.
type Trace struct {
	events *netlink.Conn
	mu     sync.Mutex // guards the fields below
	owner  *Conn      // owns the tables
	table  string
	fams   []nft.Family
}

// OpenTrace starts to trace in a network namespace (see Open) what matches one of the filters, of which there is at most one
// per family. Needs CAP_NET_ADMIN.
func OpenTrace(netns int, filters []nft.TraceFilter) (*Trace, error) {
	return openTrace(netns, filters, nft.TableOwner)
}

func openTrace(netns int, filters []nft.TraceFilter, flags uint32) (*Trace, error) {
	// The subscription comes first, so that no event is missed.
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	_ = conn.SetReadBuffer(socketBuffer) // best effort: the kernel reports an overrun
	t := &Trace{events: conn}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("join nftables trace multicast group: %w", err)
	}
	if t.owner, err = Open(netns); err == nil {
		err = t.start(filters, flags)
	}
	var op *OpError
	if flags != 0 && errors.As(err, &op) && (op.Errno == unix.EINVAL || op.Errno == unix.EOPNOTSUPP) {
		err = t.start(filters, 0) // a kernel without owners of tables
	}
	if err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("switch tracing on: %w", err)
	}
	return t, nil
}

func (t *Trace) start(filters []nft.TraceFilter, flags uint32) error {
	name := fmt.Sprint(nft.TraceTablePrefix, t.owner.PortID())
	if err := t.owner.Commit(nft.TraceTables(name, flags, filters)); err != nil {
		return err
	}
	t.table = name
	for i := range filters {
		t.fams = append(t.fams, filters[i].Family)
	}
	return nil
}

// Run calls event for each message about a traced packet, whichever program traces it, and lost when the socket overran and
// messages are missing. It calls quiet when nothing arrived for pause. It ends with ctx, and returns nil then, or when the
// socket fails. The callbacks must not block for long.
func (t *Trace) Run(ctx context.Context, pause time.Duration, event func(*nft.TraceEvent), lost, quiet func()) error {
	for ctx.Err() == nil {
		_ = t.events.SetReadDeadline(time.Now().Add(pause))
		msgs, err := t.events.Receive()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			quiet()
		case errors.Is(err, unix.ENOBUFS):
			lost()
		default:
			return fmt.Errorf("receive nftables traces: %w", err)
		}
		for _, m := range msgs {
			if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
				continue
			}
			if e, ok := nft.DecodeTrace(m.Data); ok {
				event(&e)
			}
		}
	}
	return nil
}

// Counts returns how many packets matched the filters, and how many of them are traced: the others exceed the rate.
func (t *Trace) Counts() (matched, traced uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fams {
		rules, err := t.owner.dumpRules(f, t.table, nft.TraceChain)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, 0, fmt.Errorf("read counters of table %s %s: %w", f, t.table, err)
		}
		for i := range rules {
			if n := countersOf(rules[i].exprs); len(n) == 2 {
				matched, traced = matched+n[0], traced+n[1]
			}
		}
	}
	return matched, traced, nil
}

// Close removes the tables and ends the trace. It may be called more than once.
func (t *Trace) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.events.Close()
	if t.owner == nil {
		return nil
	}
	var errs []error
	for _, f := range t.fams {
		b := &nft.Batch{}
		b.DeleteTable(f, t.table)
		if err := t.owner.Commit(b); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("switch tracing off: %w", err))
		}
	}
	t.fams = nil
	return errors.Join(append(errs, t.owner.Close())...)
}

// TracedChains returns the base chains of a table of any family by name, none if there is no such table.
func (c *Conn) TracedChains(t nft.TraceTable) (map[string]nft.Hook, error) {
	chains, err := c.dumpChains(nft.Family(t.Family), t.Name)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	out := map[string]nft.Hook{}
	for _, ch := range chains {
		if ch.hook != nil {
			out[ch.name] = *ch.hook
		}
	}
	return out, nil
}

// TracedRules returns the rules of a chain of any table in order, none if there is no such chain.
func (c *Conn) TracedRules(t nft.TraceTable, chain string) ([]nft.TracedRule, error) {
	rules, err := c.dumpRules(nft.Family(t.Family), t.Name, chain)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("list rules of table %s, chain %s: %w", t, chain, err)
	}
	var out []nft.TracedRule
	for i := range rules {
		names := exprNames(rules[i].exprs)
		is := func(name string) bool { return slices.Contains(names, name) }
		out = append(out, nft.TracedRule{
			Handle: rules[i].handle, Comment: rules[i].comment(),
			Rejects:     is("reject") || is("REJECT"),
			Masquerades: is("masq") || is("MASQUERADE") || is("SNAT"),
		})
	}
	return out, nil
}

// exprNames lists the names of a rule's expressions, and of the targets of iptables among them (NFTA_TARGET_NAME is 1).
func exprNames(exprs []byte) (out []string) {
	for _, e := range nl.Attrs(exprs) {
		name := nl.Text(nl.Find(e, unix.NFTA_EXPR_NAME))
		if name == "target" {
			name = nl.Text(nl.Find(nl.Find(e, unix.NFTA_EXPR_DATA), 1))
		}
		out = append(out, name)
	}
	return out
}
