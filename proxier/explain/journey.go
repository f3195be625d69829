// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// Origins of packets.
const (
	fromHost    = "host"
	fromPod     = "pod"
	fromOutside = "outside"
)

// hookNames are the names of nft for NF_INET_*.
func hookName(num uint32) string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[num]
}

// journey takes a packet through the hooks.
type journey struct {
	machine
	base map[uint32][]string // base chains by hook in the order of their priorities
}

func newJourney(s *nft.Snapshot, node Node) *journey {
	j := &journey{machine{s, index(s), node, map[string]bool{}, ""}, map[uint32][]string{}}
	for name, c := range s.Chains {
		if c.Hook != nil {
			j.base[c.Hook.Num] = append(j.base[c.Hook.Num], name)
		}
	}
	for _, chains := range j.base {
		slices.SortFunc(chains, func(a, b string) int {
			return cmp.Or(cmp.Compare(s.Chains[a].Hook.Priority, s.Chains[b].Hook.Priority), cmp.Compare(a, b))
		})
	}
	return j
}

// travel returns the ways that a packet may go, to its end on this node: accepted, dropped or rejected.
func (j *journey) travel(p Packet) []branch {
	s := state{family: j.snapshot.Family, proto: p.Proto, from: p.From, to: p.To, iif: p.IIF}
	start := []branch{{weight: 1, state: s, verdict: accept}}
	if p.IIF == "" {
		return j.each(j.pass(start, unix.NF_INET_LOCAL_OUT), j.afterOutput)
	}
	return j.each(j.pass(start, unix.NF_INET_PRE_ROUTING), j.afterPrerouting)
}

// each continues the ways that have not ended.
func (j *journey) each(ways []branch, then func(branch) []branch) (out []branch) {
	for _, w := range ways {
		if w.verdict == accept {
			out = append(out, then(w)...)
		} else {
			out = append(out, w)
		}
	}
	return out
}

// afterOutput is the way of what a process of the node sends. What it sends to the node itself leaves through the
// loopback device and comes in again; nat does not look at it a second time, for its connection is known then.
func (j *journey) afterOutput(b branch) []branch {
	out := j.pass([]branch{b}, unix.NF_INET_POST_ROUTING)
	if !j.node.isLocal(b.state.to.Addr()) {
		return out
	}
	return j.each(out, func(b branch) []branch {
		b.state.iif = "lo"
		ways := j.passTypes([]branch{b}, unix.NF_INET_PRE_ROUTING, "filter")
		return j.each(ways, func(b branch) []branch { return j.pass([]branch{b}, unix.NF_INET_LOCAL_IN) })
	})
}

// afterPrerouting is the way of what comes in by a device: to the node itself, or on.
func (j *journey) afterPrerouting(b branch) []branch {
	if j.node.isLocal(b.state.to.Addr()) {
		return j.pass([]branch{b}, unix.NF_INET_LOCAL_IN)
	}
	ways := j.pass([]branch{b}, unix.NF_INET_FORWARD)
	return j.each(ways, func(b branch) []branch { return j.pass([]branch{b}, unix.NF_INET_POST_ROUTING) })
}

func (j *journey) pass(ways []branch, hook uint32) []branch {
	return j.passTypes(ways, hook, "filter", "nat", "route")
}

// passTypes takes ways through the base chains of a hook that are of some types. The policy of ours is accept.
func (j *journey) passTypes(ways []branch, hook uint32, types ...string) []branch {
	j.hook = hookName(hook)
	for _, name := range j.base[hook] {
		if !slices.Contains(types, j.snapshot.Chains[name].Hook.Type) {
			continue
		}
		ways = j.each(ways, func(b branch) []branch {
			out := j.chain(name, b)
			for i := range out {
				if out[i].verdict == next {
					out[i].verdict = accept
				}
			}
			return out
		})
	}
	return ways
}

// steps returns what happened on a way, in order.
func (b *branch) steps() (out []*step) {
	for s := b.trail; s != nil; s = s.prev {
		out = append(out, s)
	}
	slices.Reverse(out)
	return out
}
