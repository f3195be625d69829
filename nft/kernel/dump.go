// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// dumpAttempts bounds the repetitions of one dump, and repeatPause is the first pause after a dump of a set that is being
// resized; it doubles each time. The kernel resizes a set of 100,000 elements within milliseconds once it has a processor;
// the pauses of all attempts add up to half a second.
const (
	dumpAttempts = 10
	repeatPause  = time.Millisecond
)

// errUnsteady is a dump that was inconsistent in all attempts.
var errUnsteady = errors.New("kept changing while it was read")

// errRepeated is a dump of a set that contains a key twice: the kernel is resizing its hash table, so other elements may be
// missing although no commit interrupts the dump (rhashtable_walk_next).
var errRepeated = errors.New("a key is listed twice")

// stable repeats a dump until it is consistent. A commit of anybody in the network namespace interrupts a dump (EINTR), and
// another program may commit all the time. Such commits concern other tables, so two equal dumps in a row are taken for
// consistent; a commit to our own table is reported by the Watch. Without success steady is false and out the last dump.
func stable[T any](dump func() (T, error)) (out T, steady bool, err error) {
	var last T
	compare, pause := false, repeatPause
	for range dumpAttempts {
		out, err = dump()
		switch {
		case err == nil:
			return out, true, nil
		case errors.Is(err, errRepeated):
			compare = false
			time.Sleep(pause)
			pause *= 2
			continue
		case !errors.Is(err, unix.EINTR):
			return out, false, err
		case compare && reflect.DeepEqual(last, out):
			return out, true, nil
		}
		last, compare = out, true
	}
	return out, false, nil
}

// tableEntry is a table in a dump.
type tableEntry struct {
	name  string
	flags uint32
}

func (c *Conn) dumpTables(f nft.Family) ([]tableEntry, error) {
	return dump(c, unix.NFT_MSG_GETTABLE, message(f), func(attrs []byte) (t tableEntry, ok bool) {
		for typ, v := range nl.Attrs(attrs) {
			switch typ {
			case unix.NFTA_TABLE_NAME:
				t.name = nl.Text(v)
			case unix.NFTA_TABLE_FLAGS:
				t.flags = uint32(nl.Net(v))
			}
		}
		return t, true
	})
}

// dump collects what decode makes of each message.
func dump[T any](c *Conn, typ uint16, request nl.Buffer, decode func(attrs []byte) (T, bool)) (out []T, err error) {
	err = c.request(typ, netlink.Dump, request, func(attrs []byte) {
		if v, ok := decode(attrs); ok {
			out = append(out, v)
		}
	})
	return out, err
}

// chainEntry is a chain in a dump.
type chainEntry struct {
	name     string
	hook     *nft.Hook
	dropping bool // what no rule decides on
}

// dumpChains lists the chains of a table.
func (c *Conn) dumpChains(f nft.Family, table string) ([]chainEntry, error) {
	w := message(f)
	w.Name(unix.NFTA_CHAIN_TABLE, table)
	return dump(c, unix.NFT_MSG_GETCHAIN, w, func(attrs []byte) (e chainEntry, ok bool) {
		typ := ""
		for attr, v := range nl.Attrs(attrs) {
			switch attr {
			case unix.NFTA_CHAIN_TABLE:
				ok = nl.Text(v) == table // the kernel lists those of other tables too
			case unix.NFTA_CHAIN_NAME:
				e.name = nl.Text(v)
			case unix.NFTA_CHAIN_TYPE:
				typ = nl.Text(v)
			case unix.NFTA_CHAIN_POLICY:
				e.dropping = nl.Net(v) != nfAccept
			case unix.NFTA_CHAIN_HOOK:
				e.hook = &nft.Hook{Num: uint32(nl.Net(nl.Find(v, unix.NFTA_HOOK_HOOKNUM))),
					Priority: int32(nl.Net(nl.Find(v, unix.NFTA_HOOK_PRIORITY)))}
			}
		}
		if e.hook != nil {
			e.hook.Type = typ
		}
		return e, ok
	})
}

// ruleEntry is a rule in a dump.
type ruleEntry struct {
	chain    string
	handle   uint64
	userdata []byte
	exprs    []byte // NFTA_RULE_EXPRESSIONS
}

func (r *ruleEntry) comment() string {
	text, _ := userdata.GetString(r.userdata, userdata.TypeComment)
	return text
}

// dumpRules lists the rules of a table, or of one chain if chain is not empty.
func (c *Conn) dumpRules(f nft.Family, table, chain string) ([]ruleEntry, error) {
	w := message(f)
	w.Name(unix.NFTA_RULE_TABLE, table)
	if chain != "" {
		w.Name(unix.NFTA_RULE_CHAIN, chain)
	}
	return dump(c, unix.NFT_MSG_GETRULE, w, func(attrs []byte) (r ruleEntry, ok bool) {
		for typ, v := range nl.Attrs(attrs) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				ok = nl.Text(v) == table
			case unix.NFTA_RULE_CHAIN:
				r.chain = nl.Text(v)
			case unix.NFTA_RULE_HANDLE:
				r.handle = nl.Net(v)
			case unix.NFTA_RULE_USERDATA:
				r.userdata = slices.Clone(v)
			case unix.NFTA_RULE_EXPRESSIONS:
				r.exprs = slices.Clone(v)
			}
		}
		return r, ok && (chain == "" || r.chain == chain)
	})
}

// setEntry is a set or map in a dump.
type setEntry struct {
	name string
	decl nft.SetContent
	// count is the number of elements, -1 where the kernel does not report it (before Linux 6.16).
	count int
}

func (c *Conn) dumpSets(f nft.Family, table string) ([]setEntry, error) {
	w := message(f)
	w.Name(unix.NFTA_SET_TABLE, table)
	return dump(c, unix.NFT_MSG_GETSET, w, func(attrs []byte) (s setEntry, ok bool) {
		s.count = -1
		for typ, v := range nl.Attrs(attrs) {
			switch typ {
			case unix.NFTA_SET_TABLE:
				ok = nl.Text(v) == table
			case unix.NFTA_SET_NAME:
				s.name = nl.Text(v)
			case unix.NFTA_SET_FLAGS:
				s.decl.Flags = uint32(nl.Net(v))
			case unix.NFTA_SET_KEY_TYPE:
				s.decl.KeyType = uint32(nl.Net(v))
			case unix.NFTA_SET_KEY_LEN:
				s.decl.KeyLen = uint32(nl.Net(v))
			case unix.NFTA_SET_DATA_TYPE:
				s.decl.DataType = uint32(nl.Net(v))
			case unix.NFTA_SET_DATA_LEN:
				s.decl.DataLen = uint32(nl.Net(v))
			case unix.NFTA_SET_TIMEOUT:
				s.decl.Timeout = time.Duration(nl.Net(v)) * time.Millisecond
			case unix.NFTA_SET_USERDATA:
				s.decl.Comment, _ = userdata.GetString(v, userdata.NFTNL_UDATA_SET_COMMENT)
			case unix.NFTA_SET_DESC:
				s.decl.Size = uint32(nl.Net(nl.Find(v, unix.NFTA_SET_DESC_SIZE)))
			case nftaSetExpr:
				s.decl.Counting = nl.Text(nl.Find(v, unix.NFTA_EXPR_NAME)) == "counter"
			case nftaSetCount:
				s.count = int(min(nl.Net(v), math.MaxInt))
			}
		}
		return s, ok
	})
}

// elementEntry is an element in a dump; its slices are valid during the call only.
type elementEntry struct {
	key, data, verdict []byte
	flags              uint32
	userdata           []byte
	expr               []byte // a counter
}

func (e *elementEntry) comment() string {
	text, _ := userdata.GetString(e.userdata, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
	return text
}

// dumpElements calls visit for each element of a set of the Services' table.
func (c *Conn) dumpElements(f nft.Family, set string, visit func(*elementEntry)) error {
	w := message(f)
	w.Name(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
	w.Name(unix.NFTA_SET_ELEM_LIST_SET, set)
	return c.request(unix.NFT_MSG_GETSETELEM, netlink.Dump, w, func(attrs []byte) {
		for _, elem := range nl.Attrs(nl.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			var e elementEntry
			e.decode(elem)
			visit(&e)
		}
	})
}

func (e *elementEntry) decode(attrs []byte) {
	for typ, v := range nl.Attrs(attrs) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = nl.Find(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.data = nl.Find(v, unix.NFTA_DATA_VALUE)
			e.verdict = nl.Find(v, unix.NFTA_DATA_VERDICT)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.flags = uint32(nl.Net(v))
		case unix.NFTA_SET_ELEM_EXPR:
			e.expr = v
		case unix.NFTA_SET_ELEM_USERDATA:
			e.userdata = v
		}
	}
}

// datum returns the datum in the form of nft.Element.Data.
func (e *elementEntry) datum() string {
	if e.verdict == nil {
		return string(e.data)
	}
	chain := nl.Text(nl.Find(e.verdict, unix.NFTA_VERDICT_CHAIN))
	switch code := int32(nl.Net(nl.Find(e.verdict, unix.NFTA_VERDICT_CODE))); code {
	case unix.NFT_JUMP:
		return "jump " + chain
	case unix.NFT_GOTO:
		return "goto " + chain
	default:
		return fmt.Sprintf("verdict %d", code)
	}
}

// Generation returns the id of the ruleset's generation in the network namespace, which each commit of anybody ends.
func (c *Conn) Generation() (gen uint32, err error) {
	err = c.request(unix.NFT_MSG_GETGEN, 0, message(unix.AF_UNSPEC), func(attrs []byte) {
		gen = uint32(nl.Net(nl.Find(attrs, unix.NFTA_GEN_ID)))
	})
	if err != nil {
		return 0, fmt.Errorf("get ruleset generation: %w", err)
	}
	return gen, nil
}

// counterOf returns the packets of an expression if it is a counter.
func counterOf(expr []byte) (packets uint64, ok bool) {
	v := nl.Find(nl.Find(expr, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
	if nl.Text(nl.Find(expr, unix.NFTA_EXPR_NAME)) != "counter" || len(v) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(v), true
}

// countersOf returns the packets of the counters of a rule, in order.
func countersOf(exprs []byte) (out []uint64) {
	for _, e := range nl.Attrs(exprs) {
		if n, ok := counterOf(e); ok {
			out = append(out, n)
		}
	}
	return out
}
