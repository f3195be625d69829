// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
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
	// minSilence is how long a connection has to be silent before it ends for a new one: longer than a client waits for
	// the answer to a request.
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
	l, err := lc.Listen(ctx, p.network("tcp"), p.Addr().String())
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
		client := &tcpConn{TCPConn: conn}
		switch {
		case err == nil && s.connections.add(client, s):
			s.running.Go(func() {
				defer s.connections.remove(client)
				client.forward(ctx, *s.to.Load())
			})
		case err == nil:
			client.end()
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

// tcpConn is a TCP connection from a client or to a Service.
type tcpConn struct{ *net.TCPConn }

// silence is the kernel's account (TCP_INFO, in milliseconds), since the data is copied by splice and not seen here. It
// is 0 if there is none.
func (c *tcpConn) silence() (d time.Duration) {
	raw, err := c.SyscallConn()
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

// end closes the connection so that the peer sees a reset, since what it sent may not have arrived. After a proper end
// it does nothing.
func (c *tcpConn) end() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// forward connects the client to an address and copies both ways until both have ended, one is broken, or ctx ends.
func (c *tcpConn) forward(ctx context.Context, to netip.AddrPort) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return
	}
	service := &tcpConn{TCPConn: conn.(*net.TCPConn)}
	abort := func() { c.end(); service.end() }
	stop := context.AfterFunc(ctx, abort)
	defer stop()
	answered := make(chan error, 1)
	go func() { answered <- pipe(c, service, abort) }()
	if errors.Join(pipe(service, c, abort), <-answered) == nil {
		_ = c.Close()
		_ = service.Close()
	}
}

// pipe copies one way to the end and passes the end on. After an error both ends have to see a reset and not an end,
// because something was lost.
func pipe(to, from *tcpConn, abort func()) error {
	_, err := io.Copy(to.TCPConn, from.TCPConn) // by splice, in the kernel
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		abort()
	}
	return err
}
