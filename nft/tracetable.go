// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TraceTablePrefix is how the names of tables begin that switch tracing on. Behind it is the netlink port of the
// socket that made the table, so that several can trace at once.
const TraceTablePrefix = TableName + "-trace-"

// IsTraceTable reports whether a name is that of such a table.
func IsTraceTable(name string) bool { return strings.HasPrefix(name, TraceTablePrefix) }

// TraceTarget is an address at which packets are watched, as the client writes it: Addr is not valid for a NodePort,
// which is any address of the node. Port is in host order.
type TraceTarget struct {
	Addr  netip.Addr
	Proto Proto
	Port  uint16
}

// TraceFilter selects the packets of one family that are traced. What is zero matches all.
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

// Priorities of the tracing chains. TCP and SCTP mark the first packet of a connection themselves, so that they are
// watched before NF_IP_PRI_RAW (-300), where some firewalls drop; the others are known to be the first only behind
// conntrack, NF_IP_PRI_CONNTRACK (-200). Our own chains and those that translate come after both.
const (
	traceEarly = -300 - 10
	traceLate  = -200 + 10
)

// Names of the chain that switches tracing on, and of the sets.
const (
	TraceChain   = "watch"
	traceUntil   = "until"
	traceVIPs    = "vips"
	tracePorts   = "ports"
	traceComment = "nftproxy trace: goes with the process that made it"
)

// TableOwner is NFT_TABLE_F_OWNER (Linux 5.12): only the socket that made the table may change it, and the kernel removes
// the table when the socket closes.
const TableOwner = 2

// tracing builds the transaction that switches tracing on for one family.
type tracing struct {
	lang
	table  string
	filter *TraceFilter
	batch  *Batch
}

// TraceTables returns the transaction that makes the tracing tables for filters, of which there is at most one per family.
func TraceTables(table string, flags uint32, filters []TraceFilter) *Batch {
	b := &Batch{}
	for i := range filters {
		t := &tracing{lang{filters[i].Family}, table, &filters[i], b}
		t.make(flags)
	}
	return b
}

func (t *tracing) add(o Op) {
	o.Family, o.Table = t.f, t.table
	t.batch.Add(o)
}

func (t *tracing) make(flags uint32) {
	t.add(Op{Kind: AddTable, Flags: flags})
	t.sets()
	t.chain(TraceChain, nil)
	t.rule(TraceChain, t.watch())
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
				t.rule(name+c.suffix, all(t.way(hook), first, t.source(), to, one(jump(TraceChain))))
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
	return append(key([]load{addr}), t.maskAt(reg0, p.Bits()), equal(appendAddr(nil, p.Masked().Addr())))
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

func (t *tracing) sets() {
	until := SetContent{Flags: unix.NFT_SET_TIMEOUT, KeyType: nfProtoType, KeyLen: 1, Timeout: t.filter.Lifetime}
	t.set(traceUntil, until, []string{string([]byte{byte(t.f)})})
	vips, ports := t.elements()
	vip := setSpec{key: []field{fieldAddr, fieldProto, fieldPort}}
	port := setSpec{key: []field{fieldProto, fieldPort}}
	t.set(traceVIPs, vip.content(t.f), vips)
	t.set(tracePorts, port.content(t.f), ports)
}

// set makes a set with elements, if there are any.
func (t *tracing) set(name string, decl SetContent, keys []string) {
	if len(keys) == 0 {
		return
	}
	t.add(Op{Kind: AddSet, Name: name, Set: decl})
	elements := Op{Kind: AddElements, Name: name}
	for _, k := range keys {
		elements.Elements = append(elements.Elements, Element{Key: k})
	}
	t.add(elements)
}

func (t *tracing) chain(name string, hook *Hook) {
	t.add(Op{Kind: AddChain, Name: name, Chain: &Chain{Name: name, Hook: hook}})
}

func (t *tracing) rule(chain string, exprs []expr.Any) {
	r := Rule{Exprs: exprs}
	if chain == TraceChain {
		r.Comment = traceComment
	}
	t.add(Op{Kind: AddRules, Name: chain, Chain: &Chain{Name: chain, Rules: []Rule{r}}})
}
