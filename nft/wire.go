// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// wire appends netlink attributes (struct nlattr: length and type in host order, padded to 4 bytes) to a
// buffer. nf_tables integers within are big endian.
type wire []byte

func (w *wire) pad() {
	for len(*w)%4 != 0 {
		*w = append(*w, 0)
	}
}

func (w *wire) header(typ uint16, n int) {
	*w = binary.NativeEndian.AppendUint16(*w, uint16(n+4))
	*w = binary.NativeEndian.AppendUint16(*w, typ)
}

func (w *wire) bytes(typ uint16, v []byte) {
	w.header(typ, len(v))
	*w = append(*w, v...)
	w.pad()
}

// str appends bytes held in a string, without a terminating zero.
func (w *wire) str(typ uint16, v string) {
	w.header(typ, len(v))
	*w = append(*w, v...)
	w.pad()
}

// name appends a zero-terminated string.
func (w *wire) name(typ uint16, v string) {
	w.header(typ, len(v)+1)
	*w = append(append(*w, v...), 0)
	w.pad()
}

func (w *wire) u32(typ uint16, v uint32) {
	w.header(typ, 4)
	*w = binary.BigEndian.AppendUint32(*w, v)
}

// open starts a nested attribute; close, given its result, ends it.
func (w *wire) open(typ uint16) int {
	start := len(*w)
	w.header(typ|unix.NLA_F_NESTED, 0)
	return start
}

func (w *wire) close(start int) {
	binary.NativeEndian.PutUint16((*w)[start:], uint16(len(*w)-start))
}

// nfgenmsg starts a message: family, version 0, resource id 0.
func nfgenmsg(f Family) wire { return wire{byte(f), unix.NFNETLINK_V0, 0, 0} }

// Attribute numbers that golang.org/x/sys/unix lacks (uapi/linux/netfilter/nf_tables.h).
const (
	nftaSetElemKeyEnd = 10
	nftaSetExpr       = 17
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
	nftSetConcat      = 0x80 // Linux 5.6
	tableDormant      = 1    // NFT_TABLE_F_DORMANT
	accept            = 1    // NF_ACCEPT
)

// fieldTypes are the fields' numbers in nft's enum datatypes (what nft prints elements by) and their lengths.
var fieldTypes = [...]struct {
	magic uint32
	len   func(Family) uint32
}{
	fieldAddr:    {0, func(f Family) uint32 { return uint32(f.AddrLen()) }},
	fieldProto:   {12, func(Family) uint32 { return 1 }},
	fieldPort:    {13, func(Family) uint32 { return 2 }},
	fieldClassID: {23, func(Family) uint32 { return 4 }},
	fieldVerdict: {unix.NFT_DATA_VERDICT, func(Family) uint32 { return 16 }},
}

// tableRequest is a message about our table, named by the attribute.
func tableRequest(f Family, attr uint16) wire {
	w := nfgenmsg(f)
	w.name(attr, TableName)
	return w
}

func (t field) magic(f Family) uint32 {
	switch {
	case t != fieldAddr:
		return fieldTypes[t].magic
	case f == IPv4:
		return 7
	}
	return 8
}

// concat returns nft's type number and the kernel's length of fields joined: each type takes 6 bits, each
// field a multiple of 4 bytes.
func concat(f Family, fields []field) (magic, length uint32) {
	if len(fields) == 1 {
		return fields[0].magic(f), fieldTypes[fields[0]].len(f)
	}
	for _, t := range fields {
		magic = magic<<6 | t.magic(f)
		length += (fieldTypes[t].len(f) + 3) / 4 * 4
	}
	return magic, length
}

// appendSet appends the body of NFT_MSG_NEWSET.
func appendSet(w wire, f Family, s *setSpec, id uint32) wire {
	keyMagic, keyLen := concat(f, s.key)
	w.name(unix.NFTA_SET_TABLE, TableName)
	w.name(unix.NFTA_SET_NAME, s.name)
	w.u32(unix.NFTA_SET_ID, id)
	w.u32(unix.NFTA_SET_FLAGS, s.flags())
	w.u32(unix.NFTA_SET_KEY_TYPE, keyMagic)
	w.u32(unix.NFTA_SET_KEY_LEN, keyLen)
	if s.isMap() {
		magic, n := concat(f, s.data)
		if s.data[0] == fieldVerdict {
			n = 0 // the kernel knows
		}
		w.u32(unix.NFTA_SET_DATA_TYPE, magic)
		w.u32(unix.NFTA_SET_DATA_LEN, n)
	}
	if s.size > 0 || len(s.key) > 1 {
		appendSetDesc(&w, f, s)
	}
	if s.counting {
		// Each element that is added gets one of its own (Linux 5.7).
		counter := w.open(nftaSetExpr)
		w.name(unix.NFTA_EXPR_NAME, "counter")
		w.close(w.open(unix.NFTA_EXPR_DATA))
		w.close(counter)
	}
	if u := setUserdata(s); u != nil {
		w.bytes(unix.NFTA_SET_USERDATA, u)
	}
	return w
}

// hostEndian is nft's BYTEORDER_HOST_ENDIAN.
const hostEndian = 1

// setUserdata says in which byte order classids are, without which nft prints, and loads again, reversed ones.
// In a concatenation it knows by the type.
func setUserdata(s *setSpec) []byte {
	var u []byte
	if len(s.key) == 1 && s.key[0] == fieldClassID {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, hostEndian)
	}
	if len(s.data) == 1 && s.data[0] == fieldClassID {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_DATABYTEORDER, hostEndian)
	}
	if s.comment != "" {
		u = userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, s.comment)
	}
	return u
}

// appendSetDesc appends the size and the lengths of a concatenation's fields. Without these lengths nft
// crashes when it lists the set.
func appendSetDesc(w *wire, f Family, s *setSpec) {
	desc := w.open(unix.NFTA_SET_DESC)
	if s.size > 0 {
		w.u32(unix.NFTA_SET_DESC_SIZE, s.size)
	}
	if len(s.key) > 1 {
		list := w.open(nftaSetDescConcat)
		for _, t := range s.key {
			elem := w.open(unix.NFTA_LIST_ELEM)
			w.u32(nftaSetFieldLen, fieldTypes[t].len(f))
			w.close(elem)
		}
		w.close(list)
	}
	w.close(desc)
}

func (s *setSpec) flags() uint32 {
	var flags uint32
	if s.isMap() {
		flags |= unix.NFT_SET_MAP
	}
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	if len(s.key) > 1 {
		flags |= nftSetConcat
	}
	return flags
}

// appendChain appends the body of NFT_MSG_NEWCHAIN.
func appendChain(w wire, c *Chain) wire {
	w.name(unix.NFTA_CHAIN_TABLE, TableName)
	w.name(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		hook := w.open(unix.NFTA_CHAIN_HOOK)
		w.u32(unix.NFTA_HOOK_HOOKNUM, c.Hook.Num)
		w.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		w.close(hook)
		w.u32(unix.NFTA_CHAIN_POLICY, accept)
		w.name(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	}
	return w
}

// appendRule appends the body of NFT_MSG_NEWRULE.
func appendRule(w wire, f Family, chain string, r *Rule) (wire, error) {
	w.name(unix.NFTA_RULE_TABLE, TableName)
	w.name(unix.NFTA_RULE_CHAIN, chain)
	list := w.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.Exprs {
		b, err := expr.Marshal(byte(f), e)
		if err != nil {
			return nil, fmt.Errorf("rule of chain %s, expression %T: %w", chain, e, err)
		}
		w.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	w.close(list)
	w.bytes(unix.NFTA_RULE_USERDATA, ruleUserdata(r.Comment, fingerprint(w[list:], r.Comment)))
	return w, nil
}

// ruleFingerprint is the type of our own user data of a rule, next to nft's comment (type 0).
const ruleFingerprint userdata.Type = 0x4e

// ruleUserdata is what a rule carries besides its expressions: the comment that nft shows, and the
// fingerprint by which we recognise the rule as ours and unchanged.
func ruleUserdata(comment string, print uint64) []byte {
	var b []byte
	if comment != "" {
		b = userdata.AppendString(b, userdata.TypeComment, comment)
	}
	return userdata.Append(b, ruleFingerprint, binary.BigEndian.AppendUint64(nil, print))
}

// fingerprint is a hash (FNV-1a) of a rule's expressions as we send them and of its comment.
func fingerprint(exprs []byte, comment string) uint64 {
	h := fnv.New64a()
	h.Write(exprs)
	h.Write([]byte(comment))
	return h.Sum64()
}

// maxComment is the longest comment that nft loads (NFTNL_UDATA_COMMENT_MAXLEN).
const maxComment = 128

// cutComment makes a comment that nft can load: of a longer name the beginning and a hash of it all.
func cutComment(s string) string {
	if len(s) <= maxComment {
		return s
	}
	h := fnv.New64a()
	h.Write([]byte(s))
	return fmt.Sprintf("%s~%016x", s[:maxComment-17], h.Sum64())
}

// appendElement appends one NFTA_LIST_ELEM of NFT_MSG_NEWSETELEM or DELSETELEM.
func (w *wire) appendElement(e *Element, deletion bool) {
	if w.appendPoint(e, e.Key, 0, deletion); e.End != "" && !e.Set.concatenated() {
		// A plain interval set holds both ends as elements of their own.
		w.appendPoint(e, e.End, unix.NFT_SET_ELEM_INTERVAL_END, deletion)
	}
}

func (w *wire) appendPoint(e *Element, key string, flags uint32, deletion bool) {
	elem := w.open(unix.NFTA_LIST_ELEM)
	w.datum(unix.NFTA_SET_ELEM_KEY, key)
	if e.End != "" && e.Set.concatenated() {
		w.datum(nftaSetElemKeyEnd, e.End)
	}
	if flags != 0 {
		w.u32(unix.NFTA_SET_ELEM_FLAGS, flags)
	}
	if !deletion {
		if e.Data != "" {
			w.datum(unix.NFTA_SET_ELEM_DATA, e.Data)
		}
		if e.Comment != "" {
			w.bytes(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment))
		}
	}
	w.close(elem)
}

func (w *wire) datum(typ uint16, v string) {
	d := w.open(typ)
	w.str(unix.NFTA_DATA_VALUE, v)
	w.close(d)
}

// appendDispatch appends an element of a verdict map: program, goto its chain, or jump where it is a policy.
func (w *wire) appendDispatch(p Program, deletion bool) {
	elem := w.open(unix.NFTA_LIST_ELEM)
	w.datum(unix.NFTA_SET_ELEM_KEY, string(appendClassID(nil, uint32(p))))
	if !deletion {
		data := w.open(unix.NFTA_SET_ELEM_DATA)
		v := w.open(unix.NFTA_DATA_VERDICT)
		code := int64(unix.NFT_GOTO)
		if p.Kind().IsPolicy() {
			code = unix.NFT_JUMP
		}
		w.u32(unix.NFTA_VERDICT_CODE, uint32(0xffffffff&code))
		w.name(unix.NFTA_VERDICT_CHAIN, p.Chain())
		w.close(v)
		w.close(data)
	}
	w.close(elem)
}
