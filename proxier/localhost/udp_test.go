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

// A client that is silent for long is forgotten, one that is not is kept.
func TestUDPIdle(t *testing.T) {
	const idle = 300 * time.Millisecond
	r, p := start(t, Options{Idle: idle}), freePort(t, kube.UDP, false)
	sink, err := net.ListenPacket("udp", "127.0.0.1:0") // never answers
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	r.want(p, sink.LocalAddr().(*net.UDPAddr).AddrPort())
	c := dial(t, p)
	var from net.Addr
	begin, buf := time.Now(), make([]byte, 10)
	for time.Since(begin) < 3*idle {
		sent := time.Now()
		_, _ = c.Write([]byte("x"))
		_ = sink.SetReadDeadline(time.Now().Add(patience))
		_, now, err := sink.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if from != nil && now.String() != from.String() {
			t.Fatal("forgotten while it was sending")
		}
		from = now
		time.Sleep(idle / 20) // the client's own rhythm
		if time.Since(sent) > idle/2 {
			begin, from = time.Now(), nil // the machine was not there
		}
	}
	r.until("forgotten", func(s Stats) bool { return s.Clients == 0 })
	if s := r.Stats(); s.Forgotten != 0 {
		t.Errorf("%+v: counted as one that made room", s)
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
