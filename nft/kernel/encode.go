// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// Attribute numbers that golang.org/x/sys/unix lacks (uapi/linux/netfilter/nf_tables.h).
const (
	nftaSetExpr       = 17
	nftaSetCount      = 20 // Linux 6.16
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
	nfAccept          = 1 // NF_ACCEPT
)

// transaction is an encoded Batch.
type transaction struct {
	msgs     []netlink.Message
	parts    []part // of msgs[i]
	elements int
	size     int // bytes of all messages
	err      error
}

// part is what one message is about.
type part struct {
	op       *nft.Op
	set      string        // of the elements
	elements []nft.Element // those of the message, in order
	prefix   int           // bytes of the body before the first element
}

// String describes the operation for an error.
func (p *part) String() string {
	text := p.op.String()
	if p.op.Name == "" && p.set != "" {
		text += p.set
	}
	return text
}

// maxMessage bounds the element list of one message in bytes. Its length has 16 bits, and 32 KiB keeps a message within
// what a netlink reader peeks at; longer lists gain nothing.
const maxMessage = 32 << 10

// encode makes the messages of a batch.
func encode(b *nft.Batch) *transaction {
	t := &transaction{}
	for i := range b.Ops {
		t.encode(&b.Ops[i])
	}
	return t
}

func (t *transaction) add(typ uint16, flags netlink.HeaderFlags, body nl.Buffer, p part) {
	t.msgs = append(t.msgs, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   body,
	})
	t.parts = append(t.parts, p)
	t.size += len(body) + unix.NLMSG_HDRLEN
}

// encode appends the messages of one operation.
func (t *transaction) encode(o *nft.Op) {
	w := message(o.Family)
	w.Name(unix.NFTA_TABLE_NAME, o.Table) // number 1, as the table's name has in all of these messages
	switch o.Kind {
	case nft.AddTable:
		w.Net32(unix.NFTA_TABLE_FLAGS, o.Flags)
		t.add(unix.NFT_MSG_NEWTABLE, netlink.Create, w, part{op: o})
	case nft.DeleteTable:
		t.add(unix.NFT_MSG_DELTABLE, 0, w, part{op: o})
	case nft.AddSet:
		w.Name(unix.NFTA_SET_NAME, o.Name)
		appendSet(&w, &o.Set, uint32(len(t.msgs)+1))
		t.add(unix.NFT_MSG_NEWSET, netlink.Create, w, part{op: o})
	case nft.DeleteSet:
		w.Name(unix.NFTA_SET_NAME, o.Name)
		t.add(unix.NFT_MSG_DELSET, 0, w, part{op: o})
	case nft.AddChain:
		w.Name(unix.NFTA_CHAIN_NAME, o.Name)
		if o.Chain.Hook != nil {
			appendHook(&w, o.Chain.Hook)
		}
		t.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, w, part{op: o})
	case nft.DeleteChain:
		w.Name(unix.NFTA_CHAIN_NAME, o.Name)
		t.add(unix.NFT_MSG_DELCHAIN, 0, w, part{op: o})
	case nft.FlushChain:
		w.Name(unix.NFTA_RULE_CHAIN, o.Name)
		t.add(unix.NFT_MSG_DELRULE, 0, w, part{op: o})
	case nft.DeleteRule:
		w.Name(unix.NFTA_RULE_CHAIN, o.Name)
		w.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, o.Handle)...)
		t.add(unix.NFT_MSG_DELRULE, 0, w, part{op: o})
	case nft.AddRules:
		for i := range o.Chain.Rules {
			t.rule(o, i)
		}
	case nft.AddElements, nft.DeleteElements:
		t.bySet(o)
	}
}

func (t *transaction) rule(o *nft.Op, i int) {
	w := message(o.Family)
	w.Name(unix.NFTA_RULE_TABLE, o.Table)
	w.Name(unix.NFTA_RULE_CHAIN, o.Name)
	exprs, data, err := o.Chain.EncodeRule(o.Family, i)
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("encode rule of chain %s: %w", o.Name, err)
	}
	w.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, exprs...)
	w.Bytes(unix.NFTA_RULE_USERDATA, data...)
	t.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, w, part{op: o})
}

// appendHook attaches a chain to its hook, with policy accept.
func appendHook(w *nl.Buffer, h *nft.Hook) {
	hook := w.Open(unix.NFTA_CHAIN_HOOK)
	w.Net32(unix.NFTA_HOOK_HOOKNUM, h.Num)
	w.Net32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
	w.Close(hook)
	w.Net32(unix.NFTA_CHAIN_POLICY, nfAccept)
	w.Name(unix.NFTA_CHAIN_TYPE, h.Type)
}

// appendSet appends a set's declaration; id is distinct within the transaction.
func appendSet(w *nl.Buffer, s *nft.SetContent, id uint32) {
	w.Net32(unix.NFTA_SET_ID, id)
	w.Net32(unix.NFTA_SET_FLAGS, s.Flags)
	w.Net32(unix.NFTA_SET_KEY_TYPE, s.KeyType)
	w.Net32(unix.NFTA_SET_KEY_LEN, s.KeyLen)
	if s.Flags&unix.NFT_SET_MAP != 0 {
		w.Net32(unix.NFTA_SET_DATA_TYPE, s.DataType)
		if s.DataType != unix.NFT_DATA_VERDICT {
			w.Net32(unix.NFTA_SET_DATA_LEN, s.DataLen)
		}
	}
	if s.Timeout > 0 { // in milliseconds
		w.Bytes(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds()))...)
	}
	desc := w.Open(unix.NFTA_SET_DESC)
	if s.Size > 0 {
		w.Net32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	// Without the lengths of a concatenation's fields nft crashes when it lists the set.
	if fields := nft.FieldLengths(s.KeyType); len(fields) > 1 {
		list := w.Open(nftaSetDescConcat)
		for _, n := range fields {
			elem := w.Open(unix.NFTA_LIST_ELEM)
			w.Net32(nftaSetFieldLen, n)
			w.Close(elem)
		}
		w.Close(list)
	}
	w.Close(desc)
	if s.Counting { // each added element gets a counter of its own (Linux 5.7)
		counter := w.Open(nftaSetExpr)
		w.Name(unix.NFTA_EXPR_NAME, "counter")
		w.Close(w.Open(unix.NFTA_EXPR_DATA))
		w.Close(counter)
	}
	if u := setUserdata(s); u != nil {
		w.Bytes(unix.NFTA_SET_USERDATA, u...)
	}
}

// setUserdata returns the byte order of classids, without which nft prints them reversed and loads them so again (in a
// concatenation nft derives it from the type), and the comment.
func setUserdata(s *nft.SetContent) []byte {
	const hostEndian = 1 // nft's BYTEORDER_HOST_ENDIAN
	var u []byte
	if s.KeyType == nft.ClassIDType {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, hostEndian)
	}
	if s.DataType == nft.ClassIDType {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_DATABYTEORDER, hostEndian)
	}
	if s.Comment != "" {
		u = userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, s.Comment)
	}
	return u
}

// bySet appends messages about elements, set by set.
func (t *transaction) bySet(o *nft.Op) {
	t.elements += o.Counted()
	if o.Name != "" { // the set of a table that is not the Services' one
		t.inOneSet(o, o.Name, o.Elements)
		return
	}
	var ends [256]int // where each set's elements end in the sorted list
	for i := range o.Elements {
		ends[o.Elements[i].Set]++
	}
	for id := 1; id < len(ends); id++ {
		ends[id] += ends[id-1]
	}
	sorted := make([]nft.Element, len(o.Elements))
	for i := len(o.Elements) - 1; i >= 0; i-- {
		at := &ends[o.Elements[i].Set]
		*at--
		sorted[*at] = o.Elements[i]
	}
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n].Set == sorted[0].Set {
			n++
		}
		t.inOneSet(o, sorted[0].Set.String(), sorted[:n])
		sorted = sorted[n:]
	}
}

// inOneSet appends messages about elements of one set, as many as it takes.
func (t *transaction) inOneSet(o *nft.Op, set string, list []nft.Element) {
	for len(list) > 0 {
		list = list[t.elementMessage(o, set, list, len(list)):]
	}
}

// elementMessage appends one message with the first elements of list that fit, at most limit, and returns their number.
func (t *transaction) elementMessage(o *nft.Op, set string, list []nft.Element, limit int) int {
	w := make(nl.Buffer, 0, min(maxMessage+256, 64+limit*128))
	w = append(w, message(o.Family)...)
	w.Name(unix.NFTA_SET_ELEM_LIST_TABLE, o.Table)
	w.Name(unix.NFTA_SET_ELEM_LIST_SET, set)
	elems := w.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	prefix, n := len(w), 0
	for n < limit && len(w) < maxMessage {
		appendElement(&w, &list[n], o.Kind == nft.DeleteElements)
		n++
	}
	w.Close(elems)
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), netlink.Create
	if o.Kind == nft.DeleteElements {
		typ, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	t.add(typ, flags, w, part{o, set, list[:n], prefix})
	return n
}

// at returns the element at an offset within a message's body, nil if there is none. Extended acknowledgements carry the
// offset (Linux 5.17 for added elements).
func (p *part) at(offset int) *nft.Element {
	w := make(nl.Buffer, p.prefix)
	for i := range p.elements {
		start := len(w)
		if appendElement(&w, &p.elements[i], p.op.Kind == nft.DeleteElements); offset >= start && offset < len(w) {
			return &p.elements[i]
		}
	}
	return nil
}

// split returns the transaction with the elements of one message in messages of their own.
func (t *transaction) split(at *part) *transaction {
	out := &transaction{}
	for i := range t.parts {
		p := &t.parts[i]
		if p != at {
			out.msgs, out.parts, out.size = append(out.msgs, t.msgs[i]), append(out.parts, *p), out.size+len(t.msgs[i].Data)+unix.NLMSG_HDRLEN
			continue
		}
		for j := range p.elements {
			out.elementMessage(p.op, p.set, p.elements[j:], 1)
		}
	}
	out.elements = t.elements
	return out
}

// appendElement appends one NFTA_LIST_ELEM of NFT_MSG_NEWSETELEM or DELSETELEM, or two for an interval: nf_tables holds
// both ends as elements of their own.
func appendElement(w *nl.Buffer, e *nft.Element, deletion bool) {
	appendPoint(w, e, e.Key, 0, deletion)
	if e.End != "" {
		appendPoint(w, e, e.End, unix.NFT_SET_ELEM_INTERVAL_END, deletion)
	}
}

func appendPoint(w *nl.Buffer, e *nft.Element, key string, flags uint32, deletion bool) {
	elem := w.Open(unix.NFTA_LIST_ELEM)
	appendValue(w, unix.NFTA_SET_ELEM_KEY, key)
	if flags != 0 {
		w.Net32(unix.NFTA_SET_ELEM_FLAGS, flags)
	}
	if !deletion {
		switch {
		case e.Data == "":
		case e.Set.IsVerdictMap():
			appendVerdict(w, e.Data)
		default:
			appendValue(w, unix.NFTA_SET_ELEM_DATA, e.Data)
		}
		if e.Comment != "" {
			w.Bytes(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment)...)
		}
	}
	w.Close(elem)
}

func appendValue(w *nl.Buffer, typ uint16, v string) {
	d := w.Open(typ)
	w.String(unix.NFTA_DATA_VALUE, v)
	w.Close(d)
}

// appendVerdict appends the datum of a verdict map: "jump CHAIN" or "goto CHAIN".
func appendVerdict(w *nl.Buffer, text string) {
	kind, chain, _ := strings.Cut(text, " ")
	code := int32(unix.NFT_GOTO)
	if kind == "jump" {
		code = unix.NFT_JUMP
	}
	data := w.Open(unix.NFTA_SET_ELEM_DATA)
	v := w.Open(unix.NFTA_DATA_VERDICT)
	w.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
	w.Name(unix.NFTA_VERDICT_CHAIN, chain)
	w.Close(v)
	w.Close(data)
}
