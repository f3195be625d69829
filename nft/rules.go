// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Snapshot is a table with its rules as the kernel holds them, which for a reader who did not write the table is more
// than the fingerprints of its content.
type Snapshot struct {
	*Content
	// Rules of each chain in order. An expression that this version does not know is nil.
	Rules map[string][]Rule
}

// Snapshot reads a family's table and its rules, all of one generation.
func (k *Kernel) Snapshot(f Family) (*Snapshot, error) {
	for range readAttempts {
		before, err := k.Generation()
		if err != nil {
			return nil, err
		}
		c, err := k.Read(f)
		if err != nil {
			return nil, err
		}
		rules, err := k.rules(f)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("read rules of table %s %s: %w", f, TableName, err)
		}
		after, errGen := k.Generation()
		if errGen != nil {
			return nil, errGen
		}
		if before == after && err == nil {
			return &Snapshot{c, rules}, nil
		}
	}
	return nil, fmt.Errorf("read table %s %s, %d attempts: %w", f, TableName, readAttempts, errUnsteady)
}

func (k *Kernel) rules(f Family) (map[string][]Rule, error) {
	out := map[string][]Rule{}
	var chain, table string
	var r Rule
	var bad error
	err := k.request(unix.NFT_MSG_GETRULE, netlink.Dump, tableRequest(f, unix.NFTA_RULE_TABLE),
		func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_RULE_TABLE:
				table = a.String()
			case unix.NFTA_RULE_CHAIN:
				chain = a.String()
			case unix.NFTA_RULE_USERDATA:
				r.Comment, _ = userdata.GetString(a.Bytes(), userdata.TypeComment)
			case unix.NFTA_RULE_EXPRESSIONS:
				var err error
				if r.Exprs, err = decodeExprs(f, a.Bytes()); err != nil && bad == nil {
					bad = err
				}
			}
		}, func() {
			if table == TableName {
				out[chain] = append(out[chain], r)
			}
			r = Rule{}
		})
	if err == nil {
		err = bad
	}
	return out, err
}

// decodeExprs decodes the expressions of a rule.
func decodeExprs(f Family, list []byte) ([]expr.Any, error) {
	var out []expr.Any
	var bad error
	eachAttr(list, func(_ uint16, elem []byte) {
		name := strings.TrimRight(string(attr(elem, unix.NFTA_EXPR_NAME)), "\x00")
		data := attr(elem, unix.NFTA_EXPR_DATA)
		e := newExpr(name, data)
		if e != nil {
			if err := expr.Unmarshal(byte(f), data, e); err != nil && bad == nil {
				bad = fmt.Errorf("expression %s: %w", name, err)
			}
		}
		out = append(out, e)
	})
	return out, bad
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
		if attr(attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT) != nil {
			return &expr.Verdict{}
		}
		return &expr.Immediate{}
	}
	return nil
}
