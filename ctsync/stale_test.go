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

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// flow returns a flow as the kernel shows it; endpoint is "" for an untranslated one.
func flow(p Proto, src, dst, endpoint string) Flow {
	f := Flow{Proto: p, Src: ap(src), Dst: ap(dst), ReplySrc: ap(dst), Replied: true}
	if endpoint != "" {
		f.ReplySrc = ap(endpoint)
	}
	if p == TCP {
		f.TCPState = 3 // established
	}
	return f
}

// with returns f changed.
func with(f Flow, change func(*Flow)) Flow { change(&f); return f }

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

// TestReason lists the cases of the contract, in both families.
func TestReason(t *testing.T) {
	all := Scope{TCP: true, SCTP: true}
	type world struct {
		scope  Scope
		before []Change // known, with their former endpoints
		now    []Change
		nodes  []string
	}
	offers := func(f Frontend, list ...string) Change { return Change{Frontend: f, Endpoints: eps(list...)} }
	vip, ep1, ep2 := "10.96.0.1:53", "10.244.0.1:5353", "10.244.0.2:5353"
	vip6, ep6 := "[fd00:96::1]:53", "[fd00:244::1]:5353"
	udp := flow(UDP, "10.1.0.1:1000", vip, ep1)
	udp6 := flow(UDP, "[fd00:1::1]:1000", vip6, ep6)
	tcp := flow(TCP, "10.1.0.1:1000", vip, ep1)
	syn := with(flow(TCP, "10.1.0.1:1000", vip, ""), func(f *Flow) { f.TCPState, f.Replied = TCPSynSent, false })
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
		{"port of the Service changed", world{before: []Change{offers(dns, ep1)},
			now: []Change{{Frontend: dns, Removed: true}, offers(front(UDP, "10.96.0.1:54"), ep1)}}, udp, FrontendGone},
		{"Service deleted", world{before: []Change{offers(dns, ep1)}, now: []Change{{Frontend: dns, Removed: true}}}, udp, FrontendGone},
		{"Service deleted, flow of another's translation", world{before: []Change{offers(dns, ep2)},
			now: []Change{{Frontend: dns, Removed: true}}}, udp, Keep},
		{"address never ours, translated by another proxy", world{}, udp, Keep},
		{"untranslated to an address that is not ours", world{}, flow(UDP, "10.1.0.1:1", vip, ""), Keep},
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
			with(tcp, func(f *Flow) { f.TCPState = TCPTimeWait }), Keep},
		{"TCP Service deleted, TCP off", world{before: []Change{offers(web, ep1)},
			now: []Change{{Frontend: web, Removed: true}}}, tcp, Keep},
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
		{"UDP endpoint not ready", world{now: []Change{{Frontend: dns, Endpoints: eps(ep2), Unready: eps(ep1)}}}, udp, EndpointGone},
		{"SCTP endpoint not ready", world{scope: all, now: []Change{{Frontend: sig, Endpoints: eps(ep2), Unready: eps(ep1)}}}, sctp, Keep},
		{"TCP endpoint not ready", world{scope: all, now: []Change{{Frontend: web, Endpoints: eps(ep2), Unready: eps(ep1)}}}, tcp, Keep},
		{"TCP endpoint not ready, no other", world{scope: all, now: []Change{{Frontend: web, Unready: eps(ep1)}}}, tcp, Keep},
		{"TCP endpoint not ready any more, then gone", world{scope: all, before: []Change{{Frontend: web, Unready: eps(ep1)}},
			now: []Change{offers(web)}}, tcp, NoEndpoints},
		{"zone of a switch", world{now: []Change{offers(dns, ep2)}}, with(udp, func(f *Flow) { f.Zone = 64000 }), Keep},
		{"zone of a switch, untranslated", world{now: []Change{offers(dns, ep2)}},
			with(flow(UDP, "10.1.0.1:1", vip, ""), func(f *Flow) { f.Zone = 65520 }), Keep},
		{"another zone than the configured one", world{scope: Scope{Zone: 3}, now: []Change{offers(dns, ep2)}}, udp, Keep},
		{"the configured zone", world{scope: Scope{Zone: 3}, now: []Change{offers(dns, ep2)}},
			with(udp, func(f *Flow) { f.Zone = 3 }), EndpointGone},
		{"ICMP", world{now: []Change{offers(dns, ep2)}}, with(udp, func(f *Flow) { f.Proto = 1 }), Keep},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewState(c.w.scope)
			var nodes []netip.Addr
			for _, n := range c.w.nodes {
				nodes = append(nodes, netip.MustParseAddr(n))
			}
			s.SetNodePortAddrs(nodes, time.Time{})
			s.Update(c.w.before, time.Time{})
			s.Update(c.w.now, time.Time{})
			if got := s.Reason(&c.f); got != c.want {
				t.Errorf("%+v: %v, want %v", c.f, got, c.want)
			}
		})
	}
}

// TestReasonAnnounced: what a commit adds is right before the commit is reported.
func TestReasonAnnounced(t *testing.T) {
	s := NewState(Scope{})
	s.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")}, time.Time{})
	dns, node := front(UDP, "10.96.0.1:53"), front(UDP, "0.0.0.0:53")
	s.Update([]Change{{Frontend: dns, Endpoints: eps("10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.1:53")}}, time.Time{})
	toVIP := flow(UDP, "10.1.0.1:1", "10.96.0.1:53", "10.0.0.2:53")
	toNode := flow(UDP, "10.1.0.1:1", "192.168.0.1:53", "10.0.0.2:53")
	check := func(when string, want Reason) {
		t.Helper()
		if v, n := s.Reason(&toVIP), s.Reason(&toNode); v != want || n != want {
			t.Errorf("%s: %v and %v, want %v", when, v, n, want)
		}
	}
	check("before", EndpointGone)
	grown := []Change{{Frontend: dns, Endpoints: eps("10.0.0.2:53", "10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.2:53")}}
	s.Announce(grown, time.Time{})
	check("announced", Keep)
	s.Update(grown, time.Time{})
	check("committed", Keep)
	s.Update([]Change{{Frontend: dns, Endpoints: eps("10.0.0.1:53")}, {Frontend: node, Endpoints: eps("10.0.0.1:53")}}, time.Time{})
	check("taken back", EndpointGone)
}

// TestAnnouncedCommitFails: an announcement ends with the next one, or with an Update, whether its commit succeeded or
// not. A part of the commit may have reached the kernel, so its flows are checked and nothing is kept after that.
func TestAnnouncedCommitFails(t *testing.T) {
	web, dns := front(UDP, "10.96.0.2:80"), front(UDP, "10.96.0.1:53")
	toNew := flow(UDP, "10.1.0.1:1", "10.96.0.1:53", "10.0.0.2:53")
	for name, end := range map[string]func(*State){
		"next announcement": func(s *State) { s.Announce([]Change{{Frontend: web, Endpoints: eps("10.0.0.1:80")}}, time.Time{}) },
		"next update":       func(s *State) { s.Update([]Change{{Frontend: web, Endpoints: eps("10.0.0.1:80")}}, time.Time{}) },
	} {
		for _, had := range []bool{false, true} {
			s := NewState(Scope{})
			s.started = true
			want := FrontendGone
			if had {
				want = EndpointGone
				s.Update([]Change{{Frontend: dns, Endpoints: eps("10.0.0.1:53")}}, time.Time{})
			}
			s.Announce([]Change{{Frontend: dns, Endpoints: eps("10.0.0.2:53")}}, time.Time{})
			if got := s.Reason(&toNew); got != Keep {
				t.Errorf("%s: %v while the commit runs", name, got)
			}
			end(s)
			if got := s.Reason(&toNew); got != want {
				t.Errorf("%s: %v after the commit failed, want %v", name, got, want)
			}
			d, _ := s.Due(time.Time{})
			if d.checks[dns] == nil {
				t.Errorf("%s: no check of the frontend", name)
			}
			for range s.CheckTimes {
				d, _ := s.Due(time.Time{}.Add(time.Hour))
				s.Done(d, true, time.Time{}.Add(time.Hour), time.Time{}.Add(time.Hour))
			}
			s.Update([]Change{{Frontend: web, Removed: true}, {Frontend: dns, Removed: true}}, time.Time{})
			d, _ = s.Due(time.Time{}.Add(time.Hour))
			s.Done(d, true, time.Time{}.Add(time.Hour), time.Time{}.Add(time.Hour))
			if n := len(s.announced) + len(s.offers) + len(s.former) + len(s.checks); n != 0 {
				t.Errorf("%s: %d entries are kept: %+v", name, n, s)
			}
		}
	}
}

// model is the slow and obvious form of Reason: lists, and the rules as sentences.
type model struct {
	scope                      Scope
	offered, former, announced []Change
	nodes                      []netip.Addr
}

// uses reports whether a flow to dst uses the frontend, by address or as a NodePort.
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

func (m *model) reason(f *Flow) Reason {
	interesting := f.Proto == UDP || f.Proto == TCP || f.Proto == SCTP && m.scope.SCTP
	if !interesting || m.scope.Zone != f.Zone {
		return Keep
	}
	mayMove := f.Proto == UDP || f.Proto == SCTP ||
		m.scope.TCP && f.TCPState != 7 && f.TCPState != 8
	for _, c := range m.announced {
		if exact, node := m.usesAnnounced(c, f); (exact || node) && slices.Contains(c.Endpoints, f.ReplySrc) {
			return Keep
		}
	}
	if o := m.find(m.offered, f); o != nil {
		stay := o.Endpoints
		if f.Proto != UDP {
			stay = slices.Concat(stay, o.Unready)
		}
		switch {
		case slices.Contains(stay, f.ReplySrc):
			return Keep
		case f.ReplySrc == f.Dst && (o.Untranslated || f.Proto == TCP && f.TCPState != 1 || f.Proto == SCTP && f.Replied):
			return Keep
		case f.ReplySrc == f.Dst:
			return Untranslated
		case !mayMove:
			return Keep
		case len(stay) == 0:
			return NoEndpoints
		}
		return EndpointGone
	}
	if f.ReplySrc == f.Dst || !mayMove {
		return Keep
	}
	for _, c := range m.former {
		had := c.Endpoints
		if f.Proto != UDP {
			had = slices.Concat(had, c.Unready)
		}
		if exact, node := m.uses(c, f); (exact || node) && slices.Contains(had, f.ReplySrc) {
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
	}
	defer m.announce(nil) // what is left belongs to a commit that failed
	for _, c := range changes {
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

// announce replaces what is announced.
func (m *model) announce(changes []Change) {
	was := m.announced
	m.announced = nil
	for _, c := range changes { // the last one counts
		if !c.Removed && len(c.Endpoints) > 0 {
			m.announced = slices.DeleteFunc(m.announced, func(a Change) bool { return a.Frontend == c.Frontend })
			m.announced = append(m.announced, c)
		}
	}
	for _, c := range was {
		again := slices.ContainsFunc(m.announced, func(a Change) bool {
			return a.Frontend == c.Frontend && slices.Equal(ordered(a.Endpoints), ordered(c.Endpoints))
		})
		offered := slices.ContainsFunc(m.offered, func(o Change) bool { return o.Frontend == c.Frontend })
		if !again && !offered {
			c.Unready = nil
			m.former = append(m.former, c)
		}
	}
}

// dice makes small worlds, in which the same values occur often.
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
		for range d.IntN(2) {
			c.Unready = append(c.Unready, d.endpoint())
		}
		all = append(all, c)
	}
	return all
}

func (d dice) scope() Scope {
	s := Scope{TCP: d.IntN(2) == 0, SCTP: d.IntN(2) == 0}
	if d.IntN(8) == 0 {
		s.Zone = 1
	}
	return s
}

func (d dice) flow() Flow {
	f := Flow{
		Src: ap("10.1.0.1:1000"), Dst: netip.AddrPortFrom(d.addr(), d.port()), ReplySrc: d.endpoint(),
		Replied: d.IntN(2) == 0, Zone: pick[uint16](d, 0, 0, 1),
		Proto: pick(d, d.proto(), d.proto(), d.proto(), Proto(1)), TCPState: uint8(d.IntN(10)),
	}
	if d.IntN(3) == 0 {
		f.ReplySrc = f.Dst
	}
	if f.Proto != TCP {
		f.TCPState = 0
	}
	return f
}

// againstModel plays one random history on the table and the model, and compares them on random flows.
func againstModel(seed uint64) error {
	d := dice{rand.New(rand.NewPCG(seed, 1))}
	scope := d.scope()
	s, m := NewState(scope), &model{scope: scope}
	for range 1 + d.IntN(4) {
		m.nodes = []netip.Addr{d.addr(), d.addr()}
		s.SetNodePortAddrs(m.nodes, time.Time{})
		next := d.changes()
		if d.IntN(3) == 0 {
			s.Announce(next, time.Time{})
			m.announce(next)
		} else {
			s.Update(next, time.Time{})
			m.apply(next)
		}
		for range 20 {
			f := d.flow()
			if got, want := s.Reason(&f), m.reason(&f); got != want {
				return fmt.Errorf("%+v: %v, the model has %v\nmodel %+v", f, got, want, m)
			}
		}
	}
	return nil
}

// TestReasonModel compares Reason with the model in random worlds.
func TestReasonModel(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for i := range uint64(5_000) {
		if err := againstModel(base + i); err != nil {
			t.Fatalf("seed %d: %v", base+i, err)
		}
	}
}

// FuzzReason is TestReasonModel for go test -fuzz, with the seed of the world as its input.
func FuzzReason(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		if err := againstModel(seed); err != nil {
			t.Error(err)
		}
	})
}
