// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Content is what a table in the kernel holds.
type Content struct {
	Family Family
	Exists bool
	// Dormant says that somebody switched the table off: its chains are attached to no hook.
	Dormant bool
	// Chains by name, with the fingerprints of their rules in order; 0 stands for a rule that is not ours.
	Chains map[string]ChainContent
	// Sets by name.
	Sets map[string]SetContent
	// Elements of the sets in SetID order. Interval sets have theirs as ranges.
	Elements []Element
	// Policies, Programs and Draws are the keys of the verdict maps of these names.
	Policies map[Program]bool
	Programs map[Program]bool
	Draws    map[Program]bool
}

// Leads tells whether the verdict map of the program's kind leads to its chain.
func (c *Content) Leads(p Program) bool {
	switch {
	case p.Kind().IsPolicy():
		return c.Policies[p]
	case p.Kind().IsDraw():
		return c.Draws[p]
	}
	return c.Programs[p]
}

// dispatcher is the verdict map of the program's kind.
func dispatcher(p Program) string {
	switch {
	case p.Kind().IsPolicy():
		return policiesMap
	case p.Kind().IsDraw():
		return drawsMap
	}
	return programsMap
}

// ChainContent is a chain as the kernel has it.
type ChainContent struct {
	Hook *Hook
	// Dropping says that packets which no rule decides on are dropped. Ours accept.
	Dropping bool
	Rules    []uint64
}

// SetContent is the declaration of a set as the kernel has it.
type SetContent struct {
	Flags, KeyType, KeyLen, DataType, DataLen, Size uint32
	Comment                                         string
}

// errUnsteady says that others kept changing the ruleset while it was read.
var errUnsteady = errors.New("ruleset kept changing while it was read")

// readAttempts bounds how often a read starts anew because a commit, anyone's, came between its parts. A read
// of 10,000 Services takes some 50 ms; somebody who commits more often than that for ten reads in a row is
// not going to pause.
const readAttempts = 10

// Read returns the content of a family's table. It reads in parts; when the generation of the ruleset changes
// meanwhile, it starts over, until it read the same twice: others may commit to tables of their own all the time, and
// generations are of all tables together.
func (k *Kernel) Read(f Family) (*Content, error) {
	var last *Content
	for range readAttempts {
		before, err := k.Generation()
		if err != nil {
			return nil, err
		}
		c, err := k.read(f)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		after, errGen := k.Generation()
		if errGen != nil {
			return nil, errGen
		}
		switch {
		case before == after:
			return c, err
		case err != nil:
			last = nil
		case last.equal(c):
			return c, nil
		default:
			last = c
		}
	}
	return nil, fmt.Errorf("read table %s %s, %d attempts: %w", f, TableName, readAttempts, errUnsteady)
}

// equal tells whether two contents say the same, in the same order; nil equals nothing.
func (c *Content) equal(o *Content) bool {
	sameChain := func(a, b ChainContent) bool {
		return sameHook(a.Hook, b.Hook) && a.Dropping == b.Dropping && slices.Equal(a.Rules, b.Rules)
	}
	return c != nil && c.Exists == o.Exists && c.Dormant == o.Dormant && slices.Equal(c.Elements, o.Elements) &&
		maps.EqualFunc(c.Chains, o.Chains, sameChain) && maps.Equal(c.Sets, o.Sets) &&
		maps.Equal(c.Policies, o.Policies) && maps.Equal(c.Programs, o.Programs) && maps.Equal(c.Draws, o.Draws)
}

// Generation returns the id of the ruleset's generation in this network namespace; each commit, anyone's, ends one.
func (k *Kernel) Generation() (uint32, error) {
	var gen uint32
	err := k.request(unix.NFT_MSG_GETGEN, 0, nfgenmsg(unix.AF_UNSPEC), func(a *netlink.AttributeDecoder) {
		if a.Type() == unix.NFTA_GEN_ID {
			gen = a.Uint32()
		}
	}, nil)
	if err != nil {
		return 0, fmt.Errorf("get ruleset generation: %w", err)
	}
	return gen, nil
}

func (k *Kernel) read(f Family) (*Content, error) {
	c := &Content{Family: f, Chains: map[string]ChainContent{}, Sets: map[string]SetContent{},
		Policies: map[Program]bool{}, Programs: map[Program]bool{}, Draws: map[Program]bool{}}
	err := k.request(unix.NFT_MSG_GETTABLE, 0, tableRequest(f, unix.NFTA_TABLE_NAME), func(a *netlink.AttributeDecoder) {
		if a.Type() == unix.NFTA_TABLE_FLAGS {
			c.Dormant = a.Uint32()&tableDormant != 0
		}
	}, func() { c.Exists = true })
	if errors.Is(err, unix.ENOENT) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get table %s %s: %w", f, TableName, err)
	}
	for _, part := range []func(*Content) error{k.readChains, k.readRules, k.readSets, k.readElements} {
		err := part(c)
		for tries := 1; tries < readAttempts && errors.Is(err, unix.EINTR); tries++ { // on its own, a part takes less long
			err = part(c)
		}
		if err != nil {
			return nil, fmt.Errorf("read table %s %s: %w", f, TableName, err)
		}
	}
	return c, nil
}

func (k *Kernel) readChains(c *Content) error {
	var name, table, typ string
	var hook *Hook
	var dropping bool
	clear(c.Chains) // here and below: of a try that was interrupted
	return k.request(unix.NFT_MSG_GETCHAIN, netlink.Dump, tableRequest(c.Family, unix.NFTA_CHAIN_TABLE),
		func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = a.String()
			case unix.NFTA_CHAIN_NAME:
				name = a.String()
			case unix.NFTA_CHAIN_TYPE:
				typ = a.String()
			case unix.NFTA_CHAIN_POLICY:
				dropping = a.Uint32() != accept
			case unix.NFTA_CHAIN_HOOK:
				hook = &Hook{}
				a.Nested(hook.decode)
			}
		}, func() {
			if hook != nil {
				hook.Type = typ
			}
			if table == TableName {
				c.Chains[name] = ChainContent{Hook: hook, Dropping: dropping}
			}
			hook, typ, dropping = nil, "", false
		})
}

func (h *Hook) decode(a *netlink.AttributeDecoder) error {
	a.ByteOrder = binary.BigEndian
	for a.Next() {
		switch a.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			h.Num = a.Uint32()
		case unix.NFTA_HOOK_PRIORITY:
			h.Priority = int32(a.Uint32())
		}
	}
	return a.Err()
}

func (k *Kernel) readRules(c *Content) error {
	var chain, table string
	var print uint64
	for name, cc := range c.Chains {
		cc.Rules = nil
		c.Chains[name] = cc
	}
	return k.request(unix.NFT_MSG_GETRULE, netlink.Dump, tableRequest(c.Family, unix.NFTA_RULE_TABLE),
		func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_RULE_TABLE:
				table = a.String()
			case unix.NFTA_RULE_CHAIN:
				chain = a.String()
			case unix.NFTA_RULE_USERDATA:
				print = rulePrint(a.Bytes())
			}
		}, func() {
			if table == TableName {
				cc := c.Chains[chain]
				cc.Rules = append(cc.Rules, print)
				c.Chains[chain] = cc
			}
			print = 0
		})
}

// rulePrint returns the fingerprint in a rule's user data, 0 if there is none.
func rulePrint(data []byte) uint64 {
	if v := userdata.Get(data, ruleFingerprint); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (k *Kernel) readSets(c *Content) error {
	var name, table string
	var s SetContent
	clear(c.Sets)
	return k.request(unix.NFT_MSG_GETSET, netlink.Dump, tableRequest(c.Family, unix.NFTA_SET_TABLE),
		func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_SET_TABLE:
				table = a.String()
			case unix.NFTA_SET_NAME:
				name = a.String()
			default:
				s.decode(a)
			}
		}, func() {
			if table == TableName {
				c.Sets[name] = s
			}
			s = SetContent{}
		})
}

func (s *SetContent) decode(a *netlink.AttributeDecoder) {
	switch a.Type() {
	case unix.NFTA_SET_FLAGS:
		s.Flags = a.Uint32()
	case unix.NFTA_SET_KEY_TYPE:
		s.KeyType = a.Uint32()
	case unix.NFTA_SET_KEY_LEN:
		s.KeyLen = a.Uint32()
	case unix.NFTA_SET_DATA_TYPE:
		s.DataType = a.Uint32()
	case unix.NFTA_SET_DATA_LEN:
		s.DataLen = a.Uint32()
	case unix.NFTA_SET_USERDATA:
		s.Comment, _ = userdata.GetString(a.Bytes(), userdata.NFTNL_UDATA_SET_COMMENT)
	case unix.NFTA_SET_DESC:
		a.Nested(func(a *netlink.AttributeDecoder) error {
			a.ByteOrder = binary.BigEndian
			for a.Next() {
				if a.Type() == unix.NFTA_SET_DESC_SIZE {
					s.Size = a.Uint32()
				}
			}
			return a.Err()
		})
	}
}

// readElements reads the named sets and the verdict maps. Of a set that is declared otherwise than this version
// declares it nothing is read: its elements would not be understood.
func (k *Kernel) readElements(c *Content) error {
	c.Elements = nil
	clear(c.Policies)
	clear(c.Programs)
	clear(c.Draws)
	specs := setSpecs()
	for id := range specs {
		s, ok := c.Sets[specs[id].name]
		if !ok || !s.matches(c.Family, &specs[id]) {
			continue
		}
		if err := k.readSet(c, SetID(id)); err != nil {
			return fmt.Errorf("elements of %s: %w", specs[id].name, err)
		}
	}
	for name, programs := range map[string]map[Program]bool{policiesMap: c.Policies, programsMap: c.Programs, drawsMap: c.Draws} {
		if _, ok := c.Sets[name]; !ok {
			continue
		}
		if err := k.elements(c.Family, name, func(e *rawElement) {
			if len(e.key) == 4 && e.chain == Program(binary.NativeEndian.Uint32(e.key)).Chain() {
				programs[Program(binary.NativeEndian.Uint32(e.key))] = true
			}
		}); err != nil {
			return fmt.Errorf("elements of %s: %w", name, err)
		}
	}
	return nil
}

func (k *Kernel) readSet(c *Content, id SetID) error {
	first := len(c.Elements)
	plainInterval := setSpecs()[id].interval && !id.concatenated()
	err := k.elements(c.Family, id.String(), func(e *rawElement) {
		el := Element{Set: id, Key: string(e.key), End: string(e.keyEnd), Data: string(e.data), Comment: e.comment}
		if plainInterval && e.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
			el.Data = intervalEnd
		}
		c.Elements = append(c.Elements, el)
	})
	if plainInterval {
		c.Elements = append(c.Elements[:first], joinIntervals(c.Elements[first:])...)
	}
	return err
}

// rawElement is one element as it comes from the kernel; its slices are valid during the callback only.
type rawElement struct {
	key, keyEnd, data []byte
	flags             uint32
	comment           string
	chain             string // of a goto verdict
	expr              []byte // a counter
	timed             bool
}

// Sets returns the declarations of the sets and maps of a family's table, none if there is no table.
func (k *Kernel) Sets(f Family) (map[string]SetContent, error) {
	c := &Content{Family: f, Sets: map[string]SetContent{}}
	if err := k.readSets(c); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list sets of %s %s: %w", f, TableName, err)
	}
	return c.Sets, nil
}

// Elements calls fn for each key and datum of a set or map of ours by its nft name, as for clients of a sticky map.
func (k *Kernel) Elements(f Family, set string, fn func(key, data []byte)) error {
	return k.elements(f, set, func(e *rawElement) { fn(e.key, e.data) })
}

func (k *Kernel) elements(f Family, set string, fn func(*rawElement)) error {
	w := nfgenmsg(f)
	w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	w.name(unix.NFTA_SET_ELEM_LIST_SET, set)
	return k.request(unix.NFT_MSG_GETSETELEM, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		if a.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			eachAttr(a.Bytes(), func(_ uint16, elem []byte) {
				var e rawElement
				e.decode(elem)
				fn(&e)
			})
		}
	}, nil)
}

func (e *rawElement) decode(b []byte) {
	eachAttr(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = attr(v, unix.NFTA_DATA_VALUE)
		case nftaSetElemKeyEnd:
			e.keyEnd = attr(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.data = attr(v, unix.NFTA_DATA_VALUE)
			e.chain = strings.TrimRight(string(attr(attr(v, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN)), "\x00")
		case unix.NFTA_SET_ELEM_FLAGS:
			e.flags = binary.BigEndian.Uint32(v)
		case unix.NFTA_SET_ELEM_EXPR:
			e.expr = v
		case unix.NFTA_SET_ELEM_USERDATA:
			e.comment, _ = userdata.GetString(v, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
	})
}

// eachAttr walks attributes without copying, which netlink.AttributeDecoder does.
func eachAttr(b []byte, fn func(typ uint16, v []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		fn(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)/4*4, len(b)):]
	}
}

// attr returns the value of the first attribute of a type, nil if there is none.
func attr(b []byte, want uint16) (found []byte) {
	eachAttr(b, func(typ uint16, v []byte) {
		if typ == want && found == nil {
			found = v
		}
	})
	return found
}
