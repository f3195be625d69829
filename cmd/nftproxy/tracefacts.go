// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/trace"
)

// traceFacts reads what a trace has to know of the ruleset, when it is asked for, and once for each generation of it.
type traceFacts struct {
	kernel     *kernel.Conn
	node       *facts
	generation uint32
	hooks      map[nft.TraceTable]map[string]nft.Hook
	rules      map[chainOf][]nft.TracedRule
	tables     map[nft.Family]*nft.Snapshot
	words      map[nft.Family]*explain.Words
}

// chainOf names a chain of any table.
type chainOf struct {
	table nft.TraceTable
	chain string
}

func newTraceFacts(conn *kernel.Conn) (*traceFacts, error) {
	node, err := readFacts()
	if err != nil {
		return nil, err
	}
	t := &traceFacts{kernel: conn, node: node}
	t.forget()
	return t, nil
}

func (t *traceFacts) forget() {
	t.hooks, t.rules = map[nft.TraceTable]map[string]nft.Hook{}, map[chainOf][]nft.TracedRule{}
	t.tables, t.words = map[nft.Family]*nft.Snapshot{}, map[nft.Family]*explain.Words{}
}

// refresh forgets what was read if anybody changed the ruleset since.
func (t *traceFacts) refresh() {
	if now, err := t.kernel.Generation(); err != nil || now != t.generation {
		t.forget()
		t.generation = now
	}
}

// table reads our table of a family; nil if that fails.
func (t *traceFacts) table(f nft.Family) *nft.Snapshot {
	s, ok := t.tables[f]
	if !ok {
		s, _ = t.kernel.Snapshot(f) // without it there are no words
		t.tables[f] = s
	}
	return s
}

// wordsOf are the words of our table of a family; nil if it cannot be read.
func (t *traceFacts) wordsOf(f nft.Family) *explain.Words {
	w, ok := t.words[f]
	if !ok {
		if s := t.table(f); s != nil {
			w = explain.NewWords(s)
		}
		t.words[f] = w
	}
	return w
}

func (t *traceFacts) hook(table nft.TraceTable, chain string) (nft.Hook, bool) {
	hooks, ok := t.hooks[table]
	if !ok {
		hooks, _ = t.kernel.TracedChains(table)
		t.hooks[table] = hooks
	}
	h, ok := hooks[chain]
	return h, ok
}

func (t *traceFacts) rule(table nft.TraceTable, chain string, handle uint64) (nft.TracedRule, int) {
	at := chainOf{table, chain}
	rules, ok := t.rules[at]
	if !ok {
		rules, _ = t.kernel.TracedRules(table, chain)
		t.rules[at] = rules
	}
	for i, r := range rules {
		if r.Handle == handle {
			return r, i + 1
		}
	}
	return nft.TracedRule{}, 0
}

// iface is the name of an interface; of one that is gone, the number.
func (t *traceFacts) iface(index uint32) string {
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return i.Name
	}
	return fmt.Sprintf("interface %d", index)
}

// facts are what package trace asks.
func (t *traceFacts) facts() trace.Facts {
	return trace.Facts{
		Hook: t.hook, Rule: t.rule, Interface: t.iface, Words: t.wordsOf,
		Node: func(f nft.Family) explain.Node {
			return explain.Node{Local: t.node.isLocal, Route: t.node.route, Client: clientOf(t.kernel, f)}
		},
	}
}
