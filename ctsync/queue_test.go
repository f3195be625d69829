// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// queue holds packets back in the kernel's hands: an NFQUEUE listener.
type queue struct {
	t *testing.T
	c *socket.Conn
}

const queueNum = 7

// message sends one message of the queue subsystem.
func (q *queue) message(typ uint16, attrs func([]byte) []byte) {
	q.t.Helper()
	b, at := begin(nil, unix.NFNL_SUBSYS_QUEUE<<8|typ, 0, 1, unix.AF_UNSPEC)
	binary.BigEndian.PutUint16(b[18:], queueNum) // nfgenmsg.res_id
	if _, err := q.c.Write(finish(attrs(b), at)); err != nil {
		q.t.Fatal(err)
	}
}

// openQueue binds the queue.
func openQueue(t *testing.T) *queue {
	c, err := dial(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	q := &queue{t, c}
	q.message(2, func(b []byte) []byte { return attr(b, 1, 1, 0, 0, 0) })    // CONFIG: bind
	q.message(2, func(b []byte) []byte { return attr(b, 2, 0, 0, 0, 0, 1) }) // CONFIG: copy meta data only
	return q
}

// hold sends the first packet of each UDP flow to port to the queue, after its destination was translated and before
// it enters the conntrack table. The rule is written by hand because kernels
// without nft_queue are common; the target of iptables is there.
func (q *queue) hold(port uint16) {
	q.t.Helper()
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Name: "hold", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "hold", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter})
	info := make(xt.Unknown, 8) // struct xt_NFQ_info, aligned
	binary.NativeEndian.PutUint16(info, queueNum)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Register: 1, Data: []byte{byte(UDP)}},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: 1},
		&expr.Cmp{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Target{Name: "NFQUEUE", Info: &info},
	}})
	if err := c.Flush(); err != nil {
		q.t.Fatal(err)
	}
}

// take waits for a packet and returns its number.
func (q *queue) take() []byte {
	q.t.Helper()
	b := make([]byte, 4096)
	_ = q.c.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := q.c.Read(b)
	if err != nil {
		q.t.Fatal(err)
	}
	_, data, _, _ := nextMessage(b[:n])
	typ, hdr, _, ok := nextAttr(data[nfgenLen:])
	if !ok || typ != 1 {
		q.t.Fatalf("no packet header in % x", b[:n])
	}
	return hdr[:4]
}

// release lets the packet go on.
func (q *queue) release(id []byte) {
	q.message(1, func(b []byte) []byte { return attr(b, 2, append([]byte{0, 0, 0, 1}, id...)...) })
}
