// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableOwner is NFT_TABLE_F_OWNER (Linux 5.12): only the socket that made the table may change it, and with the socket
// it goes.
const tableOwner = 2

// Trace has packets traced by the kernel, by rules in a table of its own that Close removes. If the process is killed the
// kernel removes the table; before Linux 5.12 it stays without effect from the filter's Lifetime on, until RemoveTraces.
// Run is for one goroutine, beside which Counts and Close may be called.
type Trace struct {
	conn   *netlink.Conn // receives
	mu     sync.Mutex    // guards the below
	kernel *Kernel       // owns the table
	table  string
	fams   []Family
}

// OpenTrace begins to trace in a network namespace (see Open) what matches one of the filters, of which a family has one at
// most. Needs CAP_NET_ADMIN.
func OpenTrace(netns int, filters []TraceFilter) (*Trace, error) {
	return openTrace(netns, filters, tableOwner)
}

func openTrace(netns int, filters []TraceFilter, flags uint32) (*Trace, error) {
	// Listening comes first, so that no message of a packet that is traced is missed.
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	_ = conn.SetReadBuffer(socketBuffer) // best effort: an overrun is noticed
	t := &Trace{conn: conn}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("join nftables trace multicast group: %w", err)
	}
	if t.kernel, err = Open(netns); err != nil {
		_ = t.Close()
		return nil, err
	}
	err = t.start(filters, flags)
	var op *OpError
	if flags != 0 && errors.As(err, &op) && (op.Errno == unix.EINVAL || op.Errno == unix.EOPNOTSUPP) {
		err = t.start(filters, 0) // a kernel that does not know owners
	}
	if err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("switch tracing on: %w", err)
	}
	return t, nil
}

func (t *Trace) start(filters []TraceFilter, flags uint32) error {
	name := fmt.Sprint(TraceTablePrefix, t.kernel.PortID())
	if err := t.kernel.Commit(traceBatch(name, flags, filters)); err != nil {
		return err
	}
	t.table = name
	for i := range filters {
		t.fams = append(t.fams, filters[i].Family)
	}
	return nil
}

// Run calls event for each message about a packet that is traced, whoever has it traced, and lost when the socket was
// overrun and some are missing. quiet is called when nothing came in for pause. It ends with ctx, and returns nil then, or
// when the socket fails. The callbacks must not block for long.
func (t *Trace) Run(ctx context.Context, pause time.Duration, event func(*TraceEvent), lost, quiet func()) error {
	for ctx.Err() == nil {
		_ = t.conn.SetReadDeadline(time.Now().Add(pause))
		msgs, err := t.conn.Receive()
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
			if e, ok := decodeTrace(m.Data); ok {
				event(&e)
			}
		}
	}
	return nil
}

// Table is the name of the tables that switch tracing on.
func (t *Trace) Table() string { return t.table }

// Counts returns how many packets matched the filters, and how many of them are traced: the others were above the rate.
func (t *Trace) Counts() (matched, traced uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fams {
		w := nfgenmsg(f)
		w.name(unix.NFTA_RULE_TABLE, t.table)
		w.name(unix.NFTA_RULE_CHAIN, traceChain)
		err := t.kernel.request(unix.NFT_MSG_GETRULE, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
			if a.Type() == unix.NFTA_RULE_EXPRESSIONS {
				if c := counters(a.Bytes()); len(c) == 2 {
					matched, traced = matched+c[0], traced+c[1]
				}
			}
		}, nil)
		if err != nil {
			return 0, 0, fmt.Errorf("read counters of table %s %s: %w", f, t.table, err)
		}
	}
	return matched, traced, nil
}

// Close removes the tables by name and ends the trace. It may be called more than once.
func (t *Trace) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.conn.Close()
	if t.kernel == nil {
		return nil
	}
	var errs []error
	for _, f := range t.fams {
		b := &Batch{}
		b.DeleteTable(f, t.table)
		if err := t.kernel.Commit(b); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("switch tracing off: %w", err))
		}
	}
	t.fams = nil
	return errors.Join(append(errs, t.kernel.Close())...)
}

// RemoveTraces removes the tables that a trace left behind, as one that was killed on a kernel before 5.12. Tables that
// have an owner are left to it: they go with it.
func (k *Kernel) RemoveTraces() (Removed, error) {
	var out Removed
	for _, f := range Families() {
		names, err := k.leftTraces(f)
		if err != nil {
			return out, fmt.Errorf("list tables of %s: %w", f, err)
		}
		for _, name := range names {
			b := &Batch{}
			b.DeleteTable(f, name)
			switch err := k.Commit(b); {
			case errors.Is(err, unix.ENOENT): // it ended meanwhile
			case err != nil:
				return out, err
			default:
				out.Tables = append(out.Tables, f.String()+" "+name)
			}
		}
	}
	return out, nil
}

func (k *Kernel) leftTraces(f Family) (names []string, err error) {
	for range readAttempts {
		var name string
		var flags uint32
		names = nil
		err = k.request(unix.NFT_MSG_GETTABLE, netlink.Dump, nfgenmsg(f), func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_TABLE_NAME:
				name = a.String()
			case unix.NFTA_TABLE_FLAGS:
				flags = a.Uint32()
			}
		}, func() {
			if IsTraceTable(name) && flags&tableOwner == 0 {
				names = append(names, name)
			}
			name, flags = "", 0
		})
		if !errors.Is(err, syscall.EINTR) {
			return names, err
		}
	}
	return names, err
}

// counters are the packets of the counters of a rule, in order.
func counters(list []byte) (out []uint64) {
	eachAttr(list, func(_ uint16, elem []byte) {
		if text(attr(elem, unix.NFTA_EXPR_NAME)) == "counter" {
			if v := attr(attr(elem, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS); len(v) == 8 {
				out = append(out, be64(v))
			}
		}
	})
	return out
}
