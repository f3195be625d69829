// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package httpserve runs an HTTP server the way kube-proxy runs its health and
// metrics servers: an address that cannot be bound is tried again every few
// seconds, unless that is to be fatal.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Retry is the time between two attempts to bind, kube-proxy's.
const Retry = 5 * time.Second

// readHeaderTimeout frees the connection of a client that never finishes its
// request.
const readHeaderTimeout = 10 * time.Second

// Server is one HTTP server on one address.
type Server struct {
	Name    string // for errors: "healthz"
	Addr    string // IP:port; an unspecified IPv4 address takes both families
	Handler http.Handler
	// HardFail makes the first failure final.
	HardFail bool
	// Failed is told each failure that is going to be retried; may be nil.
	Failed func(error)
	// Retry replaces the package's constant when not zero.
	Retry time.Duration
}

// Run serves until ctx is done, when it returns nil, having closed every
// connection. Any other return is a failure under HardFail.
func (s Server) Run(ctx context.Context) error {
	if s.Retry == 0 {
		s.Retry = Retry
	}
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("%s server on %s: %w", s.Name, s.Addr, err)
		if s.HardFail {
			return err
		}
		if s.Failed != nil {
			s.Failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Retry):
		}
	}
}

// serve binds once and serves until it fails or ctx is done.
func (s Server) serve(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.Handler, ReadHeaderTimeout: readHeaderTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
