// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// Watch reports changes of our tables by others. It does not report what changed: an event is a trigger to read the tables
// again, not data. Needs CAP_NET_ADMIN.
type Watch struct {
	conn *netlink.Conn
	by   atomic.Pointer[string]
}

// OpenWatch starts to watch a network namespace (see Open). The Watch reports what changes from then on.
func OpenWatch(netns int) (*Watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	_ = conn.SetReadBuffer(socketBuffer) // best effort: the kernel reports an overrun
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("join nftables multicast group: %w", err)
	}
	return &Watch{conn: conn}, nil
}

// Ignore sets the netlink ports whose transactions are not reported: those of our own connections. A filter in the kernel
// discards them, so that loading a large cluster costs the watcher nothing. Safe for concurrent use with Run.
func (w *Watch) Ignore(ports ...uint32) error {
	// The offset of nlmsg_pid is 12 (struct nlmsghdr). A filter loads big endian, the field is in host order.
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 12, Size: 4}}
	for i, id := range ports {
		port := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, id))
		// Skip the remaining ports and the instruction that lets a message pass.
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: port, SkipTrue: uint8(len(ports) - i)})
	}
	filter, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 1<<32 - 1}, bpf.RetConstant{Val: 0}))
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	if err := w.conn.SetBPF(filter); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// Run calls changed for every message about a table of ours, and for both families when messages were lost, until ctx ends or
// the socket fails. It returns nil in the first case. changed must not block for long.
func (w *Watch) Run(ctx context.Context, changed func(nft.Family)) error {
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	touched := false // our tables, by the transaction whose messages are read
	for {
		msgs, err := w.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			for _, f := range nft.Families() {
				changed(f)
			}
		case err != nil:
			return fmt.Errorf("receive nftables events: %w", err)
		}
		for _, m := range msgs {
			f, ok := ours(m)
			switch {
			case ok:
				touched = true
				changed(f)
			case touched && m.Header.Type == newGeneration && len(m.Data) >= 4: // ends a transaction
				touched = false
				name := nl.Text(nl.Find(m.Data[4:], unix.NFTA_GEN_PROC_NAME))
				pid := nl.Find(m.Data[4:], unix.NFTA_GEN_PROC_PID)
				if len(pid) == 4 {
					name = fmt.Sprintf("%s (process %d)", name, binary.BigEndian.Uint32(pid))
				}
				w.by.Store(&name)
			}
		}
	}
}

// By returns the program that last changed a table of ours, as "nft (process 7)"; the text may have any bytes. It is empty
// until the end of such a transaction was received. Safe for concurrent use with Run.
func (w *Watch) By() string {
	if by := w.by.Load(); by != nil {
		return *by
	}
	return ""
}

const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

// ours returns the family of an event about a table of ours. All messages except the end of a generation begin with the
// table's name, attribute 1 of each kind.
func ours(m netlink.Message) (nft.Family, bool) {
	if len(m.Data) < 4 || m.Header.Type == newGeneration {
		return 0, false
	}
	f := nft.Family(m.Data[0])
	return f, nl.Text(nl.Find(m.Data[4:], unix.NFTA_TABLE_NAME)) == nft.TableName && (f == nft.IPv4 || f == nft.IPv6)
}

// Close ends the watch.
func (w *Watch) Close() error { return w.conn.Close() }
