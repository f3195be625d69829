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

// Reason is why a packet was not let through.
type Reason struct {
	Refused bool   // answered, so that the client fails at once; otherwise dropped in silence
	Name    string // as a metric has it
}

// Judged is how many packets one rule refused or dropped.
type Judged struct {
	Reason
	// Rule is the chain and the comment of the rule, Handle the kernel's number of it in its table: a rule that was written
	// anew counts from 0, and most often has another handle.
	Rule    string
	Handle  uint64
	Packets uint64
}

// judges are the rules that refuse or drop, by chain and comment. A test holds that they are all.
func judges() map[string]map[string]Reason {
	refused := Reason{true, "no-endpoints"}
	dropped := Reason{false, "no-local-endpoints"}
	served := map[string]Reason{noEndpoint: refused, noLocalEndpoint: dropped}
	return map[string]map[string]Reason{
		"unserved":           served,
		"unserved-nodeports": served,
		"unused":             {unusedPort: {true, "unused-port"}, noService: {false, "no-service"}},
		"source-ranges":      {"": {false, "source-ranges"}},
	}
}

// Reasons lists all reasons, each once.
func Reasons() []Reason {
	return []Reason{{true, "no-endpoints"}, {true, "unused-port"}, {false, "no-local-endpoints"}, {false, "no-service"}, {false, "source-ranges"}}
}

// Judged reads the counters of the rules that refuse and drop, none if there is no table. It costs four requests and a
// dozen rules, whatever the number of Services. (A rule's counter adds up those of all processors in the kernel.)
func (k *Kernel) Judged(f Family) ([]Judged, error) {
	var out []Judged
	for chain, reasons := range judges() {
		rules, err := k.countedRules(f, chain)
		for tries := 1; tries < readAttempts && errors.Is(err, unix.EINTR); tries++ {
			rules, err = k.countedRules(f, chain)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read counters of %s %s %s: %w", f, TableName, chain, err)
		}
		for i := range rules {
			reason, ok := reasons[rules[i].Rule]
			if !ok {
				continue // somebody else's
			}
			rules[i].Reason, rules[i].Rule = reason, chain+": "+rules[i].Rule
			out = append(out, rules[i])
		}
	}
	return out, nil
}

// countedRules returns the rules of a chain that count, with their comments in place of their names.
func (k *Kernel) countedRules(f Family, chain string) (out []Judged, err error) {
	w := tableRequest(f, unix.NFTA_RULE_TABLE)
	w.name(unix.NFTA_RULE_CHAIN, chain)
	var r Judged
	ours, counts := true, false
	err = k.request(unix.NFT_MSG_GETRULE, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		switch a.Type() {
		case unix.NFTA_RULE_CHAIN:
			ours = a.String() == chain
		case unix.NFTA_RULE_HANDLE:
			r.Handle = a.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.Rule, _ = userdata.GetString(a.Bytes(), userdata.TypeComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.Packets, counts = packets(a.Bytes())
		}
	}, func() {
		if ours && counts {
			out = append(out, r)
		}
		r, counts = Judged{}, false
	})
	return out, err
}

// packets finds the counter in a list of expressions.
func packets(list []byte) (n uint64, ok bool) {
	eachAttr(list, func(_ uint16, elem []byte) {
		if v, is := counted(elem); is {
			n, ok = v, true
		}
	})
	return n, ok
}

// counted returns what an expression has counted, if it is a counter.
func counted(expr []byte) (packets uint64, ok bool) {
	v := attr(attr(expr, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
	if string(attr(expr, unix.NFTA_EXPR_NAME)) != "counter\x00" || len(v) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(v), true
}
