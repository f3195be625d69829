// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel is the only part of the dataplane that owns sockets: it commits transactions to nf_tables, reads tables
// back, watches for changes by others and removes what kube-proxy left behind.
//
// In come values of package nft (a Batch, the name of a table); out go values of package nft (Content, Snapshot), counters,
// events and errors that name the operation, the element and the errno. The package decides nothing about Services.
//
// The encoding and the decoding are our own instead of github.com/google/nftables because one transaction may exceed
// 64 KiB, because an error has to lead to the one element that the kernel refused, and because a start moves 50,000
// elements, for which that library allocates and copies several times as much. The expressions of rules are the library's.
package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// Conn is a connection to nf_tables of one network namespace. It is not safe for concurrent use, except for PortID.
type Conn struct {
	// DryRun makes RemoveTables, RemoveTraces and RemoveKubeProxy report what they would remove, and remove nothing.
	DryRun bool

	netns  int
	conn   *netlink.Conn
	port   atomic.Uint32
	buffer int // requested size of the send buffer in bytes
	// timeout bounds the wait for each message of a reply.
	timeout time.Duration
	// broken means that the socket is closed, or that it may still deliver replies to an earlier request.
	broken bool
	// ignoreOffsets hides which element of a message the kernel refuses, as kernels before Linux 5.17 do; for tests.
	ignoreOffsets bool
	// ignoreCounts hides how many elements a set has, as kernels before Linux 6.16 do; for tests.
	ignoreCounts bool
	// countedClients bounds the clients that AffinityCounts lists, nextCounted is the map with which it begins.
	countedClients, nextCounted int
}

// socketBuffer is the requested size of both buffers in bytes. A transaction is one sendmsg and has to fit into the send
// buffer (af_netlink refuses len > sk_sndbuf - 32); the receive buffer has to hold one error per message, each of which is
// charged with less than 1 KiB.
const socketBuffer = 8 << 20

// replyTimeout bounds the wait for one message. The kernel handles a request within sendmsg, and each further part of a
// dump within recvmsg, so a reply is late only if it is lost.
const replyTimeout = 10 * time.Second

// Open returns a connection to the network namespace of a file descriptor, or of the calling process if netns is 0.
// Commits need CAP_NET_ADMIN there. Needs Linux 5.8 (docs/kernels.md).
func Open(netns int) (*Conn, error) {
	c := &Conn{netns: netns, timeout: replyTimeout, countedClients: countedClients}
	return c, c.dial()
}

// Close closes the socket; the tables stay.
func (c *Conn) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

func (c *Conn) dial() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.netns, MessageBufferSize: 64 << 10})
	if err != nil {
		return fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	// Best effort: without CAP_NET_ADMIN in the initial user namespace the limits of net.core apply, and without extended
	// acknowledgements errors carry less detail. (Not together with CapAcknowledge: mdlayher/netlink v1.11.2 does not find
	// the extension behind a capped message.)
	_ = conn.SetWriteBuffer(socketBuffer)
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	c.conn, c.buffer, c.broken = conn, socketBuffer, false
	c.port.Store(conn.PID())
	return nil
}

// PortID is the netlink port of our transactions, which distinguishes them from others for a Watch. It changes when the
// connection replaces its socket after a failure. Safe for concurrent use.
func (c *Conn) PortID() uint32 { return c.port.Load() }

// ready replaces a broken socket. If that fails, for example for lack of file descriptors, the next request tries again.
func (c *Conn) ready() error {
	if !c.broken {
		return nil
	}
	_ = c.conn.Close()
	return c.dial()
}

// extend moves the deadline of the next message into the future.
func (c *Conn) extend() { _ = c.conn.SetReadDeadline(time.Now().Add(c.timeout)) }

// message starts a request: struct nfgenmsg with family, version 0 and resource id 0.
func message(f nft.Family) nl.Buffer { return nl.Buffer{byte(f), unix.NFNETLINK_V0, 0, 0} }

// request sends one request and calls visit with the attributes of each reply, which are valid during the call only. It
// returns EINTR after a dump that a commit interrupted, which may lack entries and contain others twice.
func (c *Conn) request(typ uint16, flags netlink.HeaderFlags, body nl.Buffer, visit func(attrs []byte)) error {
	if err := c.ready(); err != nil {
		return err
	}
	req, err := c.conn.Send(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   body,
	})
	if err != nil {
		c.broken = true
		return err
	}
	interrupted := false
	c.extend()
	for m, err := range c.conn.ReceiveIter() {
		if err != nil {
			c.broken = !isReply(err)
			return errnoOf(err)
		}
		c.extend()
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		if visit != nil && m.Header.Sequence == req.Header.Sequence && len(m.Data) >= 4 {
			visit(m.Data[4:])
		}
	}
	if interrupted {
		return unix.EINTR
	}
	return nil
}

// isReply distinguishes an error that the kernel replied with from one of the socket.
func isReply(err error) bool {
	var op *netlink.OpError
	return errors.As(err, &op) && op.Sequence != 0
}

// errnoOf returns the errno of a netlink error, which errors.Is then finds, or the error itself if it has none.
func errnoOf(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no reply from nf_tables: %w", os.ErrDeadlineExceeded)
	case errors.As(err, &errno):
		return errno
	}
	return err
}
