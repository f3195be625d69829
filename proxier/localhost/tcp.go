// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout bounds the connect to an endpoint. A SYN that is lost is sent again after 1, 3 and 7 seconds, so this
	// leaves time for the answer to the third repetition.
	dialTimeout = 10 * time.Second
	// acceptPause is the wait after an accept that failed for want of descriptors or memory.
	acceptPause = 50 * time.Millisecond
	// minSilence is how long a connection has to be silent before it can be closed for a new one: longer than a client
	// waits for the answer to a request.
	minSilence = time.Minute
)

// tcpServer serves a TCP port.
type tcpServer struct {
	*Forwarder
	listener *net.TCPListener
	to       atomic.Pointer[netip.AddrPort]
	closed   chan struct{}
}

func (f *Forwarder) serveTCP(ctx context.Context, p Port, to netip.AddrPort) (server, error) {
	lc := loopbackOnly()
	l, err := lc.Listen(ctx, network("tcp", p.IPv6), p.Addr().String())
	if err != nil {
		return nil, err
	}
	s := &tcpServer{Forwarder: f, listener: l.(*net.TCPListener), closed: make(chan struct{})}
	s.to.Store(&to)
	f.running.Go(func() { s.accept(ctx) })
	return s, nil
}

func (s *tcpServer) retarget(to netip.AddrPort) { s.to.Store(&to) }

func (s *tcpServer) close() {
	close(s.closed)
	_ = s.listener.Close()
}

// accept takes connections until the listener is closed.
func (s *tcpServer) accept(ctx context.Context) {
	for {
		conn, err := s.listener.AcceptTCP()
		switch {
		case err == nil && s.conns.add(conn, s):
			s.running.Go(func() {
				forward(ctx, conn, *s.to.Load())
				s.conns.remove(conn)
			})
		case err == nil:
			reset(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-s.closed:
			case <-time.After(acceptPause):
			}
		}
	}
}

// conns are the TCP connections of all ports. All clients of a loopback address look the same, so the limits are per
// port and in all, and idle connections make room for new ones.
type conns struct {
	limits Limits
	count  *counters
	// silence returns how long a connection carried no data: [silence] outside tests.
	silence func(*net.TCPConn) time.Duration

	mu   sync.Mutex
	open map[*net.TCPConn]*tcpServer
}

// add counts a connection to a server. If there are too many, the one that is silent for longest is reset; if none is
// silent, the new one is refused.
func (l *conns) add(conn *net.TCPConn, s *tcpServer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.makeRoom(l.limits.PerPort, func(o *tcpServer) bool { return o == s }) ||
		!l.makeRoom(l.limits.Connections, func(*tcpServer) bool { return true }) {
		l.count.refused.Add(1)
		return false
	}
	l.open[conn] = s
	l.count.connections.Add(1)
	return true
}

// makeRoom reports whether one more connection to certain servers is within a limit, after a reset if need be.
func (l *conns) makeRoom(limit int, of func(*tcpServer) bool) bool {
	n := 0
	for _, s := range l.open {
		if of(s) {
			n++
		}
	}
	if n < limit {
		return true
	}
	var idlest *net.TCPConn
	longest := minSilence
	for conn, s := range l.open {
		if silence := l.silence(conn); of(s) && silence >= longest {
			idlest, longest = conn, silence
		}
	}
	if idlest == nil {
		return false
	}
	l.count.refused.Add(1)
	l.resetLocked(idlest)
	return true
}

// sweep resets the connections that were silent for too long.
func (l *conns) sweep(idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		if l.silence(conn) >= idle {
			l.resetLocked(conn)
		}
	}
}

// resetLocked ends a connection. Its goroutines end by errors.
func (l *conns) resetLocked(conn *net.TCPConn) {
	l.removeLocked(conn)
	reset(conn)
}

func (l *conns) remove(conn *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(conn)
}

func (l *conns) removeLocked(conn *net.TCPConn) {
	if _, ok := l.open[conn]; ok {
		delete(l.open, conn)
		l.count.connections.Add(-1)
	}
}

// silence returns how long a connection carried no data in either direction, by the kernel's account (TCP_INFO, in
// milliseconds): the data itself is copied by splice and seen by nobody here. It is 0 if the kernel does not say.
func silence(conn *net.TCPConn) (d time.Duration) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			d = time.Duration(min(info.Last_data_recv, info.Last_data_sent)) * time.Millisecond
		}
	})
	return d
}

// forward connects a client to an address and copies both ways until both have ended, one is broken, or ctx ends.
func forward(ctx context.Context, client *net.TCPConn, to netip.AddrPort) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		reset(client)
		return
	}
	service := conn.(*net.TCPConn)
	abort := func() { reset(client); reset(service) }
	stop := context.AfterFunc(ctx, abort)
	defer stop()
	answered := make(chan error, 1)
	go func() { answered <- pipe(client, service, abort) }()
	if errors.Join(pipe(service, client, abort), <-answered) == nil {
		_ = client.Close()
		_ = service.Close()
	}
}

// pipe copies one way to the end and passes the end on. After an error both ends have to see a reset and not an end,
// because something was lost.
func pipe(to, from *net.TCPConn, abort func()) error {
	_, err := io.Copy(to, from) // by splice, in the kernel
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		abort()
	}
	return err
}

// reset closes a connection so that the peer sees a reset: what it sent may not have arrived.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
