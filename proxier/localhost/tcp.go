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
)

// dialTimeout is how long the way to an endpoint may take. A SYN that is dropped is sent again after 1, 3 and 7
// seconds: the third try is waited for.
const dialTimeout = 10 * time.Second

// acceptPause is the wait after an accept that failed for want of descriptors or memory.
const acceptPause = 50 * time.Millisecond

// tcpServer serves a TCP port.
type tcpServer struct {
	*Forwarder
	listener *net.TCPListener
	to       atomic.Pointer[netip.AddrPort]
	conns    atomic.Int64
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
		case err == nil:
			s.take(ctx, conn)
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

// take forwards a connection unless there are too many.
func (s *tcpServer) take(ctx context.Context, conn *net.TCPConn) {
	all, here := s.count.connections.Add(1), s.conns.Add(1)
	release := func() {
		s.conns.Add(-1)
		s.count.connections.Add(-1)
	}
	if all > int64(s.opt.Limits.Connections) || here > int64(s.opt.Limits.PerPort) {
		s.count.refused.Add(1)
		release() // first, so that who sees the reset finds room if there is any
		reset(conn)
		return
	}
	s.running.Go(func() {
		defer release()
		forward(ctx, conn, *s.to.Load())
	})
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

// pipe copies one way to the end and passes the end on. An error means that something was lost, so that both ends
// must see a reset and not an end.
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
