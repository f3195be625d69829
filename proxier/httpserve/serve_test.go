// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
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

func answer(text string) http.Handler {
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
	s := Server{Name: "test", Addr: addr, Handler: answer("hello"), Retry: time.Millisecond, Failed: func(err error) {
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

// fetch asks until somebody answers.
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
	t.Fatal("nobody answers")
	return ""
}

// TestHardFail: the first failure ends it.
func TestHardFail(t *testing.T) {
	other := occupy(t)
	defer other.Close()
	s := Server{Name: "test", Addr: other.Addr().String(), Handler: answer(""), HardFail: true,
		Failed: func(error) { t.Error("told of a failure that is not retried") }}
	if err := s.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Run: %v", err)
	}
}

// TestEndWhileWaiting: the context ends between two attempts.
func TestEndWhileWaiting(t *testing.T) {
	other := occupy(t)
	defer other.Close()
	ctx, cancel := context.WithCancel(t.Context())
	s := Server{Name: "test", Addr: other.Addr().String(), Handler: answer(""), Retry: time.Hour, Failed: func(error) { cancel() }}
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}
