// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TraceTablePrefix is how the names of tables begin that switch tracing on. Behind it is the netlink port of the
// socket that made the table, so that several can trace at once.
const TraceTablePrefix = TableName + "-trace-"

// IsTraceTable tells the names of such tables.
func IsTraceTable(name string) bool { return strings.HasPrefix(name, TraceTablePrefix) }

// TraceTarget is an address at which packets are watched, as the client writes it: Addr is not valid for a NodePort,
// which is any address of the node. Port is in host order.
type TraceTarget struct {
	Addr  netip.Addr
	Proto Proto
	Port  uint16
}

// TraceFilter says which packets of one family are traced. What is zero matches all.
type TraceFilter struct {
	Family Family
	// Targets are alternatives to Addr, Proto and Port.
	Targets []TraceTarget
	Addr    netip.Addr
	Proto   Proto
	Port    uint16
	From    netip.Prefix
	// IIF is the interface that packets come in by. Without it also those of processes of the node are traced.
	IIF string
	// All traces every packet; otherwise only the first of a connection in the client's direction.
	All bool
	// Rate is how many packets are traced per second at most, and twice that at once.
	Rate uint32
	// Lifetime is when the rules stop to have an effect, whatever becomes of the process that made them.
	Lifetime time.Duration
}

// Priorities of the tracing chains. TCP and SCTP tell the first packet of a connection themselves, so that they are
// watched before NF_IP_PRI_RAW (-300), where some firewalls drop; the others are known to be the first only behind
// conntrack, NF_IP_PRI_CONNTRACK (-200). Our own chains and those that translate come after both.
const (
	traceEarly = -300 - 10
	traceLate  = -200 + 10
)

// Names of the chain that switches tracing on, and of the sets.
const (
	traceChain   = "watch"
	traceUntil   = "until"
	traceVIPs    = "vips"
	tracePorts   = "ports"
	traceComment = "nftproxy trace: goes with the process that made it"
)

// tracing builds the transaction that switches tracing on for one family.
type tracing struct {
	lang
	table  string
	filter *TraceFilter
	batch  *Batch
}

// traceBatch returns the transaction for filters, one of a family at most. A table with the flag tableOwner is removed by
// the kernel when the socket that made it closes.
func traceBatch(table string, flags uint32, filters []TraceFilter) *Batch {
	b := &Batch{}
	for i := range filters {
		t := &tracing{lang{filters[i].Family}, table, &filters[i], b}
		t.make(flags)
	}
	return b
}

func (t *tracing) make(flags uint32) {
	w := nfgenmsg(t.f)
	w.name(unix.NFTA_TABLE_NAME, t.table)
	w.u32(unix.NFTA_TABLE_FLAGS, flags)
	t.add(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl, w, "add table")
	t.sets()
	t.chain(traceChain, nil)
	t.rule(traceChain, t.watch())
	hooks := []struct {
		name string
		hook uint32
	}{{"prerouting", unix.NF_INET_PRE_ROUTING}, {"output", unix.NF_INET_LOCAL_OUT}}
	for _, h := range hooks {
		if h.hook == unix.NF_INET_LOCAL_OUT && t.filter.IIF != "" {
			continue // it has no input interface
		}
		t.attach(h.name, h.hook)
	}
}

// attach makes the chains of a hook.
func (t *tracing) attach(name string, hook uint32) {
	early, late := []([]expr.Any){tcpFirst(), sctpFirst()}, []([]expr.Any){otherFirst()}
	if t.filter.All {
		early, late = []([]expr.Any){nil}, nil
	}
	for _, c := range []struct {
		suffix   string
		priority int32
		first    [][]expr.Any
	}{{"", traceEarly, early}, {"-new", traceLate, late}} {
		if len(c.first) == 0 {
			continue
		}
		t.chain(name+c.suffix, &Hook{"filter", hook, c.priority})
		for _, first := range c.first {
			for _, to := range t.destinations() {
				t.rule(name+c.suffix, all(t.way(hook), first, t.source(), to, one(jump(traceChain))))
			}
		}
	}
}

// way matches how packets come in. What comes in by the loopback device was seen in output, and keeps being traced.
func (t *tracing) way(hook uint32) []expr.Any {
	switch {
	case hook != unix.NF_INET_PRE_ROUTING:
		return nil
	case t.filter.IIF != "":
		return iifname(t.filter.IIF, false, false)
	}
	return iifname("lo", false, true)
}

// tcpFirst matches a SYN without ACK and RST (RFC 9293), at offset 13 of the header.
func tcpFirst() []expr.Any {
	return append(protocol(TCP), l4byte(13),
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 1, Mask: []byte{0x16}, Xor: []byte{0}}, equal([]byte{0x02}))
}

// sctpFirst matches an INIT (RFC 9260), the type of the first chunk, at offset 12.
func sctpFirst() []expr.Any { return append(protocol(SCTP), l4byte(12), equal([]byte{1})) }

// otherFirst matches packets of other protocols that are new, which ICMP errors about others are not, and whose conntrack
// entry is not confirmed yet: no packet of it passed.
func otherFirst() []expr.Any {
	l4 := key([]load{l4proto()})
	return all(l4, one(notEqual([]byte{byte(TCP)})), l4, one(notEqual([]byte{byte(SCTP)})), ctNew(),
		one(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg0}, mask(ctStatusConfirmed, 0), equal(native(0))))
}

// ctStatusConfirmed is IPS_CONFIRMED.
const ctStatusConfirmed = 1 << 3

func protocol(p Proto) []expr.Any {
	return append(key([]load{l4proto()}), equal([]byte{byte(p)}))
}

// l4byte loads one byte of the transport header.
func l4byte(offset uint32) expr.Any {
	return &expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1,
	}
}

func (t *tracing) source() []expr.Any {
	if !t.filter.From.IsValid() {
		return nil
	}
	return t.within(t.saddr(), t.filter.From)
}

// within matches an address of a prefix.
func (t *tracing) within(addr load, p netip.Prefix) []expr.Any {
	bits := make([]byte, t.f.AddrLen())
	for i := range p.Bits() {
		bits[i/8] |= 0x80 >> (i % 8)
	}
	return append(key([]load{addr}),
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: uint32(len(bits)), Mask: bits, Xor: make([]byte, len(bits))},
		equal(appendAddr(nil, p.Masked().Addr())))
}

// destinations are the alternatives of what packets are addressed to.
func (t *tracing) destinations() (out [][]expr.Any) {
	vips, ports := t.elements()
	if len(vips) > 0 {
		out = append(out, in(traceVIPs, t.vip()...))
	}
	if len(ports) > 0 {
		out = append(out, all(fibLocal(false), in(tracePorts, port()...)))
	}
	if len(out) > 0 {
		return out
	}
	var match []expr.Any
	if t.filter.Proto != 0 {
		match = protocol(t.filter.Proto)
	}
	if t.filter.Addr.IsValid() {
		match = append(match, t.within(t.daddr(), netip.PrefixFrom(t.filter.Addr, t.filter.Addr.BitLen()))...)
	}
	if t.filter.Port != 0 {
		match = append(match, key([]load{dport()})...)
		match = append(match, equal(binary.BigEndian.AppendUint16(nil, t.filter.Port)))
	}
	return [][]expr.Any{match}
}

// watch counts what matches, limits it, counts what is left and has it traced.
func (t *tracing) watch() []expr.Any {
	proto := load{1, func(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg} }}
	return all(in(traceUntil, proto), []expr.Any{
		&expr.Counter{},
		&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(t.filter.Rate), Unit: expr.LimitTimeSecond, Burst: 2 * t.filter.Rate},
		&expr.Counter{},
		&expr.Immediate{Register: reg0, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg0},
	})
}

// elements are the keys of the sets of targets.
func (t *tracing) elements() (vips, ports []string) {
	for _, target := range t.filter.Targets {
		var key []byte
		if target.Addr.IsValid() {
			key = appendAddr(nil, target.Addr)
		}
		key = append(key, byte(target.Proto), 0, 0, 0)
		key = append(binary.BigEndian.AppendUint16(key, target.Port), 0, 0)
		if target.Addr.IsValid() {
			vips = append(vips, string(key))
		} else {
			ports = append(ports, string(key))
		}
	}
	return vips, ports
}

// nfproto is nft's number of the type nf_proto, one byte long.
const nfproto = 2

func (t *tracing) sets() {
	w := t.set(traceUntil, 1)
	w.u32(unix.NFTA_SET_FLAGS, unix.NFT_SET_TIMEOUT)
	w.u32(unix.NFTA_SET_KEY_TYPE, nfproto)
	w.u32(unix.NFTA_SET_KEY_LEN, 1)
	t.add(unix.NFT_MSG_NEWSET, netlink.Create, w, "add set")
	t.fill(traceUntil, []string{string([]byte{byte(t.f)})}, t.filter.Lifetime)
	vips, ports := t.elements()
	for i, s := range []struct {
		setSpec
		keys []string
	}{
		{setSpec{name: traceVIPs, key: []field{fieldAddr, fieldProto, fieldPort}}, vips},
		{setSpec{name: tracePorts, key: []field{fieldProto, fieldPort}}, ports},
	} {
		if len(s.keys) == 0 {
			continue
		}
		magic, n := concat(t.f, s.key)
		w := t.set(s.name, uint32(i+2))
		w.u32(unix.NFTA_SET_FLAGS, s.flags())
		w.u32(unix.NFTA_SET_KEY_TYPE, magic)
		w.u32(unix.NFTA_SET_KEY_LEN, n)
		appendSetDesc(&w, t.f, &s.setSpec)
		t.add(unix.NFT_MSG_NEWSET, netlink.Create, w, "add set")
		t.fill(s.name, s.keys, 0)
	}
}

func (t *tracing) set(name string, id uint32) wire {
	w := nfgenmsg(t.f)
	w.name(unix.NFTA_SET_TABLE, t.table)
	w.name(unix.NFTA_SET_NAME, name)
	w.u32(unix.NFTA_SET_ID, id)
	return w
}

// traceElements bounds the elements of one message: each takes less than 48 bytes, and the list's length has 16 bits.
const traceElements = 1024

func (t *tracing) fill(set string, keys []string, timeout time.Duration) {
	for len(keys) > 0 {
		n := min(len(keys), traceElements)
		w := nfgenmsg(t.f)
		w.name(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
		w.name(unix.NFTA_SET_ELEM_LIST_SET, set)
		list := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, k := range keys[:n] {
			elem := w.open(unix.NFTA_LIST_ELEM)
			w.datum(unix.NFTA_SET_ELEM_KEY, k)
			if timeout > 0 { // in milliseconds
				w.bytes(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(timeout.Milliseconds())))
			}
			w.close(elem)
		}
		w.close(list)
		t.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, w, "add elements of")
		keys = keys[n:]
	}
}

func (t *tracing) chain(name string, hook *Hook) {
	w := nfgenmsg(t.f)
	w.name(unix.NFTA_CHAIN_TABLE, t.table)
	w.name(unix.NFTA_CHAIN_NAME, name)
	if hook != nil {
		appendHook(&w, hook)
	}
	t.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, w, "add chain")
}

// appendHook attaches a chain whose policy is accept.
func appendHook(w *wire, h *Hook) {
	hook := w.open(unix.NFTA_CHAIN_HOOK)
	w.u32(unix.NFTA_HOOK_HOOKNUM, h.Num)
	w.u32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
	w.close(hook)
	w.u32(unix.NFTA_CHAIN_POLICY, accept)
	w.name(unix.NFTA_CHAIN_TYPE, h.Type)
}

func (t *tracing) rule(chain string, exprs []expr.Any) {
	w := nfgenmsg(t.f)
	w.name(unix.NFTA_RULE_TABLE, t.table)
	w.name(unix.NFTA_RULE_CHAIN, chain)
	list := w.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range exprs {
		b, err := expr.Marshal(byte(t.f), e)
		if err != nil && t.batch.err == nil {
			t.batch.err = fmt.Errorf("rule of chain %s, expression %T: %w", chain, e, err)
		}
		w.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	w.close(list)
	if chain == traceChain {
		w.bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, traceComment))
	}
	t.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, w, "add rule to")
}

func (t *tracing) add(typ uint16, flags netlink.HeaderFlags, w wire, op string) {
	t.batch.add(typ, flags, w, subject{family: t.f, op: op, name: t.table})
}
