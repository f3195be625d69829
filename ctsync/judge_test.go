// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func front(p Proto, addrPort string) Frontend {
	a := ap(addrPort)
	return Frontend{a.Addr(), a.Port(), p}
}

func eps(list ...string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range list {
		all = append(all, ap(s))
	}
	return all
}

// TestJudge goes through the cases that an operator meets, one by one, in both families.
func TestJudge(t *testing.T) {
	all := Scope{TCP: true, SCTP: true}
	zone3 := uint16(3)
	type world struct {
		scope   Scope
		before  []Change // known, with their former endpoints
		now     []Change
		nodes   []string
		service string
	}
	offers := func(f Frontend, list ...string) Change { return Change{Frontend: f, Endpoints: eps(list...)} }
	vip, ep1, ep2 := "10.96.0.1:53", "10.244.0.1:5353", "10.244.0.2:5353"
	vip6, ep6 := "[fd00:96::1]:53", "[fd00:244::1]:5353"
	udp := flow(UDP, "10.1.0.1:1000", vip, ep1)
	udp6 := flow(UDP, "[fd00:1::1]:1000", vip6, ep6)
	tcp := flow(TCP, "10.1.0.1:1000", vip, ep1)
	syn := with(flow(TCP, "10.1.0.1:1000", vip, ""), func(f *Flow) { f.TCPState, f.Status = tcpSynSent, 0 })
	sctp := flow(SCTP, "10.1.0.1:1000", vip, ep1)
	np := flow(UDP, "10.1.0.1:1000", "192.168.0.1:30053", ep1)
	dns, dns6, web, sig := front(UDP, vip), front(UDP, vip6), front(TCP, vip), front(SCTP, vip)
	node := front(UDP, "0.0.0.0:30053")
	for _, c := range []struct {
		name string
		w    world
		f    Flow
		want Reason
	}{
		{"endpoint serves", world{now: []Change{offers(dns, ep1, ep2)}}, udp, Keep},
		{"endpoint serves, given out of order", world{now: []Change{offers(dns, ep2, ep1)}}, udp, Keep},
		{"endpoint serves, IPv6", world{now: []Change{offers(dns6, ep6)}}, udp6, Keep},
		{"endpoint removed", world{now: []Change{offers(dns, ep2)}}, udp, EndpointGone},
		{"endpoint removed, IPv6", world{now: []Change{offers(dns6, "[fd00:244::2]:5353")}}, udp6, EndpointGone},
		{"last endpoint gone", world{now: []Change{offers(dns)}}, udp, NoEndpoints},
		{"target port changed", world{now: []Change{offers(dns, "10.244.0.1:5354")}}, udp, EndpointGone},
		{"masqueraded flow, endpoint removed", world{now: []Change{offers(dns, ep2)}},
			with(udp, func(f *Flow) { f.To = ap("192.168.0.1:2000") }), EndpointGone},
		{"port of the Service changed", world{before: []Change{offers(dns, ep1)},
			now: []Change{{Frontend: dns, Removed: true}, offers(front(UDP, "10.96.0.1:54"), ep1)}}, udp, FrontendGone},
		{"Service deleted", world{before: []Change{offers(dns, ep1)}, now: []Change{{Frontend: dns, Removed: true}}}, udp, FrontendGone},
		{"Service deleted, flow of another's translation", world{before: []Change{offers(dns, ep2)},
			now: []Change{{Frontend: dns, Removed: true}}}, udp, Keep},
		{"Service deleted while nobody watched", world{service: "10.96.0.0/16"}, udp, FrontendGone},
		{"address never ours", world{}, udp, Keep},
		{"untranslated to an unused address of ours", world{service: "10.96.0.0/16"}, flow(UDP, "10.1.0.1:1", vip, ""), Keep},
		{"Service deleted and created anew", world{before: []Change{offers(dns, ep1)},
			now: []Change{{Frontend: dns, Removed: true}, offers(dns, ep2)}}, udp, EndpointGone},
		{"Service deleted and created anew, same endpoints", world{before: []Change{offers(dns, ep1)},
			now: []Change{{Frontend: dns, Removed: true}, offers(dns, ep1)}}, udp, Keep},
		{"external IP added where packets flow", world{now: []Change{offers(dns, ep1)}}, flow(UDP, "10.1.0.1:1", vip, ""), Untranslated},
		{"external IP added, no endpoints", world{now: []Change{offers(dns)}}, flow(UDP, "10.1.0.1:1", vip, ""), Untranslated},
		{"external IP is an endpoint's own address", world{now: []Change{offers(dns, vip)}}, flow(UDP, "10.1.0.1:1", vip, ""), Keep},
		{"our rules let it pass", world{now: []Change{{Frontend: dns, Endpoints: eps(ep1), Untranslated: true}}},
			flow(UDP, "10.1.0.1:1", vip, ""), Keep},
		{"SYN from before the rules, TCP off", world{now: []Change{offers(web, ep1)}}, syn, Untranslated},
		{"connection from before the rules", world{scope: all, now: []Change{offers(web, ep1)}}, flow(TCP, "10.1.0.1:1", vip, ""), Keep},
		{"TCP endpoint gone, TCP off", world{now: []Change{offers(web, ep2)}}, tcp, Keep},
		{"TCP endpoint gone", world{scope: all, now: []Change{offers(web, ep2)}}, tcp, EndpointGone},
		{"TCP endpoint gone, connection over", world{scope: all, now: []Change{offers(web, ep2)}},
			with(tcp, func(f *Flow) { f.TCPState = tcpTimeWait }), Keep},
		{"TCP Service deleted, TCP off", world{before: []Change{offers(web, ep1)},
			now: []Change{{Frontend: web, Removed: true}}, service: "10.96.0.0/16"}, tcp, Keep},
		{"SCTP off", world{now: []Change{offers(sig, ep2)}}, sctp, Keep},
		{"SCTP on", world{scope: all, now: []Change{offers(sig, ep2)}}, sctp, EndpointGone},
		{"untranslated association that was answered", world{scope: all, now: []Change{offers(sig, ep2)}}, flow(SCTP, "10.1.0.1:1", vip, ""), Keep},
		{"same address and port, other protocol", world{scope: all, now: []Change{offers(web, ep2)}}, udp, Keep},
		{"NodePort, endpoint gone", world{nodes: []string{"192.168.0.1"}, now: []Change{offers(node, ep2)}}, np, EndpointGone},
		{"NodePort, not our address", world{nodes: []string{"192.168.0.2"}, now: []Change{offers(node, ep2)}}, np, Keep},
		{"NodePort, mapped node address", world{nodes: []string{"::ffff:192.168.0.1"}, now: []Change{offers(node, ep2)}}, np, EndpointGone},
		{"NodePort of the other family", world{nodes: []string{"192.168.0.1"}, now: []Change{offers(front(UDP, "[::]:30053"), ep6)}}, np, Keep},
		{"NodePort given back", world{nodes: []string{"192.168.0.1"}, before: []Change{offers(node, ep1)},
			now: []Change{{Frontend: node, Removed: true}}}, np, FrontendGone},
		{"NodePort used again by another Service", world{nodes: []string{"192.168.0.1"}, before: []Change{offers(node, ep1)},
			now: []Change{{Frontend: node, Removed: true}, offers(node, ep2)}}, np, EndpointGone},
		{"NodePort where a process of the node was asked", world{nodes: []string{"192.168.0.1"}, now: []Change{offers(node, ep2)}},
			flow(UDP, "10.1.0.1:1000", "192.168.0.1:30053", ""), Untranslated},
		{"external IP on a node address beats the NodePort", world{nodes: []string{"192.168.0.1"},
			now: []Change{offers(node, ep2), offers(front(UDP, "192.168.0.1:30053"), ep1)}}, np, Keep},
		{"another zone", world{scope: Scope{Zone: &zone3}, now: []Change{offers(dns, ep2)}}, udp, Keep},
		{"the zone", world{scope: Scope{Zone: &zone3}, now: []Change{offers(dns, ep2)}},
			with(udp, func(f *Flow) { f.Zone = 3 }), EndpointGone},
		{"another mark", world{scope: Scope{Mark: 1, MarkMask: 3}, now: []Change{offers(dns, ep2)}}, udp, Keep},
		{"ICMP", world{now: []Change{offers(dns, ep2)}}, with(udp, func(f *Flow) { f.Proto = 1 }), Keep},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := newTable(c.w.scope)
			tab.started = true
			var nodes []netip.Addr
			for _, n := range c.w.nodes {
				nodes = append(nodes, netip.MustParseAddr(n))
			}
			tab.setNodes(nodes, time.Time{})
			if c.w.service != "" {
				tab.owned = []netip.Prefix{netip.MustParsePrefix(c.w.service)}
			}
			tab.update(c.w.before, time.Time{})
			tab.update(c.w.now, time.Time{})
			if got := tab.judge(&c.f); got != c.want {
				t.Errorf("%s: %v, want %v", c.f.text(), got, c.want)
			}
		})
	}
}

// TestJudgeAnnounced: what a commit under way adds is right before the commit is reported.
func TestJudgeAnnounced(t *testing.T) {
	tab := newTable(Scope{})
	tab.setNodes([]netip.Addr{netip.MustParseAddr("192.168.0.1")}, time.Time{})
	dns, node := front(UDP, "10.96.0.1:53"), front(UDP, "0.0.0.0:53")
	tab.update([]Change{{Frontend: dns, Endpoints: eps("10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.1:53")}}, time.Time{})
	toVIP := flow(UDP, "10.1.0.1:1", "10.96.0.1:53", "10.0.0.2:53")
	toNode := flow(UDP, "10.1.0.1:1", "192.168.0.1:53", "10.0.0.2:53")
	check := func(when string, want Reason) {
		t.Helper()
		if v, n := tab.judge(&toVIP), tab.judge(&toNode); v != want || n != want {
			t.Errorf("%s: %v and %v, want %v", when, v, n, want)
		}
	}
	check("before", EndpointGone)
	grown := []Change{{Frontend: dns, Endpoints: eps("10.0.0.2:53", "10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.2:53")}}
	tab.announce(grown)
	check("announced", Keep)
	tab.update(grown, time.Time{})
	check("committed", Keep)
	tab.update([]Change{{Frontend: dns, Endpoints: eps("10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.1:53")}}, time.Time{})
	check("taken back", EndpointGone)
}

// model is the slow and obvious form of the judgement: lists, and the rules of the issue as sentences.
type model struct {
	scope                      Scope
	offered, former, announced []Change
	nodes                      []netip.Addr
	owned                      []netip.Prefix
}

// uses says whether a flow to dst uses the frontend, by address or as a NodePort.
func (m *model) uses(c Change, f *Flow) (exact, node bool) {
	if c.Proto != f.Proto || c.Port != f.Dst.Port() {
		return false, false
	}
	mine := slices.Contains(m.nodes, f.Dst.Addr())
	return c.Addr == f.Dst.Addr(), mine && c.Addr.IsUnspecified() && c.Addr.Is4() == f.Dst.Addr().Is4()
}

// find returns the change that the flow uses out of list.
func (m *model) find(list []Change, f *Flow) *Change {
	var byNode *Change
	for i := range list {
		exact, node := m.uses(list[i], f)
		if exact {
			return &list[i]
		}
		if node {
			byNode = &list[i]
		}
	}
	return byNode
}

func (m *model) judge(f *Flow) Reason {
	interesting := f.Proto == UDP || f.Proto == TCP || f.Proto == SCTP && m.scope.SCTP
	if !interesting || m.scope.Zone != nil && *m.scope.Zone != f.Zone || f.Mark&m.scope.MarkMask != m.scope.Mark&m.scope.MarkMask {
		return Keep
	}
	mayMove := f.Proto == UDP || f.Proto == SCTP ||
		m.scope.TCP && f.TCPState != 7 && f.TCPState != 8
	for _, c := range m.announced {
		if exact, node := m.usesAnnounced(c, f); (exact || node) && slices.Contains(c.Endpoints, f.From) {
			return Keep
		}
	}
	if o := m.find(m.offered, f); o != nil {
		switch {
		case slices.Contains(o.Endpoints, f.From):
			return Keep
		case f.From == f.Dst && (o.Untranslated || f.Proto == TCP && f.TCPState != 1 || f.Proto == SCTP && f.Status&2 != 0):
			return Keep
		case f.From == f.Dst:
			return Untranslated
		case !mayMove:
			return Keep
		case len(o.Endpoints) == 0:
			return NoEndpoints
		}
		return EndpointGone
	}
	if f.From == f.Dst || !mayMove {
		return Keep
	}
	for _, c := range m.former {
		if exact, node := m.uses(c, f); (exact || node) && slices.Contains(c.Endpoints, f.From) {
			return FrontendGone
		}
	}
	for _, p := range m.owned {
		if p.Contains(f.Dst.Addr()) {
			return FrontendGone
		}
	}
	return Keep
}

// usesAnnounced is uses without a look at the node's addresses, which may be as new as what is announced.
func (m *model) usesAnnounced(c Change, f *Flow) (exact, node bool) {
	same := c.Proto == f.Proto && c.Port == f.Dst.Port()
	return same && c.Addr == f.Dst.Addr(), same && c.Addr.IsUnspecified() && c.Addr.Is4() == f.Dst.Addr().Is4()
}

// apply takes the changes over one by one.
func (m *model) apply(changes []Change) {
	same := func(f Frontend) func(Change) bool { return func(c Change) bool { return c.Frontend == f } }
	for _, c := range changes {
		m.announced = slices.DeleteFunc(m.announced, same(c.Frontend))
		i := slices.IndexFunc(m.offered, same(c.Frontend))
		var old Change
		if i >= 0 {
			old = m.offered[i]
			m.offered = slices.Delete(m.offered, i, i+1)
		}
		if !c.Removed {
			m.offered = append(m.offered, c)
		} else if i >= 0 {
			m.former = append(m.former, old)
		}
	}
}

// dice makes small worlds, in which things meet often.
type dice struct{ *rand.Rand }

func pick[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

func (d dice) proto() Proto { return pick(d, TCP, UDP, UDP, SCTP) }
func (d dice) port() uint16 { return pick[uint16](d, 53, 80) }
func (d dice) addr() netip.Addr {
	return netip.MustParseAddr(pick(d, "10.96.0.1", "10.97.0.1", "192.168.0.1", "192.168.0.2", "fd00:96::1", "fd00::1"))
}
func (d dice) endpoint() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(pick(d, "10.244.0.1", "10.244.0.2", "10.96.0.1", "fd00:244::1", "fd00:96::1")), d.port())
}

func (d dice) changes() []Change {
	var all []Change
	for range d.IntN(6) {
		c := Change{Frontend: Frontend{d.addr(), d.port(), d.proto()}, Removed: d.IntN(4) == 0, Untranslated: d.IntN(5) == 0}
		if d.IntN(3) == 0 {
			c.Addr = pick(d, netip.IPv4Unspecified(), netip.IPv6Unspecified())
		}
		for range d.IntN(4) {
			c.Endpoints = append(c.Endpoints, d.endpoint())
		}
		all = append(all, c)
	}
	return all
}

func (d dice) scope() Scope {
	s := Scope{TCP: d.IntN(2) == 0, SCTP: d.IntN(2) == 0}
	if d.IntN(8) == 0 {
		s.Zone = new(uint16)
	}
	if d.IntN(8) == 0 {
		s.Mark, s.MarkMask = 1, 3
	}
	return s
}

func (d dice) flow() Flow {
	f := Flow{
		Src: ap("10.1.0.1:1000"), Dst: netip.AddrPortFrom(d.addr(), d.port()), From: d.endpoint(), To: ap("10.1.0.1:1000"),
		Status: pick[uint32](d, 0, 2), Mark: pick[uint32](d, 0, 1, 5), Zone: pick[uint16](d, 0, 0, 1),
		Proto: pick(d, d.proto(), d.proto(), d.proto(), Proto(1)), TCPState: uint8(d.IntN(10)),
	}
	if d.IntN(3) == 0 {
		f.From = f.Dst
	}
	if f.Proto != TCP {
		f.TCPState = 0
	}
	return f
}

// againstModel plays one random history on the table and the model, and compares what they say of random flows.
func againstModel(seed uint64) error {
	d := dice{rand.New(rand.NewPCG(seed, 1))}
	scope := d.scope()
	tab, m := newTable(scope), &model{scope: scope}
	tab.started = true
	for range 1 + d.IntN(4) {
		nodes := []netip.Addr{d.addr(), d.addr()}
		tab.setNodes(nodes, time.Time{})
		m.nodes = nodes
		if d.IntN(2) == 0 {
			m.owned = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/64")}
			tab.owned = m.owned
		}
		next := d.changes()
		if d.IntN(3) == 0 {
			tab.announce(next)
			for _, c := range next { // the last word counts
				if !c.Removed && len(c.Endpoints) > 0 {
					m.announced = slices.DeleteFunc(m.announced, func(a Change) bool { return a.Frontend == c.Frontend })
					m.announced = append(m.announced, c)
				}
			}
		} else {
			tab.update(next, time.Time{})
			m.apply(next)
		}
		for range 20 {
			f := d.flow()
			if got, want := tab.judge(&f), m.judge(&f); got != want {
				return fmt.Errorf("%s: %v, the model says %v\nmodel %+v", f.text(), got, want, m)
			}
		}
	}
	return nil
}

// TestJudgeModel holds the judgement to the model on random worlds.
func TestJudgeModel(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for i := range uint64(5_000) {
		if err := againstModel(base + i); err != nil {
			t.Fatalf("seed %d: %v", base+i, err)
		}
	}
}

// FuzzJudge is TestJudgeModel for go test -fuzz, with the seed of the world as its input.
func FuzzJudge(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		if err := againstModel(seed); err != nil {
			t.Error(err)
		}
	})
}

// FuzzDecode feeds the decoder what no kernel writes: it must not panic, nor read on for ever.
func FuzzDecode(f *testing.F) {
	for _, s := range shapes() {
		f.Add(appendNew(nil, &s, 1))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var flow Flow
		for len(b) > 0 {
			_, data, rest, ok := nextMessage(b)
			if !ok {
				break
			}
			flow.decode(data[min(nfgenLen, len(data)):])
			_ = errnoOf(data)
			b = rest
		}
	})
}
