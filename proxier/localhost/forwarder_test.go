// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// patience is for what takes far less on an idle machine.
const patience = 20 * time.Second

// report is one call of Options.Report.
type report struct {
	Port
	err error
}

// rig is a Forwarder that runs.
type rig struct {
	*Forwarder
	t       *testing.T
	reports chan report
	stop    func()
}

// start runs a Forwarder, after changes to it.
func start(t *testing.T, o Options, changes ...func(*Forwarder)) *rig {
	r := &rig{t: t, reports: make(chan report, 100)}
	o.Report = func(p Port, _ Target, err error) { r.reports <- report{p, err} }
	r.Forwarder = New(o)
	for _, change := range changes {
		change(r.Forwarder)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// until waits for a condition.
func (r *rig) until(what string, ok func(Stats) bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !ok(r.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not in time: %s; %+v", what, r.Stats())
		}
	}
}

var owner = kube.Name{Namespace: "default", Name: "web"}

// want adds a port and waits until it is open.
func (r *rig) want(p Port, to netip.AddrPort) {
	r.t.Helper()
	was := r.Stats()
	r.Update([]Change{{p, Target{owner, to}}})
	r.until("open", func(s Stats) bool {
		return s.ListenersIPv4+s.ListenersIPv6 == was.ListenersIPv4+was.ListenersIPv6+1
	})
}

// drop takes all ports away and waits until they are closed.
func (r *rig) drop(ports ...Port) {
	r.t.Helper()
	var changes []Change
	for _, p := range ports {
		changes = append(changes, Change{Port: p})
	}
	r.Update(changes)
	r.until("closed", func(s Stats) bool { return s.ListenersIPv4+s.ListenersIPv6 == 0 })
}

// freePort is one below those that the kernel gives to clients, and free at both loopback addresses.
func freePort(t *testing.T, proto kube.Proto, ipv6 bool) Port {
	t.Helper()
	for range 100 {
		p := Port{ipv6, proto, uint16(20000 + rand.IntN(10000))}
		tcp, err := net.Listen("tcp", p.Addr().String())
		if err != nil {
			continue
		}
		_ = tcp.Close()
		udp, err := net.ListenPacket("udp", p.Addr().String())
		if err != nil {
			continue
		}
		_ = udp.Close()
		return p
	}
	t.Fatal("no free port")
	return Port{}
}

func loopback(ipv6 bool) string { return Port{IPv6: ipv6}.Addr().String() }

// tcpBackend answers each connection by f.
func tcpBackend(t *testing.T, ipv6 bool, f func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", loopback(ipv6))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// dial connects to a port; the connection has a deadline.
func dial(t *testing.T, p Port) net.Conn {
	t.Helper()
	c, err := net.Dial(strings.ToLower(p.Proto.String()), p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// say sends a line and expects an answer.
func say(t *testing.T, c net.Conn, line, want string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || got != want+"\n" {
		t.Fatalf("%q is answered by %q (%v), want %q", line, got, err, want)
	}
}

func eachFamily(t *testing.T, f func(*testing.T, bool)) {
	for name, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) { f(t, ipv6) })
	}
}

// A client that ends its side still gets its answer, and the end of it.
func TestTCPHalfClose(t *testing.T) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		const size = 10 << 20
		to := tcpBackend(t, ipv6, func(c *net.TCPConn) {
			n, err := io.Copy(io.Discard, c)
			fmt.Fprintf(c, "%d %v", n, err)
		})
		r, p := start(t, Options{}), freePort(t, kube.TCP, ipv6)
		r.want(p, to)
		c := dial(t, p)
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprint(size, " <nil>") {
			t.Fatalf("got %q, %v", got, err)
		}
		r.until("forgotten", func(s Stats) bool { return s.Connections == 0 })
	})
}

// What breaks on one side breaks on the other, and is not taken for the end.
func TestTCPReset(t *testing.T) {
	abort := tcpBackend(t, false, func(c *net.TCPConn) {
		fmt.Fprint(c, "half an ans")
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	closed := freePort(t, kube.TCP, false).Addr()
	for name, to := range map[string]netip.AddrPort{"later": abort, "at once": closed} {
		r, p := start(t, Options{}), freePort(t, kube.TCP, false)
		r.want(p, to)
		if err := talk(p, to == abort); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
}

// talk connects to a port, reads the beginning of an answer if there is to be one, and speaks until the end. A reset may
// come as early as in connect.
func talk(p Port, answered bool) error {
	c, err := net.DialTimeout("tcp", p.Addr().String(), patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if answered {
		if _, err := io.ReadFull(c, make([]byte, len("half an ans"))); err != nil {
			return err
		}
	}
	_, _ = c.Write([]byte{0})
	_, err = io.ReadAll(c)
	return err
}

// A port that is not wanted any more is closed, and what is connected goes on; a new target is for new connections.
func TestTCPRemoval(t *testing.T) {
	answer := func(with string) netip.AddrPort {
		return tcpBackend(t, false, func(c *net.TCPConn) {
			for sc := bufio.NewScanner(c); sc.Scan(); {
				fmt.Fprintln(c, with+sc.Text())
			}
		})
	}
	r, p := start(t, Options{}), freePort(t, kube.TCP, false)
	r.want(p, answer("a"))
	old := dial(t, p)
	say(t, old, "1", "a1")
	other := answer("b")
	r.Update([]Change{{p, Target{owner, other}}})
	for deadline := time.Now().Add(patience); ; {
		c := dial(t, p)
		fmt.Fprintln(c, "x")
		if got, _ := bufio.NewReader(c).ReadString('\n'); got == "bx\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("connections do not go to the new target")
		}
	}
	r.drop(p)
	if c, err := net.Dial("tcp", p.Addr().String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port answers: %v %v", c, err)
	}
	say(t, old, "2", "a2")
	r.stop()
	if _, err := io.ReadAll(old); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after the end: %v, want a reset", err)
	}
}

func TestTCPLimits(t *testing.T) {
	to := tcpBackend(t, false, echo)
	r, p, q := start(t, Options{Limits: Limits{PerPort: 2, Connections: 3}}), freePort(t, kube.TCP, false), freePort(t, kube.TCP, false)
	r.want(p, to)
	r.want(q, to)
	refused := func(p Port) {
		t.Helper()
		if err := talk(p, false); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
	}
	first := dial(t, p)
	say(t, first, "x", "x")
	say(t, dial(t, p), "x", "x")
	refused(p)
	say(t, dial(t, q), "x", "x")
	refused(q)
	if s := r.Stats(); s.Refused != 2 || s.Connections != 3 {
		t.Errorf("%+v, want 2 refused of 5", s)
	}
	_ = first.Close()
	r.until("room", func(s Stats) bool { return s.Connections == 2 })
	say(t, dial(t, q), "x", "x")
}

// quiet is the silence of connections by the port of their client.
type quiet struct {
	mu    sync.Mutex
	times map[string]time.Duration
}

func (q *quiet) set(c net.Conn, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.times[c.LocalAddr().String()] = d
}

func (q *quiet) of(s session) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.times[s.(*tcpConn).RemoteAddr().String()]
}

// Past a limit the connection that is silent for longest makes room, of the port or of all; one that is used stays.
func TestTCPMakesRoom(t *testing.T) {
	q := &quiet{times: map[string]time.Duration{}}
	to := tcpBackend(t, false, echo)
	r := start(t, Options{Limits: Limits{PerPort: 2, Connections: 3}}, func(f *Forwarder) { f.connections.silence = q.of })
	one, two := freePort(t, kube.TCP, false), freePort(t, kube.TCP, false)
	r.want(one, to)
	r.want(two, to)
	open := func(p Port, silent time.Duration) net.Conn {
		t.Helper()
		c := dial(t, p)
		say(t, c, "x", "x")
		q.set(c, silent)
		return c
	}
	ended := func(c net.Conn) {
		t.Helper()
		if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
	}
	other := open(two, 3*minSilence)
	first, second := open(one, minSilence), open(one, 2*minSilence)
	third := open(one, minSilence-1) // the port is full
	ended(second)
	fourth := open(two, 0) // all is full
	ended(other)
	fifth := open(one, 0)
	ended(first)
	if err := talk(one, false); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("no other is silent for long enough: %v, want a reset", err)
	}
	for _, c := range []net.Conn{third, fourth, fifth} {
		say(t, c, "y", "y")
	}
	if s := r.Stats(); s.Connections != 3 || s.Refused != 4 {
		t.Errorf("%+v, want 3 connections, 4 refused or closed for others", s)
	}
}

// A connection that is silent for too long is reset, and no other one.
func TestTCPIdle(t *testing.T) {
	q := &quiet{times: map[string]time.Duration{}}
	r, p := start(t, Options{IdleTCP: 100 * time.Millisecond}, func(f *Forwarder) { f.connections.silence = q.of }), freePort(t, kube.TCP, false)
	r.want(p, tcpBackend(t, false, echo))
	idle, used := dial(t, p), dial(t, p)
	say(t, idle, "x", "x")
	say(t, used, "x", "x")
	q.set(idle, time.Hour)
	if _, err := io.ReadAll(idle); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
	say(t, used, "y", "y")
	if s := r.Stats(); s.Connections != 1 || s.Refused != 0 {
		t.Errorf("%+v, want one connection", s)
	}
}

// The kernel's account of silence: it grows while nothing is said, and what is said in either direction ends it.
func TestSilence(t *testing.T) {
	accepted := make(chan *tcpConn)
	to := tcpBackend(t, false, func(c *net.TCPConn) {
		accepted <- &tcpConn{c}
		echo(c)
	})
	c, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := <-accepted
	for deadline := time.Now().Add(patience); server.silence() < 50*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("silent for %v", server.silence())
		}
	}
	before := time.Now()
	say(t, c, "x", "x")
	if got := server.silence(); got > time.Since(before)+10*time.Millisecond { // the kernel counts in ticks of up to 10 ms
		t.Errorf("silent for %v after an answer", got)
	}
	_ = server.Close()
	if got := server.silence(); got != 0 {
		t.Errorf("a closed connection is silent for %v", got)
	}
}

// A port that another process has is reported once, and taken as soon as it is free.
func TestPortInUse(t *testing.T) {
	r, p := start(t, Options{Retry: time.Millisecond}), freePort(t, kube.TCP, false)
	taken, err := net.Listen("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	to := tcpBackend(t, false, echo)
	r.Update([]Change{{p, Target{owner, to}}})
	if got := <-r.reports; got.Port != p || !errors.Is(got.err, unix.EADDRINUSE) {
		t.Errorf("reported %v", got)
	}
	r.until("retries", func(s Stats) bool { return s.Failures > 5 })
	_ = taken.Close()
	if got := <-r.reports; got.Port != p || got.err != nil {
		t.Errorf("reported %v, want that it is open", got)
	}
	say(t, dial(t, p), "x", "x")

	// One that is not wanted any more is not tried again.
	r.drop(p)
	if taken, err = net.Listen("tcp", p.Addr().String()); err != nil {
		t.Fatal(err)
	}
	r.Update([]Change{{p, Target{owner, to}}})
	if got := <-r.reports; got.err == nil {
		t.Errorf("reported %v", got)
	}
	other := freePort(t, kube.TCP, false)
	r.Update([]Change{{Port: p}})
	r.want(other, to)
	tries := r.Stats().Failures
	_ = taken.Close()
	if c, err := net.Dial("tcp", p.Addr().String()); err == nil {
		t.Errorf("%s was opened", c.RemoteAddr())
	}
	if now := r.Stats().Failures; now != tries {
		t.Errorf("%d more tries", now-tries)
	}
}

func TestSCTPIsRefused(t *testing.T) {
	r := start(t, Options{})
	r.Update([]Change{{Port{Proto: kube.SCTP, Number: 30000}, Target{owner, netip.MustParseAddrPort("127.0.0.1:1")}}})
	if got := <-r.reports; !errors.Is(got.err, errProto) {
		t.Errorf("reported %v", got)
	}
}

// Listeners are bound to lo: whatever else the node is set to, nothing from the network reaches them.
func TestBoundToLoopback(t *testing.T) {
	lc := loopbackOnly()
	l, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if name, err := unix.GetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE); name != "lo" {
			t.Errorf("bound to %q (%v)", name, err)
		}
	})
}

// Nothing is left when Run has ended: no goroutine, no socket.
func TestEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	r := start(t, Options{})
	p, u := freePort(t, kube.TCP, false), freePort(t, kube.UDP, true)
	r.want(p, tcpBackend(t, false, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }))
	r.want(u, udpBackend(t, true, "u"))
	dial(t, p)
	say(t, dial(t, u), "x", "ux")
	r.until("connected", func(s Stats) bool { return s.Connections == 1 })
	r.stop()
	if s := r.Stats(); s.ListenersIPv4+s.ListenersIPv6+s.Connections+s.Clients != 0 {
		t.Errorf("left: %+v", s)
	}
	// The two backends, and the connection of one of them until it sees the reset.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before %d", runtime.NumGoroutine(), before)
		}
	}
}

// BenchmarkOpen opens 1,000 NodePorts of both families.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		f := New(Options{})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error)
		var changes []Change
		for i := range 1000 {
			for _, ipv6 := range []bool{false, true} {
				p := Port{ipv6, kube.TCP, uint16(20000 + i)}
				changes = append(changes, Change{p, Target{owner, p.Addr()}})
			}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		f.Update(changes)
		go func() { done <- f.Run(ctx) }()
		for s := (Stats{}); s.ListenersIPv4+s.ListenersIPv6+int(s.Failures) < len(changes); s = f.Stats() {
			runtime.Gosched()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		n := float64(f.Stats().ListenersIPv4 + f.Stats().ListenersIPv6)
		b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/n, "heap-B/listener")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/n, "stack-B/listener")
		cancel()
		<-done
	}
}

// BenchmarkConnection connects, says a line and closes.
func BenchmarkConnection(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	f := New(Options{})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	p := Port{false, kube.TCP, 20000}
	f.Update([]Change{{p, Target{owner, l.Addr().(*net.TCPAddr).AddrPort()}}})
	go func() { _ = f.Run(ctx) }()
	for f.Stats().ListenersIPv4 == 0 {
		runtime.Gosched()
	}
	for b.Loop() {
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		_, _ = c.Write([]byte{1})
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}
