// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// udpBackend answers each datagram with itself behind a name.
func udpBackend(t *testing.T, ipv6 bool, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", loopback(ipv6))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(name), buf[:n]...), from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// exchange sends a datagram and wants it back.
func exchange(t *testing.T, c net.Conn, fill byte, size int) {
	sent, buf := bytes.Repeat([]byte{fill}, size), make([]byte, maxDatagram)
	if _, err := c.Write(sent); err != nil {
		t.Error(err)
		return
	}
	if n, err := c.Read(buf); err != nil || !bytes.Equal(buf[:n], sent) {
		t.Errorf("client %d: %d bytes of %d, %v", fill, n, size, err)
	}
}

// Many clients at once get each their own answers, whatever their length.
func TestUDP(t *testing.T) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		r, p := start(t, Options{}), freePort(t, kube.UDP, ipv6)
		r.want(p, udpBackend(t, ipv6, ""))
		const clients = 20
		var wg sync.WaitGroup
		for i := range clients - 1 {
			c := dial(t, p)
			wg.Go(func() {
				for _, size := range []int{1, 0, 1400} {
					exchange(t, c, byte(i), size)
				}
			})
		}
		wg.Wait()
		exchange(t, dial(t, p), 'x', 65507) // the longest; several at once would not fit into a socket's buffer
		if s := r.Stats(); s.Clients != clients {
			t.Errorf("%+v, want %d clients", s, clients)
		}
	})
}

// Silence is measured by the monotonic clock: when the time of day is set, no client is forgotten or kept for that.
func TestUDPClock(t *testing.T) {
	f := New(Options{})
	if f.started == f.started.Round(0) { // Round removes the reading of the monotonic clock
		t.Errorf("%v has no reading of the monotonic clock", f.started)
	}
	c := &udpClient{server: &udpServer{Forwarder: f}}
	before := c.silence()
	if c.use(); before < 0 || c.silence() < 0 {
		t.Errorf("silent for %v, then %v", before, c.silence())
	}
}

// A client that is silent for long is forgotten, and does not count as one that had to make room.
func TestUDPIdle(t *testing.T) {
	r, p := start(t, Options{Idle: 50 * time.Millisecond}), freePort(t, kube.UDP, false)
	r.want(p, udpBackend(t, false, "u"))
	c := dial(t, p)
	for deadline := time.Now().Add(patience); ; { // an answer shows that there was a client
		_, _ = c.Write([]byte("x"))
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 10)); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	r.until("forgotten", func(s Stats) bool { return s.Clients == 0 })
	if s := r.Stats(); s.Forgotten != 0 {
		t.Errorf("%+v: counted as one that made room", s)
	}
}

// Each datagram, in either direction, ends the silence of its client.
func TestUDPUse(t *testing.T) {
	r, p := start(t, Options{}), freePort(t, kube.UDP, false)
	r.want(p, udpBackend(t, false, "u"))
	conn := dial(t, p)
	say(t, conn, "x", "ux")
	var c *udpClient
	for s := range r.sessions.open {
		c = s.(*udpClient)
	}
	for range 3 {
		used := c.used.Load()
		say(t, conn, "x", "ux")
		if c.used.Load() <= used {
			t.Errorf("used at %d, then at %d", used, c.used.Load())
		}
	}
	if n := len(r.sessions.open); n != 1 {
		t.Errorf("%d clients, want 1", n)
	}
}

// Past the limit the client that was silent for longest makes room; it comes back by its next datagram.
func TestUDPLimit(t *testing.T) {
	r, p := start(t, Options{Limits: Limits{Clients: 2}}), freePort(t, kube.UDP, false)
	r.want(p, udpBackend(t, false, "u"))
	var conns [3]net.Conn
	for i := range conns {
		conns[i] = dial(t, p)
		say(t, conns[i], "x", "ux")
	}
	if s := r.Stats(); s.Clients != 2 || s.Forgotten != 1 {
		t.Errorf("%+v, want 2 of 3 clients", s)
	}
	say(t, conns[2], "x", "ux") // is known
	say(t, conns[0], "x", "ux") // takes the place of the second
	if s := r.Stats(); s.Clients != 2 || s.Forgotten != 2 {
		t.Errorf("%+v, want 2 of 3 clients", s)
	}
}

// A new target is for every datagram from then on, and a closed port refuses.
func TestUDPRemoval(t *testing.T) {
	r, p := start(t, Options{}), freePort(t, kube.UDP, false)
	r.want(p, udpBackend(t, false, "a"))
	c := dial(t, p)
	say(t, c, "x", "ax")
	r.Update([]Change{{p, Target{owner, udpBackend(t, false, "b")}}})
	r.until("the client is forgotten", func(s Stats) bool { return s.Clients == 0 })
	say(t, c, "x", "bx")
	r.drop(p)
	r.until("the client is forgotten", func(s Stats) bool { return s.Clients == 0 })
	_, _ = c.Write([]byte("x"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%v, want a refusal", err)
	}
}

// An endpoint that refuses costs the datagrams that it refused, and not those after it.
func TestUDPRefused(t *testing.T) {
	r, p, backend := start(t, Options{}), freePort(t, kube.UDP, false), freePort(t, kube.UDP, false)
	r.want(p, backend.Addr())
	c := dial(t, p)
	arrives := func(datagram string) {
		t.Helper()
		l, err := net.ListenPacket("udp", backend.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, _ = c.Write([]byte(datagram))
		_ = l.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 10)
		if n, _, err := l.ReadFrom(buf); err != nil || string(buf[:n]) != datagram {
			t.Errorf("%q, %v", buf[:n], err)
		}
	}
	arrives("first")
	_, _ = c.Write([]byte("lost"))
	r.until("the client is forgotten", func(s Stats) bool { return s.Clients == 0 })
	arrives("kept")
}
