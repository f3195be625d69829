// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// retryListen is the time between two attempts to bind, kube-proxy's.
const retryListen = 5 * time.Second

// Server is one HTTP server on one address, run as kube-proxy runs its health and metrics servers: an address that
// cannot be bound is tried again every few seconds, unless that is to be fatal.
type Server struct {
	Name    string // for errors: "healthz"
	Addr    string // IP:port; an unspecified IPv4 address takes both families
	Handler http.Handler
	// HardFail makes the first failure final.
	HardFail bool
	// Failed is called with each failure that will be retried; may be nil.
	Failed func(error)

	retry time.Duration // replaces retryListen in tests
}

// Run serves until ctx is done, when it returns nil, having closed every connection. Any other return is a failure
// under HardFail.
func (s Server) Run(ctx context.Context) error {
	if s.retry == 0 {
		s.retry = retryListen
	}
	for {
		err := s.serve(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctx ended the server
		case s.HardFail:
			return err
		case s.Failed != nil:
			s.Failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.retry):
		}
	}
}

// serve binds once and serves until it fails or ctx is done; the error is never nil.
func (s Server) serve(ctx context.Context) error {
	var lc net.ListenConfig
	inner, err := lc.Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("%s server on %s: %w", s.Name, s.Addr, err)
	}
	connections := newPool(maxServer)
	server := connections.server(s.Handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(&listener{Listener: inner, pool: connections, max: maxServer})
	return fmt.Errorf("%s server on %s: %w", s.Name, s.Addr, err)
}

// The limits of all servers. The health port is open to the network, and the process is the last that the kernel kills
// for memory (oom_score_adj).
const (
	// maxHeader is far above what load balancers, the kubelet and Prometheus send.
	maxHeader = 8 << 10
	// A request of one packet is read at once; an answer of 10 MB (metrics of 30,000 counted Services) takes 30 s at
	// 2.5 Mbit/s. net/http/pprof extends the write timeout by the length of a profile.
	readTimeout, writeTimeout = 5 * time.Second, 30 * time.Second
	// idleTimeout: load balancers and Prometheus return within half a minute.
	idleTimeout = time.Minute
	// maxServer limits the connections of one Server, maxService those of one health check node port and maxServices
	// those of all. 128 connections with headers of full size took 6 MiB.
	maxServer, maxService, maxServices = 128, 32, 512
)

// pool limits the connections of one http.Server. A new connection is always accepted: above a limit the pool closes
// one that is idle, of the client address with the most connections, the longest unused first. A client that holds
// connections can so not keep the kubelet out. golang.org/x/net/netutil's LimitListener would: it stops to accept.
type pool struct {
	max int

	mu      sync.Mutex
	conns   map[*conn]struct{}
	sources map[netip.Addr]int // connections by client address
	clock   uint64             // counts uses
}

// newPool returns a pool for at most max connections, or an eighth of the process's file descriptors if that is less:
// the kernel sockets and the API connection keep theirs.
func newPool(max int) *pool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		max = int(min(uint64(max), limit.Cur/8))
	}
	return &pool{max: max, conns: map[*conn]struct{}{}, sources: map[netip.Addr]int{}}
}

// connKey finds the conn in a request's context.
type connKey struct{}

// server returns an http.Server with all limits. Serve only listeners of p.
func (p *pool) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c, ok := r.Context().Value(connKey{}).(*conn); ok {
				p.use(c, true)
				defer p.use(c, false)
			}
			h.ServeHTTP(w, r)
		}),
		MaxHeaderBytes: maxHeader,
		ReadTimeout:    readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// listener is a listener whose connections the pool limits.
type listener struct {
	net.Listener
	pool    *pool
	max     int       // connections of this listener
	service *instance // of a health check node port, else nil
	open    int       // under pool.mu
}

// conn is a connection of a listener. Its fields are under pool.mu.
type conn struct {
	net.Conn
	listener *listener
	source   netip.Addr
	busy     bool   // a request is being answered
	used     uint64 // when, by pool.clock
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, listener: l}
	if a, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
		c.source = a.AddrPort().Addr().Unmap()
	}
	if victim := l.pool.add(c); victim != nil {
		_ = victim.Close()
	}
	return c, nil
}

// add takes a connection in, and returns the one to close for it, if any.
func (p *pool) add(c *conn) (victim *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch l := c.listener; {
	case l.open >= l.max:
		victim = p.victim(l)
	case len(p.conns) >= p.max:
		victim = p.victim(nil)
	}
	if victim != nil {
		p.remove(victim)
	}
	p.clock++
	c.used = p.clock
	p.conns[c] = struct{}{}
	p.sources[c.source]++
	c.listener.open++
	return victim
}

// victim chooses the connection to close, of one listener or, with nil, of all.
func (p *pool) victim(of *listener) (worst *conn) {
	for c := range p.conns {
		if (of == nil || c.listener == of) && (worst == nil || p.before(c, worst)) {
			worst = c
		}
	}
	return worst
}

// before reports whether a is to be closed rather than b: an idle one, of the client address with more connections,
// that was used longer ago.
func (p *pool) before(a, b *conn) bool {
	switch x, y := p.sources[a.source], p.sources[b.source]; {
	case a.busy != b.busy:
		return b.busy
	case x != y:
		return x > y
	}
	return a.used < b.used
}

// remove forgets a connection, once.
func (p *pool) remove(c *conn) {
	if _, ok := p.conns[c]; !ok {
		return
	}
	delete(p.conns, c)
	c.listener.open--
	if p.sources[c.source]--; p.sources[c.source] == 0 {
		delete(p.sources, c.source)
	}
}

// use notes that a request begins or ends.
func (p *pool) use(c *conn, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock++
	c.busy, c.used = busy, p.clock
}

// Close implements net.Conn.
func (c *conn) Close() error {
	p := c.listener.pool
	p.mu.Lock()
	p.remove(c)
	p.mu.Unlock()
	return c.Conn.Close()
}
