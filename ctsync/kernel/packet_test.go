// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/ctsync"
)

// node is a network namespace with a client, two endpoints and the rules of a proxy, all on the loopback device.
type node struct {
	t      *testing.T
	client netip.Addr
	vip    netip.AddrPort // of a UDP and of a TCP frontend
	eps    [2]netip.AddrPort
	s      *Syncer
	asked  uint32 // number of the last question

	mu     sync.Mutex
	passes []Pass
	passed chan struct{} // one slot: there is a new pass
}

// patience bounds the wait for what takes milliseconds on an idle machine. No test measures it.
const patience = time.Minute

// newNode makes the namespace and starts a Syncer that knows both endpoints.
func newNode(t *testing.T, v6 bool, opts Options) *node {
	t.Helper()
	n := &node{t: t, passed: make(chan struct{}, 1)}
	opts.NetNS = newNS(t)
	opts.OnPass = func(p Pass) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.passes = append(n.passes, p)
		select {
		case n.passed <- struct{}{}:
		default:
		}
	}
	n.address(v6)
	n.rules(0)
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	n.s = s
	s.state.CheckTimes = []time.Duration{0, 25 * time.Millisecond, 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	n.update(0, 1)
	s.Resync()
	return n
}

// address gives the namespace its addresses.
func (n *node) address(v6 bool) {
	n.client, n.vip = netip.MustParseAddr("10.0.0.1"), ap("10.96.0.10:53")
	n.eps = [2]netip.AddrPort{ap("10.0.0.11:5353"), ap("10.0.0.12:5353")}
	bits, route := "/32", "10.96.0.0/16"
	if v6 {
		n.client, n.vip = netip.MustParseAddr("fd00::1"), ap("[fd00:96::10]:53")
		n.eps = [2]netip.AddrPort{ap("[fd00::11]:5353"), ap("[fd00::12]:5353")}
		bits, route = "/128", "fd00:96::/64"
	}
	run(n.t, "", "ip", "link", "set", "lo", "up")
	for _, a := range []netip.Addr{n.client, n.eps[0].Addr(), n.eps[1].Addr()} {
		run(n.t, "", "ip", "addr", "add", a.String()+bits, "dev", "lo", "nodad") // usable at once
	}
	run(n.t, "", "ip", "route", "add", route, "dev", "lo")
}

// rules commits a ruleset that sends new flows to endpoint i, or refuses them if it is -1.
func (n *node) rules(i int) {
	n.t.Helper()
	family, dnat := "ip", ""
	if n.vip.Addr().Is6() {
		family = "ip6"
	}
	if i >= 0 {
		dnat = fmt.Sprintf("add rule %[1]s t dstnat %[1]s daddr %[2]s meta l4proto { tcp, udp } th dport %[3]d dnat to %[4]s", family, n.vip.Addr(), n.vip.Port(), n.eps[i])
	}
	// The hooks stay: the kernel drops what is held in a queue when any hook goes.
	run(n.t, fmt.Sprintf(`
		add table %[1]s t
		add chain %[1]s t dstnat { type nat hook output priority -100; }
		add chain %[1]s t unserved { type filter hook output priority 0; }
		flush chain %[1]s t dstnat
		flush chain %[1]s t unserved
		add rule %[1]s t unserved %[1]s daddr %[3]s ct state new meta l4proto tcp reject with tcp reset
		add rule %[1]s t unserved %[1]s daddr %[3]s ct state new reject
		%[2]s`, family, dnat, n.vip.Addr()), "nft", "-f", "-")
}

// update reports that both frontends now have the given endpoints.
func (n *node) update(list ...int) {
	var good []netip.AddrPort
	for _, i := range list {
		good = append(good, n.eps[i])
	}
	n.s.Update([]ctsync.Change{
		{Frontend: ctsync.Frontend{Addr: n.vip.Addr(), Port: n.vip.Port(), Proto: ctsync.UDP}, Endpoints: good},
		{Frontend: ctsync.Frontend{Addr: n.vip.Addr(), Port: n.vip.Port(), Proto: ctsync.TCP}, Endpoints: good},
	})
}

// await waits until the passes since the last call of finish fulfil a condition.
func (n *node) await(what string, ok func([]Pass) bool) {
	n.t.Helper()
	for deadline := time.After(patience); ; {
		n.mu.Lock()
		passes := n.passes
		n.mu.Unlock()
		if ok(passes) {
			return
		}
		select {
		case <-n.passed:
		case <-deadline:
			n.t.Fatalf("no %s after %d passes", what, len(passes))
		}
	}
}

// finish waits for the last pass, and returns all since the last call.
func (n *node) finish() []Pass {
	n.t.Helper()
	n.await("end of the passes", func([]Pass) bool {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		return n.s.state.Idle()
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	passes := n.passes
	n.passes = nil
	for _, p := range passes {
		if p.Err != nil || p.Failed != 0 || p.GivenUp != 0 {
			n.t.Errorf("pass %+v", p)
		}
	}
	return passes
}

// deleted is the sum of the passes, for one reason.
func deleted(passes []Pass, r ctsync.Reason) (sum int) {
	for _, p := range passes {
		sum += p.Stale[r]
	}
	return sum
}

// serveUDP answers each datagram with the number of the endpoint and the datagram.
func (n *node) serveUDP(i int) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(n.eps[i]))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 16)
		for {
			k, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(append(fmt.Append(nil, i), b[:k]...), from)
		}
	}()
}

// dialUDP returns the one socket of a client.
func (n *node) dialUDP() *net.UDPConn {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.client, 0)), net.UDPAddrFromAddrPort(n.vip))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// question returns a datagram that no other one equals.
func (n *node) question() []byte {
	n.asked++
	return binary.BigEndian.AppendUint32(nil, n.asked)
}

// ask sends a datagram and returns who answers it within a time: "0", "1", "refused" or "nobody".
func (n *node) ask(c *net.UDPConn, within time.Duration) string {
	n.t.Helper()
	q, b := n.question(), make([]byte, 16)
	_ = c.SetReadDeadline(time.Now().Add(within))
	for range 2 { // the refusal of a datagram before may still be queued on the socket
		if _, err := c.Write(q); err != nil {
			continue
		}
		for {
			k, err := c.Read(b)
			switch {
			case errors.Is(err, syscall.ECONNREFUSED):
				return "refused"
			case errors.Is(err, os.ErrDeadlineExceeded):
				return "nobody"
			case err != nil:
				return err.Error()
			case bytes.Equal(b[1:k], q): // else a late answer to an earlier question
				return string(b[:1])
			}
		}
	}
	return "refused"
}

// until asks until the wanted answer comes.
func (n *node) until(c *net.UDPConn, want string) {
	n.t.Helper()
	var got string
	for begin := time.Now(); time.Since(begin) < patience; {
		if got = n.ask(c, time.Second); got == want {
			return
		}
	}
	n.t.Fatalf("the client reaches %s, want %s", got, want)
}

// TestStaleUDP: a client that keeps one socket follows the endpoints, in both families.
func TestStaleUDP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			n := newNode(t, v6, Options{})
			n.serveUDP(0)
			n.serveUDP(1)
			c := n.dialUDP()
			n.until(c, "0")
			n.finish()

			n.rules(1)
			if got := n.ask(c, patience); got != "0" { // the entry alone keeps it there
				t.Fatalf("without a pass: %s", got)
			}
			n.update(1)
			n.until(c, "1")
			if p := n.finish(); deleted(p, ctsync.EndpointGone) != 1 {
				t.Errorf("endpoint removed: %+v", p)
			}

			n.rules(-1)
			n.update()
			n.until(c, "refused")
			if p := n.finish(); deleted(p, ctsync.NoEndpoints) != 1 {
				t.Errorf("last endpoint removed: %+v", p)
			}

			n.rules(0)
			n.update(0)
			n.until(c, "0")
			n.update(0, 1)
			n.finish()
			if got := n.ask(c, patience); got != "0" {
				t.Errorf("endpoint added: %s", got)
			}
		})
	}
}

// TestStaleUntranslated: packets flowed to the address before it was ours.
func TestStaleUntranslated(t *testing.T) {
	n := newNode(t, false, Options{})
	n.s.Update([]ctsync.Change{{Frontend: ctsync.Frontend{Addr: n.vip.Addr(), Port: n.vip.Port(), Proto: ctsync.UDP}, Removed: true}})
	n.serveUDP(1)
	// These rules translate nothing and refuse nothing, but keep conntrack on.
	run(t, "flush chain ip t dstnat\nflush chain ip t unserved\nadd rule ip t unserved ct state new counter", "nft", "-f", "-")
	c := n.dialUDP()
	_, _ = c.Write([]byte("?"))
	n.finish()
	n.rules(1)
	if got := n.ask(c, 200*time.Millisecond); got == "1" {
		t.Fatal("the flow has no entry from before the rules")
	}
	n.update(1)
	n.until(c, "1")
	if p := n.finish(); deleted(p, ctsync.Untranslated) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestPacketInFlight provokes a race: the first packet of a flow is held back after the old rules chose an endpoint for
// it and before it enters the conntrack table. The rules change, the pass finds nothing, and then the packet goes on and
// its entry is created. The next pass deletes it; that there is one is for TestRace.
func TestPacketInFlight(t *testing.T) {
	n := newNode(t, false, Options{})
	n.serveUDP(0)
	n.serveUDP(1)
	n.finish()
	n.s.mu.Lock()
	n.s.state.CheckTimes = []time.Duration{0}
	n.s.mu.Unlock()
	q := openQueue(t)
	q.hold(n.eps[0].Port())
	c := n.dialUDP()
	first := n.question()
	if _, err := c.Write(first); err != nil {
		t.Fatal(err)
	}
	id := q.take()
	n.rules(1)
	n.update(1)
	if p := n.finish(); len(p) == 0 || deleted(p, ctsync.EndpointGone) != 0 {
		t.Fatalf("the entry exists already: %+v", p)
	}
	q.release(id)
	b := make([]byte, 16)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if k, err := c.Read(b); err != nil || string(b[:k]) != "0"+string(first) {
		t.Fatalf("the packet held back: %q, %v", b[:k], err)
	}
	n.s.Resync()
	if p := n.finish(); deleted(p, ctsync.EndpointGone) != 1 {
		t.Errorf("the entry from after the pass stays: %+v", p)
	}
	second := n.question()
	if _, err := c.Write(second); err != nil {
		t.Fatal(err)
	}
	q.release(q.take())
	if k, err := c.Read(b); err != nil || string(b[:k]) != "1"+string(second) {
		t.Errorf("after the last pass: %q, %v", b[:k], err)
	}
}

// serveTCP accepts connections and greets them.
func (n *node) serveTCP(i int) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(n.eps[i]))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		var open []net.Conn // one that nobody holds is closed by the garbage collector
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c)
			_, _ = c.Write(fmt.Append(nil, i))
		}
	}()
}

// dialTCP connects to the VIP and reads the greeting.
func (n *node) dialTCP(want string) *net.TCPConn {
	n.t.Helper()
	c, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(n.client, 0)), net.TCPAddrFromAddrPort(n.vip))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil || string(b) != want {
		n.t.Fatalf("greeted by %q, %v, want %s", b, err, want)
	}
	return c
}

// TestTCPReset: the client of a deleted connection notices, when it sends, or at once if that is wanted.
func TestTCPReset(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, to := range []int{1, -1} { // another endpoint, or none
			for _, reset := range []bool{false, true} {
				t.Run(fmt.Sprintf("v6=%v to=%d reset=%v", v6, to, reset), func(t *testing.T) {
					n := newNode(t, v6, Options{Scope: ctsync.Scope{TCP: true}, Reset: reset})
					tcpReset(n, to, reset)
				})
			}
		}
	}
}

func tcpReset(n *node, to int, reset bool) {
	n.serveTCP(0)
	n.serveTCP(1)
	gone, stays := n.dialTCP("0"), n.dialTCP("0")
	n.finish()
	n.rules(to)
	n.update(0, 1)
	n.finish()
	want := ctsync.EndpointGone
	if to < 0 {
		want = ctsync.NoEndpoints
		n.update()
	} else {
		n.update(to)
	}
	wait := patience
	if !reset {
		wait = 100 * time.Millisecond // it does not notice by itself
	}
	_ = gone.SetReadDeadline(time.Now().Add(wait))
	_, err := gone.Read(make([]byte, 1))
	if noticed := errors.Is(err, syscall.ECONNRESET); noticed != reset {
		n.t.Errorf("reading: %v", err)
	}
	p := n.finish()
	if deleted(p, want) != 2 {
		n.t.Errorf("passes %+v", p)
	}
	if reset {
		return
	}
	_, _ = stays.Write([]byte("x"))
	_ = stays.SetReadDeadline(time.Now().Add(patience))
	if _, err := stays.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		n.t.Errorf("after sending: %v", err)
	}
}

// TestNotOurs: a pass over everything deletes the one entry that is stale and leaves what belongs to others, however
// much it looks like flows of our frontends.
func TestNotOurs(t *testing.T) {
	ns := newNS(t)
	k := openTest(t, ns)
	dns, node := front(ctsync.UDP, "10.96.0.10:53"), front(ctsync.UDP, "0.0.0.0:30053")
	sig := front(ctsync.SCTP, "10.96.0.10:5000")
	zone := func(f ctsync.Flow, z uint16) ctsync.Flow { f.Zone = z; return f }
	syn := with(flow(ctsync.TCP, "10.1.0.1:1002", "10.96.0.11:80", ""), func(f *ctsync.Flow) { f.TCPState, f.Replied = ctsync.TCPSynSent, false })
	stale := flow(ctsync.UDP, "10.1.0.1:1000", "10.96.0.10:53", "10.244.0.9:53")
	for name, f := range map[string]ctsync.Flow{
		"stale": stale,
		"ClusterIP, untranslated in a switch's zone":  zone(flow(ctsync.UDP, "10.1.0.1:1001", "10.96.0.10:53", ""), 65520),
		"connect, untranslated in a switch's zone":    zone(syn, 65520),
		"NodePort, translated in a switch's zone":     zone(flow(ctsync.UDP, "10.1.0.1:1003", "192.168.0.1:30053", "10.244.0.9:53"), 64000),
		"ClusterIP that another proxy serves":         flow(ctsync.UDP, "10.1.0.1:1004", "10.96.0.99:53", "10.244.0.9:53"),
		"our NodePort's number at another address":    flow(ctsync.UDP, "10.1.0.1:1005", "192.0.2.5:30053", "172.17.0.2:53"),
		"our NodePort's number at a loopback address": flow(ctsync.UDP, "127.0.0.1:1006", "127.0.0.1:30053", "172.17.0.2:53"),
		"association to an endpoint not ready":        flow(ctsync.SCTP, "10.1.0.1:1007", "10.96.0.10:5000", "10.244.0.2:5000"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Options{NetNS: ns, Scope: ctsync.Scope{SCTP: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.table.close()
			k.create(t, f)
			s.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			s.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
			s.Update([]ctsync.Change{
				{Frontend: dns, Endpoints: eps("10.244.0.1:53")}, {Frontend: node, Endpoints: eps("10.244.0.1:53")},
				{Frontend: sig, Endpoints: eps("10.244.0.1:5000"), Unready: eps("10.244.0.2:5000")},
				{Frontend: front(ctsync.TCP, "10.96.0.11:80"), Endpoints: eps("10.244.0.1:80")},
			})
			s.Resync()
			due, _ := s.state.Due(time.Now())
			p := s.pass(t.Context(), &due)
			want := 0
			if f == stale {
				want = 1
			}
			if p.Err != nil || p.Deleted() != want || p.Scanned == 0 {
				t.Errorf("%d entries deleted, want %d: %+v", p.Deleted(), want, p)
			}
		})
	}
}
