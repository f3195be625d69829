// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// Seen has all messages of the kernel about one packet, in order.
type Seen struct {
	At     time.Time // of the first message
	Events []nft.TraceEvent
	// Incomplete says that messages were lost meanwhile.
	Incomplete bool

	ours    bool // a filter of ours has it traced
	through bool // the hook that saw it last is the last of its way
	nat     bool // chains of nat saw it, which only the first packet of a connection passes
	last    time.Time
	number  int // by the order of their first messages
}

// Collector puts the messages of each packet together. The kernel does not mark the last one, so that a packet is complete
// when it was dropped or no message came for a while. Not safe for concurrent use.
type Collector struct {
	// Quiet is that time behind input and postrouting. Elsewhere it is unfinishedFactor times as long: on a busy machine
	// the sender's process may have to wait in the middle of sending.
	Quiet time.Duration
	// Hook returns where a base chain is attached.
	Hook  func(table nft.TraceTable, chain string) (hook nft.Hook, ok bool)
	open  map[uint32]*Seen
	begun int
}

// nat is the type of chains that translate.
const nat = "nat"

// unfinishedFactor is how many times longer than Quiet a packet is waited for that is not through.
const unfinishedFactor = 5

// loopback is the index of the loopback device, in every network namespace.
const loopback = 1

// Add takes a message, and returns the packet if it is complete with it. Packets that others have traced are left out.
func (c *Collector) Add(e *nft.TraceEvent, now time.Time) *Seen {
	if c.open == nil {
		c.open = map[uint32]*Seen{}
	}
	p, known := c.open[e.ID]
	var done *Seen
	if known && e.Starts() && p.ours { // the number is used again
		done, known = p, false
	}
	if !known {
		if p = c.continued(e); p == nil {
			p = &Seen{At: now, number: c.begun}
			c.begun++
		}
		c.open[e.ID] = p
	}
	p.Events, p.last, p.ours = append(p.Events, *e), now, p.ours || e.Starts()
	if e.Packet != nil {
		hook, _ := c.Hook(e.Table, e.Chain)
		p.nat = p.nat || hook.Type == nat
		switch hook.Num {
		case unix.NF_INET_LOCAL_IN:
			p.through = true
		case unix.NF_INET_POST_ROUTING:
			p.through = e.Packet.OIF != loopback
		case unix.NF_INET_FORWARD:
			p.through = !p.nat // others than nat have chains in postrouting or not
		default:
			p.through = false
		}
	}
	if e.Verdict == nft.VerdictDrop && e.Type != nft.TraceReturn {
		done = p
		c.forget(p)
	}
	if done == nil || !done.ours {
		return nil
	}
	return done
}

// continued finds the packet that goes on under another number, for the kernel makes the number of the device that the packet
// came in by, among others: what leaves by the loopback device comes in by it, and what passed the prerouting hook on a port
// of a bridge (br_netfilter) comes in by the bridge, at the next hook. Masquerading may have changed the source of the former:
// then it is the last one that left for that destination. The destination of the latter may just have been translated.
func (c *Collector) continued(e *nft.TraceEvent) (found *Seen) {
	if e.Packet == nil || e.Starts() {
		return nil
	}
	hook, _ := c.Hook(e.Table, e.Chain)
	bridged := hook.Num == unix.NF_INET_FORWARD || hook.Num == unix.NF_INET_LOCAL_IN
	same := false
	for _, p := range c.open {
		was := p.packet()
		if !p.ours || was == nil || was.Proto != e.Packet.Proto {
			continue
		}
		exact := was.Src == e.Packet.Src
		byLoopback := e.Packet.IIF == loopback && was.OIF == loopback && was.Dst == e.Packet.Dst
		byBridge := bridged && exact && was.IIF == e.Packet.IIF && was.OIF == 0
		if !byLoopback && !byBridge {
			continue
		}
		if found == nil || exact && !same || exact == same && p.number > found.number {
			found, same = p, exact
		}
	}
	return found
}

// packet is the packet as it was seen last.
func (s *Seen) packet() *nft.TracePacket {
	for i := len(s.Events) - 1; i >= 0; i-- {
		if s.Events[i].Packet != nil {
			return s.Events[i].Packet
		}
	}
	return nil
}

func (c *Collector) forget(p *Seen) {
	for id, q := range c.open {
		if p == q {
			delete(c.open, id)
		}
	}
}

// Lost notes that messages are missing; it is unknown of which packets.
func (c *Collector) Lost() {
	for _, p := range c.open {
		p.Incomplete = true
	}
}

// Unfinished tells whether there are packets that may not be complete.
func (c *Collector) Unfinished() bool {
	for _, p := range c.open {
		if p.ours {
			return true
		}
	}
	return false
}

// Complete returns the packets of which nothing came for a while, oldest first; all that are open if the trace is at its end.
func (c *Collector) Complete(now time.Time, end bool) []*Seen {
	var out []*Seen
	for _, p := range c.open {
		wait := c.Quiet
		if !p.through {
			wait *= unfinishedFactor
		}
		if end || now.Sub(p.last) >= wait {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *Seen) int { return cmp.Compare(a.number, b.number) })
	out = slices.Compact(out) // a packet may have two numbers
	for _, p := range out {
		c.forget(p)
	}
	return slices.DeleteFunc(out, func(p *Seen) bool { return !p.ours })
}
