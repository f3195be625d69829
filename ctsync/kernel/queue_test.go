// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// queue is an NFQUEUE listener, which holds packets back.
type queue struct {
	t *testing.T
	c *netlink.Conn
}

const queueNum = 7

// message sends one message of the queue subsystem.
func (q *queue) message(typ netlink.HeaderType, attrs func(*nl.Buffer)) {
	q.t.Helper()
	m := request(unix.NFNL_SUBSYS_QUEUE<<8|typ, 0, 0, attrs)
	binary.BigEndian.PutUint16(m.Data[2:], queueNum) // nfgenmsg.res_id
	if _, err := q.c.Send(m); err != nil {
		q.t.Fatal(err)
	}
}

// openQueue binds the queue.
func openQueue(t *testing.T) *queue {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	q := &queue{t, c}
	q.message(2, func(b *nl.Buffer) { b.Bytes(1, 1, 0, 0, 0) })    // CONFIG: bind
	q.message(2, func(b *nl.Buffer) { b.Bytes(2, 0, 0, 0, 0, 1) }) // CONFIG: copy meta data only
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
		&expr.Cmp{Register: 1, Data: []byte{byte(ctsync.UDP)}},
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
	messages, err := q.c.Receive()
	if err != nil || len(messages) == 0 {
		q.t.Fatal(messages, err)
	}
	return nl.Find(messages[0].Data[nfgenLen:], 1)[:4] // NFQA_PACKET_HDR
}

// release lets the packet go on.
func (q *queue) release(id []byte) {
	q.message(1, func(b *nl.Buffer) { b.Bytes(2, append([]byte{0, 0, 0, 1}, id...)...) })
}
