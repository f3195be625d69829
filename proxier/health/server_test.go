// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// occupy binds a port below the ephemeral range, where no outgoing connection
// takes it once it is free again.
func occupy(t *testing.T) net.Listener {
	t.Helper()
	for range 1000 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))); err == nil {
			return l
		}
	}
	t.Fatal("no free port")
	return nil
}

func saying(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

// TestRetry: the port is taken at first; the server reports it, tries again,
// serves, and ends with its context.
func TestRetry(t *testing.T) {
	other := occupy(t)
	addr := other.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	failed := make(chan error, 1)
	done := make(chan error, 1)
	s := Server{Name: "test", Addr: addr, Handler: saying("hello"), retry: time.Millisecond, Failed: func(err error) {
		select {
		case failed <- err:
		default:
		}
	}}
	go func() { done <- s.Run(ctx) }()
	if err := <-failed; !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "test server on "+addr) {
		t.Errorf("failure %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, ctx, addr); got != "hello" {
		t.Errorf("got %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if l, err := net.Listen("tcp", addr); err != nil {
		t.Errorf("the port was not freed: %v", err)
	} else {
		_ = l.Close()
	}
}

// fetch sends requests until one is answered.
func fetch(t *testing.T, ctx context.Context, addr string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			continue
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	t.Fatal("no answer")
	return ""
}

// TestHardFail: the first failure ends it.
func TestHardFail(t *testing.T) {
	other := occupy(t)
	defer other.Close()
	s := Server{Name: "test", Addr: other.Addr().String(), Handler: saying(""), HardFail: true,
		Failed: func(error) { t.Error("Failed was called though nothing is retried") }}
	if err := s.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Run: %v", err)
	}
}

// TestEndWhileWaiting: the context ends between two attempts.
func TestEndWhileWaiting(t *testing.T) {
	other := occupy(t)
	defer other.Close()
	ctx, cancel := context.WithCancel(t.Context())
	s := Server{Name: "test", Addr: other.Addr().String(), Handler: saying(""), retry: time.Hour, Failed: func(error) { cancel() }}
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// served runs a limited server with n connections at most and returns its address and pool.
func served(t *testing.T, n int, h http.Handler) (string, *pool) {
	t.Helper()
	p := newPool(n)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := p.server(h)
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(&listener{Listener: inner, pool: p, max: n}) }()
	return inner.Addr().String(), p
}

// dialFrom opens a connection from an address of the loopback network.
func dialFrom(t *testing.T, source, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// request sends one request on a connection and returns its answer's status, 0 if the connection is closed instead. Unless
// the connection is kept, it returns after the server has closed it.
func request(t *testing.T, c net.Conn, keep bool) int {
	t.Helper()
	then := map[bool]string{true: "keep-alive", false: "close"}[keep]
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: "+then+"\r\n\r\n"); err != nil {
		return 0
	}
	reader := bufio.NewReader(c)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if !keep {
		_, _ = io.Copy(io.Discard, reader)
	}
	return resp.StatusCode
}

// TestStrangers: one client address holds more connections than are allowed, idle, with half a header and without
// reading. Another one, the kubelet, has every request answered, on a new connection and on one that it keeps.
func TestStrangers(t *testing.T) {
	const most = 8
	addr, p := served(t, most, saying("ok"))
	kept := dialFrom(t, "127.0.0.1", addr)
	if got := request(t, kept, true); got != http.StatusOK {
		t.Fatalf("first request: %d", got)
	}
	for i := range 5 * most {
		c := dialFrom(t, "127.0.0.2", addr)
		if _, err := io.WriteString(c, []string{"", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"}[i%3]); err != nil {
			t.Fatal(err)
		}
		if got := request(t, dialFrom(t, "127.0.0.1", addr), false); got != http.StatusOK {
			t.Fatalf("new connection beside %d others: %d", i, got)
		}
	}
	if got := request(t, kept, true); got != http.StatusOK {
		t.Errorf("kept connection: %d", got)
	}
	p.mu.Lock()
	held := len(p.conns)
	p.mu.Unlock()
	if held > most {
		t.Errorf("the server holds %d connections, want at most %d", held, most)
	}
}

// TestVictim: which connection is closed for a new one.
func TestVictim(t *testing.T) {
	p := newPool(4)
	l := &listener{pool: p, max: 4}
	from := func(a string, busy bool) *conn {
		c := &conn{listener: l, source: netip.MustParseAddr(a), busy: busy}
		if victim := p.add(c); victim != nil {
			t.Fatalf("%v was closed for %v", victim.source, c.source)
		}
		return c
	}
	kubelet, old, busy, young := from("10.0.0.1", false), from("10.0.0.2", false), from("10.0.0.2", true), from("10.0.0.2", false)
	for i, want := range []*conn{old, young, kubelet, busy} {
		p.mu.Lock()
		got := p.victim(nil)
		p.remove(got)
		p.mu.Unlock()
		if got != want {
			t.Errorf("victim %d is of %v, busy %v", i, got.source, got.busy)
		}
	}
	if len(p.sources) != 0 || l.open != 0 {
		t.Errorf("left over: %v, %d", p.sources, l.open)
	}
}

// TestLimitsOfRequests: the size of headers is limited, and so is every phase of a connection in time.
func TestLimitsOfRequests(t *testing.T) {
	addr, p := served(t, 4, saying("ok"))
	c := dialFrom(t, "127.0.0.1", addr)
	// net/http allows 4 KiB more than MaxHeaderBytes.
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nX: "+strings.Repeat("x", maxHeader+8<<10)+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %s", resp.Status)
	}
	if s := p.server(nil); s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 {
		t.Errorf("no limit on time: read %s, write %s, idle %s", s.ReadTimeout, s.WriteTimeout, s.IdleTimeout)
	}
}
