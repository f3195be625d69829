// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// tableDormant is NFT_TABLE_F_DORMANT.
const tableDormant = 1

// Read returns the content of a family's table. It ends while others commit to tables of their own without pause: each part
// of the table is repeated on its own until it is consistent (see stable), not the whole of it until the ruleset stands
// still. Parts may be of different moments if our table changes meanwhile, which a Watch that was opened before reports.
func (c *Conn) Read(f nft.Family) (*nft.Content, error) {
	s, steady, err := c.read(f, false)
	if err == nil && !steady {
		err = fmt.Errorf("read table %s %s, %d attempts: %w", f, nft.TableName, dumpAttempts, errUnsteady)
	}
	if err != nil {
		return nil, err
	}
	return s.Content, nil
}

// snapshotAttempts bounds how often Snapshot reads a table to see it twice the same.
const snapshotAttempts = 3

// Snapshot returns the content of a family's table and its rules for a person, who prefers a table in motion to none: where
// the table changes faster than it can be read, the result has Steady false and parts of different moments. No element is in
// it twice.
func (c *Conn) Snapshot(f nft.Family) (*nft.Snapshot, error) {
	var last *nft.Snapshot
	for range snapshotAttempts {
		before, err := c.Generation()
		if err != nil {
			return nil, err
		}
		s, steady, err := c.read(f, true)
		if err != nil {
			return nil, err
		}
		after, err := c.Generation()
		if err != nil {
			return nil, err
		}
		if s.Steady = steady && (before == after || reflect.DeepEqual(last, s)); s.Steady {
			return s, nil
		}
		last = s
	}
	return last, nil
}

// read reads a table, again if another program removes it or parts of it meanwhile.
func (c *Conn) read(f nft.Family, rules bool) (s *nft.Snapshot, steady bool, err error) {
	for range dumpAttempts {
		r := &reader{c: c, f: f, rules: rules, steady: true}
		s, err = r.table()
		if !errors.Is(err, unix.ENOENT) {
			steady = r.steady
			break
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("read table %s %s: %w", f, nft.TableName, err)
	}
	return s, steady, nil
}

// reader reads one table once.
type reader struct {
	c      *Conn
	f      nft.Family
	rules  bool // decode their expressions
	steady bool
}

// readPart is stable for one part of a table; it remembers whether the part is steady.
func readPart[T any](r *reader, name string, dump func() (T, error)) (T, error) {
	out, steady, err := stable(dump)
	r.steady = r.steady && steady
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out, err
}

func (r *reader) table() (*nft.Snapshot, error) {
	s := &nft.Snapshot{Content: nft.NewContent(r.f)}
	tables, err := readPart(r, "tables", func() ([]tableEntry, error) { return r.c.dumpTables(r.f) })
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(t tableEntry) bool { return t.name == nft.TableName })
	if i < 0 {
		return s, nil
	}
	s.Exists, s.Dormant = true, tables[i].flags&tableDormant != 0
	chains, err := readPart(r, "chains", func() ([]chainEntry, error) { return r.c.dumpChains(r.f, nft.TableName) })
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		s.Chains[ch.name] = nft.ChainContent{Hook: ch.hook, Dropping: ch.dropping}
	}
	if err := r.readRules(s); err != nil {
		return nil, err
	}
	sets, err := readPart(r, "sets", func() ([]setEntry, error) { return r.c.dumpSets(r.f, nft.TableName) })
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		s.Sets[set.name] = set.decl
	}
	return s, r.readElements(s.Content)
}

func (r *reader) readRules(s *nft.Snapshot) error {
	rules, err := readPart(r, "rules", func() ([]ruleEntry, error) { return r.c.dumpRules(r.f, nft.TableName, "") })
	if err != nil {
		return err
	}
	if r.rules {
		s.Rules = map[string][]nft.Rule{}
	}
	for i := range rules {
		rule := &rules[i]
		ch := s.Chains[rule.chain]
		if ch.Rules == nil {
			ch.Data = nft.RuleData(rule.userdata)
		}
		ch.Rules = append(ch.Rules, nft.RuleFingerprint(rule.userdata))
		s.Chains[rule.chain] = ch
		if !r.rules {
			continue
		}
		exprs, err := nft.DecodeExprs(r.f, rule.exprs)
		if err != nil {
			return fmt.Errorf("rule of chain %s: %w", rule.chain, err)
		}
		s.Rules[rule.chain] = append(s.Rules[rule.chain], nft.Rule{Comment: rule.comment(), Exprs: exprs})
	}
	return nil
}

// readElements reads the sets that are declared as this version declares them: the elements of others would not be
// understood.
func (r *reader) readElements(c *nft.Content) error {
	for _, id := range c.Readable() {
		list, err := readPart(r, "elements of "+id.String(), func() ([]nft.Element, error) { return r.c.elements(r.f, id) })
		if err != nil {
			return err
		}
		c.Add(id, list)
	}
	return nil
}

// elements reads one set, each element once; after a repeated key the error is errRepeated.
func (c *Conn) elements(f nft.Family, id nft.SetID) ([]nft.Element, error) {
	var out []nft.Element
	interval := id.IsInterval()
	err := c.dumpElements(f, id.String(), func(e *elementEntry) {
		el := nft.Element{Set: id, Key: string(e.key), Data: e.datum(), Comment: e.comment()}
		if interval && e.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
			el.Data = nft.IntervalEnd
		}
		out = append(out, el)
	})
	out, repeated := nft.Distinct(out)
	if err == nil && repeated {
		err = errRepeated
	}
	if interval {
		out = nft.JoinIntervals(out)
	}
	return out, err
}
