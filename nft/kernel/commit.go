// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// OpError is a transaction that the kernel refused; none of it was carried out.
type OpError struct {
	Op      string       // the refused operation
	Family  nft.Family   // of its table
	Element *nft.Element // the refused element, nil if it is unknown
	Errno   syscall.Errno
	Detail  string // the kernel's extended acknowledgement
	part    *part  // the refused message
}

func (e *OpError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Op, e.Errno, e.Detail)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Errno)
}

// Unwrap returns the errno.
func (e *OpError) Unwrap() error { return e.Errno }

// Committed describes a transaction that the kernel carried out.
type Committed struct {
	Family          nft.Family // of its first operation
	Elements, Bytes int
	Took            time.Duration // including the kernel's work
}

// Commit carries out one transaction: all of it, or none of it and an *OpError gives the reason. After any other error it is
// unknown whether the kernel carried it out, and the tables have to be read again.
func (c *Conn) Commit(b *nft.Batch) error { return c.commit(encode(b), nil) }

// CommitAll carries out transactions one after the other up to the first error, and calls done, which may be nil, after
// each. While the kernel works on one, the next is encoded. Finished ones are removed from the list, so that their memory
// can be reused.
func (c *Conn) CommitAll(batches []*nft.Batch, done func(Committed)) error {
	if len(batches) == 1 {
		return c.commit(encode(batches[0]), done)
	}
	stop := make(chan struct{})
	defer close(stop)
	encoded := make(chan *transaction)
	encodeAll := func() {
		defer close(encoded)
		for i, b := range batches {
			t := encode(b)
			batches[i] = nil
			select {
			case encoded <- t:
			case <-stop:
				return
			}
		}
	}
	go encodeAll()
	for t := range encoded {
		if err := c.commit(t, done); err != nil {
			return err
		}
	}
	return nil
}

// commit carries out one transaction. Before Linux 5.17 the kernel does not report which element of a message it refuses;
// then the transaction is sent once more with each element of that message in a message of its own.
func (c *Conn) commit(t *transaction, done func(Committed)) error {
	if t.err == nil && len(t.msgs) == 0 {
		return nil
	}
	start := time.Now()
	err := c.send(t)
	var op *OpError
	if errors.As(err, &op) && op.Element == nil && op.part != nil && len(op.part.elements) > 1 {
		err = c.send(t.split(op.part))
	}
	if err == nil && done != nil {
		done(Committed{t.parts[0].op.Family, t.elements, t.size, time.Since(start)})
	}
	return err
}

// send sends a transaction once and waits for the answer.
func (c *Conn) send(t *transaction) error {
	if t.err != nil {
		return t.err
	}
	if err := c.ready(); err != nil {
		return err
	}
	if t.size > c.buffer {
		// A transaction that cannot be split, as one that replaces a table. Best effort as in dial: if the buffer stays too
		// small, sendmsg fails. (The kernel doubles the requested size and charges less than that besides the messages.)
		_ = c.conn.SetWriteBuffer(t.size)
		c.buffer = t.size
	}
	sent, err := c.conn.SendMessages(t.framed())
	if err == nil {
		err = c.await(sent[len(sent)-2].Header.Sequence)
	}
	if err == nil {
		return nil
	}
	err = t.explain(sent, err, c.ignoreOffsets)
	// More replies may follow; a new socket has none.
	c.broken = true
	return errors.Join(err, c.ready())
}

// framed puts the messages between begin and end of a batch. Only the last one requests an acknowledgement, so that success
// is one reply, which nfnetlink sends after the commit. (It acknowledges begin and end only since Linux 6.10.)
func (t *transaction) framed() []netlink.Message {
	mark := func(typ uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
			Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, binary.BigEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES)...),
		}
	}
	out := make([]netlink.Message, 0, len(t.msgs)+2)
	out = append(out, mark(unix.NFNL_MSG_BATCH_BEGIN))
	out = append(out, t.msgs...)
	out[len(out)-1].Header.Flags |= netlink.Acknowledge
	return append(out, mark(unix.NFNL_MSG_BATCH_END))
}

// await reads replies until the last message is acknowledged; an error about any message comes before that.
func (c *Conn) await(last uint32) error {
	for {
		c.extend()
		msgs, err := c.conn.Receive()
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

// explain names the operation that a netlink error refers to.
func (t *transaction) explain(sent []netlink.Message, err error, ignoreOffsets bool) error {
	var reply *netlink.OpError
	var errno syscall.Errno
	if !errors.As(err, &reply) || !errors.As(reply.Err, &errno) || reply.Sequence == 0 {
		return fmt.Errorf("commit %d messages, %d elements, %d bytes: %w", len(t.msgs), t.elements, t.size, errnoOf(err))
	}
	op := &OpError{Op: "commit", Family: t.parts[0].op.Family, Errno: errno, Detail: reply.Message}
	for i, m := range sent[1 : len(sent)-1] {
		if m.Header.Sequence != reply.Sequence {
			continue
		}
		p := &t.parts[i]
		op.Op, op.Family, op.part = p.String(), p.op.Family, p
		switch {
		case len(p.elements) == 1:
			op.Element = &p.elements[0]
		case !ignoreOffsets:
			op.Element = p.at(reply.Offset - unix.NLMSG_HDRLEN)
		}
	}
	return op
}
