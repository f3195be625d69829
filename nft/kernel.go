// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Kernel talks to nf_tables of one network namespace. It is not safe for concurrent use, but for PortID.
type Kernel struct {
	netns  int
	conn   *netlink.Conn
	port   atomic.Uint32
	buffer int  // asked for, in bytes; see reserve
	blind  bool // as a kernel that does not say which element it refuses; for tests
	// lenient takes dumps that commits interrupted as they are: see Glimpse.
	lenient bool
	// broken says that the socket is closed, or that replies to an earlier request may still come in by it.
	broken bool
}

// Open returns a Kernel for the network namespace of the descriptor, or of the calling process if it is 0.
// Commits need CAP_NET_ADMIN there. Needs Linux 5.8 (see docs/kernels.md).
func Open(netns int) (*Kernel, error) {
	k := &Kernel{netns: netns}
	return k, k.dial()
}

// Close closes the socket; the tables stay.
func (k *Kernel) Close() error {
	if k.conn == nil {
		return nil
	}
	return k.conn.Close()
}

// socketBuffer is asked for in both directions. A transaction is one sendmsg and must fit the send buffer
// (af_netlink refuses len > sk_sndbuf - 32); the read buffer has to hold one error per message, and each
// is charged by its truesize of under 1 KiB.
const socketBuffer = 8 << 20

func (k *Kernel) dial() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.netns, MessageBufferSize: 64 << 10})
	if err != nil {
		return fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	// Best effort: without CAP_NET_ADMIN in the first user namespace the limits of net.core apply, and
	// without extended acknowledgements errors say less. (Not together with CapAcknowledge: mdlayher/netlink
	// v1.11.2 does not find the extension behind a capped message.)
	_ = conn.SetWriteBuffer(socketBuffer)
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	k.conn, k.buffer, k.broken = conn, socketBuffer, false
	k.port.Store(conn.PID())
	return nil
}

// PortID is the netlink port that our transactions carry, by which a watcher tells them from others'. It
// changes when a failure made the Kernel open a new socket. Safe for concurrent use.
func (k *Kernel) PortID() uint32 { return k.port.Load() }

// OpError is a transaction that the kernel refused; nothing of it was done.
type OpError struct {
	Op      string   // the operation refused
	Family  Family   //
	Element *Element // the element refused, if it is known
	Errno   syscall.Errno
	Detail  string // the kernel's extended acknowledgement
	among   subject
}

func (e *OpError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Op, e.Errno, e.Detail)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Errno)
}

// Unwrap returns the errno.
func (e *OpError) Unwrap() error { return e.Errno }

// Commit carries out a batch: all of it, or none of it and an *OpError says why. After another kind of
// error it is unknown whether the kernel took it, and the tables have to be read again.
//
// Before Linux 5.17 the kernel does not say which element of a message it refuses; then the batch is sent once more with
// the elements of that message apart.
func (k *Kernel) Commit(b *Batch) error {
	err := k.commit(b)
	var op *OpError
	if !errors.As(err, &op) || op.Element != nil || len(op.among.elems) < 2 {
		return err
	}
	return k.commit(b.apart(op.among))
}

// commit sends a batch once.
func (k *Kernel) commit(b *Batch) error {
	b.Encode()
	if b.err != nil {
		return fmt.Errorf("encode transaction of %d messages: %w", len(b.msgs), b.err)
	}
	if len(b.msgs) == 0 {
		return nil
	}
	if err := k.ready(); err != nil {
		return err
	}
	k.reserve(b)
	sent, err := k.conn.SendMessages(b.framed())
	if err == nil {
		err = k.await(sent)
	}
	if err == nil {
		return nil
	}
	err = b.explain(sent, err, !k.blind)
	// More replies may be on their way; a new socket has none.
	k.broken = true
	return errors.Join(err, k.ready())
}

// ready replaces a broken socket. If that fails, as for want of descriptors, the next use tries again.
func (k *Kernel) ready() error {
	if !k.broken {
		return nil
	}
	_ = k.conn.Close()
	return k.dial()
}

// reserve makes room in the send buffer for a transaction that cannot be split, as one that replaces the table of
// another version. (The kernel doubles what is asked for, and counts less than that besides the message.)
func (k *Kernel) reserve(b *Batch) {
	if b.size > k.buffer {
		_ = k.conn.SetWriteBuffer(b.size) // best effort, as in dial: the send says if it was not enough
		k.buffer = b.size
	}
}

// framed puts the messages between begin and end. Only the last asks for an acknowledgement, so that success is
// one reply: nfnetlink sends it after the commit. (It acknowledges begin and end only since Linux 6.10.)
func (b *Batch) framed() []netlink.Message {
	mark := func(typ uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
			Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, binary.BigEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES)...),
		}
	}
	out := make([]netlink.Message, 0, len(b.msgs)+2)
	out = append(out, mark(unix.NFNL_MSG_BATCH_BEGIN))
	out = append(out, b.msgs...)
	out[len(out)-1].Header.Flags |= netlink.Acknowledge
	return append(out, mark(unix.NFNL_MSG_BATCH_END))
}

// await reads replies until the last message is acknowledged; an error on any comes before that.
func (k *Kernel) await(sent []netlink.Message) error {
	last := sent[len(sent)-2].Header.Sequence
	for {
		msgs, err := k.conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if m.Header.Sequence == last {
				return nil
			}
		}
	}
}

// explain names the operation that a netlink error is about.
func (b *Batch) explain(sent []netlink.Message, err error, offsets bool) error {
	var nl *netlink.OpError
	var errno syscall.Errno
	if !errors.As(err, &nl) || !errors.As(nl.Err, &errno) || nl.Sequence == 0 {
		return fmt.Errorf("commit %d messages, %d elements, %d bytes: %w", len(b.msgs), b.elem, b.size, err)
	}
	op := &OpError{Op: "commit", Errno: errno, Detail: nl.Message}
	if len(b.what) > 0 {
		op.Family = b.what[0].family
	}
	for i, m := range sent {
		if m.Header.Sequence != nl.Sequence || i == 0 || i > len(b.what) {
			continue
		}
		s := b.what[i-1]
		if !offsets {
			nl.Offset = 0
		}
		op.Op, op.Family, op.Element, op.among = s.String(), s.family, s.element(m.Data, nl.Offset), s
	}
	return op
}

// element returns the element of a message that begins at an offset within it, as extended acknowledgements
// tell (Linux 5.17 for added elements), or the only one.
func (s subject) element(body []byte, offset int) *Element {
	if len(s.elems) == 1 {
		return &s.elems[0]
	}
	w := wire(append([]byte(nil), body[:4]...))
	w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	w.name(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := range s.elems {
		start := len(w) + unix.NLMSG_HDRLEN
		w.appendElement(&s.elems[i], !s.add)
		if offset >= start && offset < len(w)+unix.NLMSG_HDRLEN {
			return &s.elems[i]
		}
	}
	return nil
}
