// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// request sends one request and decodes the replies: each is called for every attribute, done after every message.
func (k *Kernel) request(typ uint16, flags netlink.HeaderFlags, body wire, each func(*netlink.AttributeDecoder), done func()) error {
	req := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   body,
	}
	if err := k.ready(); err != nil {
		return err
	}
	req, err := k.conn.Send(req)
	if err != nil {
		k.broken = true
		return err
	}
	interrupted := false
	for m, err := range k.conn.ReceiveIter() {
		if err != nil {
			k.broken = !isReply(err)
			return unwrapErrno(err)
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		if m.Header.Sequence != req.Header.Sequence || len(m.Data) < 4 {
			continue
		}
		if err := decodeMessage(m.Data[4:], each, done); err != nil {
			return err
		}
	}
	if interrupted && !k.lenient { // and may have missed something
		return unix.EINTR
	}
	return nil
}

// isReply tells an error that the kernel replied with from one of the socket.
func isReply(err error) bool {
	var nl *netlink.OpError
	return errors.As(err, &nl) && nl.Sequence != 0
}

func decodeMessage(b []byte, each func(*netlink.AttributeDecoder), done func()) error {
	if each != nil {
		a, err := netlink.NewAttributeDecoder(b)
		if err != nil {
			return err
		}
		a.ByteOrder = binary.BigEndian
		for a.Next() {
			each(a)
		}
		if err := a.Err(); err != nil {
			return err
		}
	}
	if done != nil {
		done()
	}
	return nil
}

// unwrapErrno returns the kernel's errno where a netlink error has one: it is then compared with errors.Is.
func unwrapErrno(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%w", errno)
	}
	return err
}
