// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"github.com/google/nftables/expr"

	"github.com/nftproxy/nftproxy/nft"
)

// verdict is how the evaluation of a rule or chain ended.
type verdict uint8

const (
	next     verdict = iota // the rule is done, or the chain fell off its end
	mismatch                // the rule does not concern the packet
	accept
	drop
	reject
	jump
	goTo
	leave // return
)

// branch is one way that things may go. Where rules draw a random number, they go several ways.
type branch struct {
	weight  float64 // probability
	state   state
	verdict verdict
	target  string // of jump and goTo
	reset   bool   // of reject: by a TCP reset
	trail   *step  // what happened, the last first
}

// step is a rule that did something, or nearly so.
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
	drew       uint32 // of how many a number was drawn
	fixed      bool   // took slot 0
	sticky     uint32 // operation of a dynset plus 1
}

// machine evaluates the rules of one table as the kernel would.
type machine struct {
	snapshot *nft.Snapshot
	tables   *tables
	node     Node
	warnings map[string]bool
	hook     string // that is being evaluated
}

func (m *machine) warn(format string, args ...any) { m.warnings[fmt.Sprintf(format, args...)] = true }

// chain evaluates a chain, also those that it leads to. The verdicts of what it returns are next, when the packet
// leaves the chain at its end, accept, drop or reject.
func (m *machine) chain(name string, in branch) []branch {
	rules, ok := m.snapshot.Rules[name]
	if _, exists := m.snapshot.Chains[name]; !ok && !exists {
		m.warn("chain %s does not exist", name)
	}
	in.verdict = next
	live, done := []branch{in}, []branch(nil)
	for i := range rules {
		var still []branch
		for _, b := range live {
			goOn, end := m.follow(m.rule(name, i, b))
			still, done = append(still, goOn...), append(done, end...)
		}
		live = still
	}
	return append(done, live...)
}

// follow goes where the ways out of a rule lead: goOn come to the chain's next rule, end have left the chain.
func (m *machine) follow(ways []branch) (goOn, end []branch) {
	for _, w := range ways {
		switch w.verdict {
		case next, mismatch:
			w.verdict = next
			goOn = append(goOn, w)
		case jump:
			for _, b := range m.chain(w.target, w) {
				if b.verdict == next {
					goOn = append(goOn, b)
				} else {
					end = append(end, b)
				}
			}
		case goTo:
			end = append(end, m.chain(w.target, w)...)
		case leave:
			w.verdict = next
			end = append(end, w)
		default:
			end = append(end, w)
		}
	}
	return goOn, end
}

// rule evaluates one rule. All ways that do not match are one: what they drew, the next rule draws anew.
func (m *machine) rule(chain string, i int, in branch) []branch {
	r := &m.snapshot.Rules[chain][i]
	run := &run{machine: m, exprs: r.Exprs, name: fmt.Sprintf("rule %d of chain %s", i+1, chain)}
	run.from(0, in.state, in.weight, step{hook: m.hook, chain: chain, rule: i, comment: r.Comment})
	var out []branch
	missed := -1
	for _, w := range run.ways {
		w.trail.prev = in.trail
		if w.verdict == mismatch {
			if !w.trail.noteworthy() {
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

// noteworthy tells steps that tell something though the rule did not match: source ranges admitted the packet.
func (s *step) noteworthy() bool {
	return len(s.hits) == 2 && s.hits[0].set == nft.Restricted.String() && s.hits[0].found
}

// run is the evaluation of one rule.
type run struct {
	*machine
	exprs []expr.Any
	name  string
	ways  []branch
}

// from evaluates the expressions from the i-th on.
func (r *run) from(i int, s state, weight float64, did step) {
	did.hits = did.hits[:len(did.hits):len(did.hits)] // ways must not share what is appended
	for ; i < len(r.exprs); i++ {
		if g, ok := r.exprs[i].(*expr.Numgen); ok && g.Modulus > 0 {
			did.action.drew = g.Modulus
			for v := range g.Modulus {
				s.put(g.Register, native(g.Offset+v))
				r.from(i+1, s, weight/float64(g.Modulus), did)
			}
			return
		}
		if r.one(r.exprs[i], &s, &did); did.action.verdict != next {
			break
		}
	}
	a := did.action
	r.ways = append(r.ways, branch{weight: weight, state: s, verdict: a.verdict, target: a.target, reset: a.reset, trail: &did})
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
	case *expr.Immediate:
		s.put(e.Register, e.Data)
		a.fixed = true
	case *expr.Bitwise:
		s.bitwise(e)
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
		a.verdict, a.reset = reject, e.Type == rejectReset
	case *expr.Verdict:
		a.verdict, a.target = verdictOf(e.Kind), e.Chain
	case *expr.Counter:
	default:
		r.warn("%s has an expression that this version does not know; it is taken not to match", r.name)
		a.verdict = mismatch
	}
	if a.verdict == unknown {
		r.warn("%s loads what this version does not know; it is taken not to match", r.name)
		a.verdict = mismatch
	}
}

// unknown is the verdict of an expression that loads what is not modelled.
const unknown = ^verdict(0)

// rejectReset is NFT_REJECT_TCP_RST.
const rejectReset = 1

func verdictOf(k expr.VerdictKind) verdict {
	switch k {
	case expr.VerdictJump:
		return jump
	case expr.VerdictGoto:
		return goTo
	case expr.VerdictReturn:
		return leave
	case expr.VerdictDrop:
		return drop
	case expr.VerdictAccept:
		return accept
	case expr.VerdictBreak:
		return mismatch
	}
	return next
}
