// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TracedRule is what a reader of traces has to know of a rule of any table.
type TracedRule struct {
	Handle  uint64
	Comment string
	// Rejects says that it answers what it drops, Masquerades that it chooses the source.
	Rejects, Masquerades bool
}

// TracedChains returns the base chains of a table of any family, by name, with their hooks: none if there is no such
// table.
func (k *Kernel) TracedChains(t TraceTable) (map[string]Hook, error) {
	w := nfgenmsg(Family(t.Family))
	w.name(unix.NFTA_CHAIN_TABLE, t.Name)
	out := map[string]Hook{}
	var name, table, typ string
	var hook *Hook
	err := k.request(unix.NFT_MSG_GETCHAIN, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		switch a.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = a.String()
		case unix.NFTA_CHAIN_NAME:
			name = a.String()
		case unix.NFTA_CHAIN_TYPE:
			typ = a.String()
		case unix.NFTA_CHAIN_HOOK:
			hook = &Hook{}
			a.Nested(hook.decode)
		}
	}, func() {
		if table == t.Name && hook != nil {
			hook.Type = typ
			out[name] = *hook
		}
		hook, typ = nil, ""
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	return out, nil
}

// TracedRules returns the rules of a chain of any table in order, none if there is no such chain.
func (k *Kernel) TracedRules(t TraceTable, chain string) ([]TracedRule, error) {
	w := nfgenmsg(Family(t.Family))
	w.name(unix.NFTA_RULE_TABLE, t.Name)
	w.name(unix.NFTA_RULE_CHAIN, chain)
	var out []TracedRule
	var r TracedRule
	var inTable, inChain string
	err := k.request(unix.NFT_MSG_GETRULE, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		switch a.Type() {
		case unix.NFTA_RULE_TABLE:
			inTable = a.String()
		case unix.NFTA_RULE_CHAIN:
			inChain = a.String()
		case unix.NFTA_RULE_HANDLE:
			r.Handle = be64(a.Bytes())
		case unix.NFTA_RULE_USERDATA:
			r.Comment, _ = userdata.GetString(a.Bytes(), userdata.TypeComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.decode(a.Bytes())
		}
	}, func() {
		if inTable == t.Name && inChain == chain {
			out = append(out, r)
		}
		r = TracedRule{}
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("list rules of table %s, chain %s: %w", t, chain, err)
	}
	return out, nil
}

// decode looks for nft's own expressions, and for targets of iptables (NFTA_TARGET_NAME is 1).
func (r *TracedRule) decode(list []byte) {
	eachAttr(list, func(_ uint16, elem []byte) {
		name := text(attr(elem, unix.NFTA_EXPR_NAME))
		if name == "target" {
			name = text(attr(attr(elem, unix.NFTA_EXPR_DATA), 1))
		}
		switch name {
		case "reject", "REJECT":
			r.Rejects = true
		case "masq", "MASQUERADE", "SNAT":
			r.Masquerades = true
		}
	})
}

func be64(v []byte) uint64 {
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}
