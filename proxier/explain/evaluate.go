// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// verdict is how the evaluation of an expression, rule or chain ended.
type verdict uint8

const (
	next     verdict = iota // the rule is done, or the chain reached its end
	mismatch                // the rule does not match the packet
	accept
	drop
	reject
	jump
	goTo
	leave   // return
	unknown // an expression that is not modelled
)

// branch is one path of a packet. Where rules draw a random number, there are several.
type branch struct {
	weight  float64 // probability
	state   state
	verdict verdict
	target  string // of jump and goTo
	reset   bool   // of reject: by a TCP reset
	trail   *step  // the last step; earlier ones by its prev
}

// step is a rule that matched, or that is notable though it did not.
type step struct {
	prev    *step
	hook    string
	chain   string
	rule    int // from 0
	comment string
	hits    []hit
	action  action
}

// hit is a lookup of a rule.
type hit struct {
	set   string
	found bool
	key   string
	data  string
}

// action is what a rule did in the end.
type action struct {
	verdict    verdict
	target     string
	reset      bool
	dnat       bool
	masquerade bool
	drew       uint32 // the number of slots that one was drawn of
	sticky     uint32 // operation of a dynset plus 1
}

// steps returns what happened on a branch, in order.
func (b *branch) steps() (out []*step) {
	for s := b.trail; s != nil; s = s.prev {
		out = append(out, s)
	}
	slices.Reverse(out)
	return out
}

// evaluator evaluates the rules of one table as the kernel does.
type evaluator struct {
	*inspect.Ruleset
	node     Node
	base     map[uint32][]string // base chains by hook in the order of their priorities
	exact    map[nft.SetID]map[string]*nft.Element
	ranges   map[nft.SetID][]*nft.Element // of interval sets
	warnings map[string]bool
	hook     string // the one that is evaluated
}

func newEvaluator(r *inspect.Ruleset) *evaluator {
	v := &evaluator{
		Ruleset: r, base: map[uint32][]string{}, exact: map[nft.SetID]map[string]*nft.Element{}, ranges: map[nft.SetID][]*nft.Element{},
	}
	for i := range r.Elements {
		e := &r.Elements[i]
		if e.Set.IsInterval() {
			v.ranges[e.Set] = append(v.ranges[e.Set], e)
			continue
		}
		if v.exact[e.Set] == nil {
			v.exact[e.Set] = map[string]*nft.Element{}
		}
		v.exact[e.Set][e.Key] = e
	}
	for name, c := range r.Chains {
		if c.Hook != nil {
			v.base[c.Hook.Num] = append(v.base[c.Hook.Num], name)
		}
	}
	for _, chains := range v.base {
		slices.SortFunc(chains, func(a, b string) int {
			return cmp.Or(cmp.Compare(r.Chains[a].Hook.Priority, r.Chains[b].Hook.Priority), cmp.Compare(a, b))
		})
	}
	return v
}

func (v *evaluator) warn(format string, args ...any) { v.warnings[fmt.Sprintf(format, args...)] = true }

// find returns the element that a key matches. An interval ends before its End, or never.
func (v *evaluator) find(set nft.SetID, key string) *nft.Element {
	if !set.IsInterval() {
		return v.exact[set][key]
	}
	for _, e := range v.ranges[set] {
		if e.Key <= key && (key < e.End || e.End == "") {
			return e
		}
	}
	return nil
}

// HookName is nft's name of NF_INET_*; families other than IP have the same names for the hooks that they share.
func HookName(num uint32) string {
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	return names[min(int(num), len(names)-1)]
}

// paths returns the branches of a packet up to its end on this node: accepted, dropped or rejected.
func (v *evaluator) paths(p Packet, node Node) []branch {
	v.node, v.warnings = node, map[string]bool{}
	s := state{family: v.Family, proto: p.Proto, from: p.From, to: p.To, iif: p.IIF}
	start := []branch{{weight: 1, state: s, verdict: accept}}
	if p.IIF == "" {
		return each(v.pass(start, unix.NF_INET_LOCAL_OUT), v.afterOutput)
	}
	return each(v.pass(start, unix.NF_INET_PRE_ROUTING), v.afterPrerouting)
}

// each continues the branches that have not ended.
func each(list []branch, then func(branch) []branch) (out []branch) {
	for _, b := range list {
		if b.verdict == accept {
			out = append(out, then(b)...)
		} else {
			out = append(out, b)
		}
	}
	return out
}

// afterOutput is the path of what a process of the node sends. What it sends to the node itself leaves through the
// loopback device and comes in again; nat chains do not see it a second time, for its connection is known then.
func (v *evaluator) afterOutput(b branch) []branch {
	out := v.pass([]branch{b}, unix.NF_INET_POST_ROUTING)
	if !v.node.isLocal(b.state.to.Addr()) {
		return out
	}
	return each(out, func(b branch) []branch {
		b.state.iif = "lo"
		again := v.passTypes([]branch{b}, unix.NF_INET_PRE_ROUTING, "filter")
		return each(again, func(b branch) []branch { return v.pass([]branch{b}, unix.NF_INET_LOCAL_IN) })
	})
}

// afterPrerouting is the path of what comes in by a device: to the node itself, or on.
func (v *evaluator) afterPrerouting(b branch) []branch {
	if v.node.isLocal(b.state.to.Addr()) {
		return v.pass([]branch{b}, unix.NF_INET_LOCAL_IN)
	}
	return each(v.pass([]branch{b}, unix.NF_INET_FORWARD), func(b branch) []branch { return v.pass([]branch{b}, unix.NF_INET_POST_ROUTING) })
}

func (v *evaluator) pass(list []branch, hook uint32) []branch {
	return v.passTypes(list, hook, "filter", "nat", "route")
}

// passTypes takes branches through the base chains of a hook that are of some types. The policy of ours is accept.
func (v *evaluator) passTypes(list []branch, hook uint32, types ...string) []branch {
	v.hook = HookName(hook)
	for _, name := range v.base[hook] {
		if !slices.Contains(types, v.Chains[name].Hook.Type) {
			continue
		}
		list = each(list, func(b branch) []branch {
			out := v.chain(name, b)
			for i := range out {
				if out[i].verdict == next {
					out[i].verdict = accept
				}
			}
			return out
		})
	}
	return list
}

// chain evaluates a chain and those that it leads to. The verdict of each branch that it returns is next, when the packet
// leaves the chain at its end, accept, drop or reject.
func (v *evaluator) chain(name string, in branch) []branch {
	if _, ok := v.Chains[name]; !ok && v.Rules[name] == nil {
		v.warn("chain %s does not exist", inspect.Printable(name))
	}
	in.verdict = next
	live, done := []branch{in}, []branch(nil)
	for i := range v.Rules[name] {
		var still []branch
		for _, b := range live {
			for _, w := range v.rule(name, i, b) {
				switch w.verdict {
				case next, mismatch:
					w.verdict = next
					still = append(still, w)
				case jump:
					for _, r := range v.chain(w.target, w) {
						if r.verdict == next {
							still = append(still, r)
						} else {
							done = append(done, r)
						}
					}
				case goTo:
					done = append(done, v.chain(w.target, w)...)
				case leave:
					w.verdict = next
					done = append(done, w)
				default:
					done = append(done, w)
				}
			}
		}
		live = still
	}
	return append(done, live...)
}

// rule evaluates one rule. All branches that do not match are one: what they drew, the next rule draws again.
func (v *evaluator) rule(chain string, i int, in branch) []branch {
	r := &v.Rules[chain][i]
	run := &run{evaluator: v, exprs: r.Exprs, name: fmt.Sprintf("rule %d of chain %s", i+1, inspect.Printable(chain))}
	run.from(0, in.state, in.weight, step{hook: v.hook, chain: chain, rule: i, comment: r.Comment})
	var out []branch
	missed := -1
	for _, w := range run.branches {
		w.trail.prev = in.trail
		if w.verdict == mismatch {
			// That the frontend has source ranges is notable, though the rule for those without did not match.
			if h := w.trail.hits; len(h) != 1 || h[0].set != nft.Restricted.String() || !h[0].found {
				w.trail = in.trail
			}
			if missed >= 0 {
				out[missed].weight += w.weight
				continue
			}
			missed = len(out)
		}
		out = append(out, w)
	}
	return out
}

// run is the evaluation of one rule.
type run struct {
	*evaluator
	exprs    []expr.Any
	name     string
	branches []branch
}

// from evaluates the expressions from the i-th on.
func (r *run) from(i int, s state, weight float64, did step) {
	did.hits = slices.Clip(did.hits) // branches must not share what is appended
	for ; i < len(r.exprs); i++ {
		if g, ok := r.exprs[i].(*expr.Numgen); ok && g.Modulus > 0 {
			did.action.drew = g.Modulus
			for n := range g.Modulus {
				s.put(g.Register, native(g.Offset+n))
				r.from(i+1, s, weight/float64(g.Modulus), did)
			}
			return
		}
		if r.one(r.exprs[i], &s, &did); did.action.verdict != next {
			break
		}
	}
	a := did.action
	r.branches = append(r.branches, branch{weight: weight, state: s, verdict: a.verdict, target: a.target, reset: a.reset, trail: &did})
}

// one evaluates one expression. A verdict that is not next ends the rule.
func (r *run) one(e expr.Any, s *state, did *step) {
	a := &did.action
	switch e := e.(type) {
	case *expr.Payload:
		a.verdict = s.payload(e)
	case *expr.Meta:
		a.verdict = s.meta(e, r.node)
	case *expr.Ct:
		a.verdict = s.ct(e)
	case *expr.Fib:
		a.verdict = s.fib(e, r.node)
	case *expr.Rt:
		a.verdict = mismatch
		if r.node.NextHop != nil {
			a.verdict = next
			s.put(e.Register, r.node.NextHop(s.to.Addr(), s.mark).AsSlice())
		}
	case *expr.Immediate:
		s.put(e.Register, e.Data)
	case *expr.Bitwise:
		v := bytes.Clone(s.get(e.SourceRegister, int(e.Len)))
		for i := range min(len(v), len(e.Mask), len(e.Xor)) {
			v[i] = v[i]&e.Mask[i] ^ e.Xor[i]
		}
		s.put(e.DestRegister, v)
	case *expr.Cmp:
		a.verdict = s.compare(e)
	case *expr.Lookup:
		r.lookup(e, s, did)
	case *expr.Dynset:
		r.dynset(e, s)
		a.sticky = e.Operation + 1
	case *expr.NAT:
		a.verdict, a.dnat = s.nat(e), true
	case *expr.Masq:
		s.masquerade = true
		a.verdict, a.masquerade = accept, true
	case *expr.Reject:
		a.verdict, a.reset = reject, e.Type == unix.NFT_REJECT_TCP_RST
	case *expr.Verdict:
		a.target = e.Chain
		a.verdict = map[expr.VerdictKind]verdict{
			expr.VerdictJump: jump, expr.VerdictGoto: goTo, expr.VerdictReturn: leave, expr.VerdictDrop: drop, expr.VerdictAccept: accept,
			expr.VerdictBreak: mismatch,
		}[e.Kind]
	case *expr.Counter:
	default:
		a.verdict = unknown
	}
	if a.verdict == unknown {
		r.warn("%s has an expression that this version does not know; it is taken not to match", r.name)
		a.verdict = mismatch
	}
}

// lookup evaluates a lookup in any set or map of the table.
func (r *run) lookup(e *expr.Lookup, s *state, did *step) {
	decl, ok := r.Sets[e.SetName]
	if !ok {
		r.warn("%s looks up set %s, which does not exist", r.name, inspect.Printable(e.SetName))
		did.action.verdict = mismatch
		return
	}
	h := hit{set: e.SetName, key: string(s.get(e.SourceRegister, int(decl.KeyLen)))}
	if decl.DataType == unix.NFT_DATA_VERDICT {
		set, _ := nft.ParseSet(e.SetName)
		text, found := r.Verdicts[nft.VerdictKey{Map: set, Program: nft.Program(binary.NativeEndian.Uint32([]byte(h.key)))}]
		if h.found = found; found {
			var how string
			how, did.action.target, _ = strings.Cut(text, " ")
			did.action.verdict = goTo
			if how == "jump" {
				did.action.verdict = jump
			}
		}
	} else {
		h.data, h.found = r.datum(e.SetName, h.key, s)
		if h.found && e.IsDestRegSet {
			s.put(e.DestRegister, []byte(h.data))
		}
	}
	if h.found == e.Invert {
		did.action.verdict = mismatch
	}
	did.hits = append(did.hits, h)
}

// datum looks a key up in a set or map of data; in affinity maps, first among what the packet itself stored.
func (r *run) datum(name, key string, s *state) (data string, found bool) {
	if set, ok := nft.ParseSet(name); ok {
		if e := r.find(set, key); e != nil {
			return e.Data, true
		}
		return "", false
	}
	for l := s.learned; l != nil; l = l.prev {
		if l.set == name && l.key == key {
			return l.data, l.data != ""
		}
	}
	if r.node.Client == nil {
		return "", false
	}
	data = r.node.Client(name, key)
	return data, data != ""
}

// Operations of a dynset (enum nft_dynset_ops).
const (
	dynsetAdd    = 0
	dynsetUpdate = 1
	dynsetDelete = 2
)

// dynset notes what the kernel would store in an affinity map.
func (r *run) dynset(e *expr.Dynset, s *state) {
	key := string(s.get(e.SrcRegKey, s.family.AddrLen()))
	data := ""
	if e.Operation != dynsetDelete {
		data = string(s.get(e.SrcRegData, 4))
		if had, found := r.datum(e.SetName, key, s); found && e.Operation == dynsetAdd {
			data = had // add does not replace
		}
	}
	s.learned = &learned{s.learned, e.SetName, key, data}
}

// state is the first packet of a connection on its path, and the registers.
type state struct {
	family     nft.Family
	proto      nft.Proto
	from, to   netip.AddrPort
	iif        string
	mark, prio uint32
	dnat       bool
	masquerade bool
	learned    *learned
	regs       [64]byte // NFT_REG32_00 to _15
}

// learned is what a rule stored in an affinity map on the path; data is empty when it was deleted.
type learned struct {
	prev           *learned
	set, key, data string
}

// reg is the offset of a register. The kernel prints the first of four 32-bit registers as a 128-bit one.
func reg(r uint32) int {
	if r >= unix.NFT_REG32_00 {
		return int(r-unix.NFT_REG32_00) * 4
	}
	return int(r-unix.NFT_REG_1) * 16
}

// put stores a value as the kernel does: padded with zeros to 32 bits.
func (s *state) put(r uint32, v []byte) {
	at := s.regs[reg(r):]
	for n := copy(at, v); n%4 != 0; n++ {
		at[n] = 0
	}
}

func (s *state) get(r uint32, n int) []byte {
	at := reg(r)
	return s.regs[at:min(at+n, len(s.regs))]
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// payload loads from the headers (RFC 791, RFC 8200), of which addresses, protocol and ports are known.
func (s *state) payload(e *expr.Payload) verdict {
	var header []byte
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		header = make([]byte, 12, 40)
		header[9] = byte(s.proto)
		if s.family != nft.IPv4 {
			header = header[:8]
			header[6] = byte(s.proto)
		}
		header = append(append(header, s.from.Addr().AsSlice()...), s.to.Addr().AsSlice()...)
	case expr.PayloadBaseTransportHeader:
		header = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.from.Port()), s.to.Port())
	}
	if e.OperationType != expr.PayloadLoad || int(e.Offset+e.Len) > len(header) {
		return unknown
	}
	s.put(e.DestRegister, header[e.Offset:e.Offset+e.Len])
	return next
}

func (s *state) meta(e *expr.Meta, node Node) verdict {
	if e.SourceRegister {
		v := binary.NativeEndian.Uint32(s.get(e.Register, 4))
		switch e.Key {
		case expr.MetaKeyMARK:
			s.mark = v
		case expr.MetaKeyPRIORITY:
			s.prio = v
		}
		return next
	}
	name := func(iface string) []byte {
		b := make([]byte, unix.IFNAMSIZ)
		copy(b, iface)
		return b
	}
	var v []byte
	switch e.Key {
	case expr.MetaKeyL4PROTO:
		v = []byte{byte(s.proto)}
	case expr.MetaKeyMARK:
		v = native(s.mark)
	case expr.MetaKeyPRIORITY:
		v = native(s.prio)
	case expr.MetaKeyNFPROTO:
		v = []byte{byte(s.family)}
	case expr.MetaKeyIIFNAME:
		v = name(s.iif)
	case expr.MetaKeyOIFNAME:
		oif := ""
		if node.Route != nil {
			oif, _ = node.Route(s.to.Addr())
		}
		v = name(oif)
	default:
		return unknown
	}
	s.put(e.Register, v)
	return next
}

// Bits of nft's ct state and of enum ip_conntrack_status.
const (
	stateNew   = 1 << 3
	statusDNAT = 1 << 5
)

func (s *state) ct(e *expr.Ct) verdict {
	switch {
	case e.Key == expr.CtKeySTATE && !e.SourceRegister:
		s.put(e.Register, native(stateNew))
	case e.Key == expr.CtKeySTATUS && s.dnat:
		s.put(e.Register, native(statusDNAT))
	case e.Key == expr.CtKeySTATUS:
		s.put(e.Register, native(0))
	default:
		return unknown
	}
	return next
}

func (s *state) fib(e *expr.Fib, node Node) verdict {
	addr := s.to.Addr()
	if e.FlagSADDR {
		addr = s.from.Addr()
	}
	if !e.ResultADDRTYPE {
		return unknown
	}
	kind := uint32(unix.RTN_UNICAST)
	if node.isLocal(addr) {
		kind = unix.RTN_LOCAL
	}
	s.put(e.Register, native(kind))
	return next
}

func (s *state) compare(e *expr.Cmp) verdict {
	c := bytes.Compare(s.get(e.Register, len(e.Data)), e.Data)
	if map[expr.CmpOp]bool{
		expr.CmpOpEq: c == 0, expr.CmpOpNeq: c != 0, expr.CmpOpLt: c < 0, expr.CmpOpLte: c <= 0, expr.CmpOpGt: c > 0, expr.CmpOpGte: c >= 0,
	}[e.Op] {
		return next
	}
	return mismatch
}

// nat translates the destination. Our rules always give address and port.
func (s *state) nat(e *expr.NAT) verdict {
	if e.Type != expr.NATTypeDestNAT || e.RegAddrMin == 0 {
		return unknown
	}
	addr, ok := netip.AddrFromSlice(s.get(e.RegAddrMin, s.family.AddrLen()))
	port := s.to.Port()
	if e.RegProtoMin != 0 {
		port = binary.BigEndian.Uint16(s.get(e.RegProtoMin, 2))
	}
	if !ok {
		return unknown
	}
	s.to, s.dnat = netip.AddrPortFrom(addr, port), true
	return accept
}
