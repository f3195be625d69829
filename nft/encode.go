// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
)

// nftSetConcat is NFT_SET_CONCAT (Linux 5.6).
const nftSetConcat = 0x80

// typeOf is nft's number of a field's type.
func (t field) typeOf(f Family) uint32 {
	switch {
	case t == fieldProto:
		return inetProtoType
	case t == fieldPort:
		return inetPortType
	case t == fieldClassID:
		return ClassIDType
	case t == fieldVerdict:
		return unix.NFT_DATA_VERDICT
	case f == IPv4:
		return ipv4AddrType
	}
	return ipv6AddrType
}

// concat returns nft's type number and the kernel's length of joined fields: each type takes 6 bits, each field a multiple
// of 4 bytes.
func concat(f Family, fields []field) (typ, length uint32) {
	if len(fields) == 1 {
		typ = fields[0].typeOf(f)
		return typ, typeLength(typ)
	}
	for _, t := range fields {
		typ = typ<<typeBits | t.typeOf(f)
		length += (typeLength(t.typeOf(f)) + 3) / 4 * 4
	}
	return typ, length
}

// EncodeRule returns the expressions of a rule as NFTA_RULE_EXPRESSIONS holds them, and its user data: the comment that nft
// shows, the fingerprint by which we recognise the rule as ours and unchanged, and with the first rule the chain's Data.
func (ch *Chain) EncodeRule(f Family, i int) (exprs, data []byte, err error) {
	r := &ch.Rules[i]
	var w nl.Buffer
	for _, e := range r.Exprs {
		b, err := expr.Marshal(byte(f), e)
		if err != nil {
			return nil, nil, fmt.Errorf("expression %T: %w", e, err)
		}
		w.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b...)
	}
	h := fnv.New64a()
	h.Write(w)
	h.Write([]byte(r.Comment))
	if r.Comment != "" {
		data = userdata.AppendString(data, userdata.TypeComment, r.Comment)
	}
	if i == 0 && ch.Data != "" {
		h.Write([]byte(ch.Data))
		data = userdata.Append(data, chainData, []byte(ch.Data))
	}
	return w, userdata.Append(data, ruleFingerprint, binary.BigEndian.AppendUint64(nil, h.Sum64())), nil
}

// The types of our own user data of a rule, next to nft's comment (type 0).
const (
	ruleFingerprint userdata.Type = 0x4e
	chainData       userdata.Type = 0x4f
)

// RuleFingerprint returns the fingerprint in a rule's user data, 0 if there is none.
func RuleFingerprint(data []byte) uint64 {
	if v := userdata.Get(data, ruleFingerprint); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// RuleData returns the chain's Data in a rule's user data.
func RuleData(data []byte) string { return string(userdata.Get(data, chainData)) }

// maxComment is the longest comment that nft loads (NFTNL_UDATA_COMMENT_MAXLEN).
const maxComment = 128

// cutComment makes a comment that nft can load: of a longer name the beginning and a hash of it all.
func cutComment(s string) string {
	if len(s) <= maxComment {
		return s
	}
	h := fnv.New64a()
	h.Write([]byte(s))
	return fmt.Sprintf("%s~%016x", strings.ToValidUTF8(s[:maxComment-17], ""), h.Sum64()) // not within a character
}

// DecodeExprs decodes the expressions of a rule. One that this version does not know is nil.
func DecodeExprs(f Family, list []byte) (out []expr.Any, err error) {
	for _, elem := range nl.Attrs(list) {
		name, data := nl.Text(nl.Find(elem, unix.NFTA_EXPR_NAME)), nl.Find(elem, unix.NFTA_EXPR_DATA)
		e := newExpr(name, data)
		if rt, ok := e.(*expr.Rt); ok { // the library encodes it, but does not decode it
			rt.Register = uint32(nl.Net(nl.Find(data, unix.NFTA_RT_DREG)))
			rt.Key = expr.RtKey(nl.Net(nl.Find(data, unix.NFTA_RT_KEY)))
		} else if e != nil {
			if bad := expr.Unmarshal(byte(f), data, e); bad != nil && err == nil {
				err = fmt.Errorf("expression %s: %w", name, bad)
			}
		}
		out = append(out, e)
	}
	return out, err
}

// newExpr returns an empty expression of the kinds that our rules have. A verdict is an immediate of another form.
func newExpr(name string, data []byte) expr.Any {
	switch name {
	case "payload":
		return &expr.Payload{}
	case "meta":
		return &expr.Meta{}
	case "lookup":
		return &expr.Lookup{}
	case "cmp":
		return &expr.Cmp{}
	case "bitwise":
		return &expr.Bitwise{}
	case "ct":
		return &expr.Ct{}
	case "fib":
		return &expr.Fib{}
	case "rt":
		return &expr.Rt{}
	case "numgen":
		return &expr.Numgen{}
	case "nat":
		return &expr.NAT{}
	case "masq":
		return &expr.Masq{}
	case "redir":
		return &expr.Redir{}
	case "dynset":
		return &expr.Dynset{}
	case "counter":
		return &expr.Counter{}
	case "reject":
		return &expr.Reject{}
	case "immediate":
		if nl.Find(nl.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT) != nil {
			return &expr.Verdict{}
		}
		return &expr.Immediate{}
	}
	return nil
}
