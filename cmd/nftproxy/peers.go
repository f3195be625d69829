// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// peers are the remote addresses of the connections to the API server, which no Service may get: a node that refuses its own
// connections to the API server never learns that the Service is deleted. Safe for concurrent use.
type peers struct {
	mu    sync.Mutex
	addrs []netip.AddrPort // the latest last
}

// maxPeers bounds what is remembered of an API server behind a name whose addresses change.
const maxPeers = 16

// follow makes a client configuration report its connections. The address of its server counts at once if it is no name:
// a restarted proxy has to protect it before it can connect.
func (p *peers) follow(c *rest.Config) {
	if u, _, err := rest.DefaultServerUrlFor(c); err == nil {
		p.add(hostPort(u))
	}
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as client-go's
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			p.add(conn.RemoteAddr().String())
		}
		return conn, err
	}
}

// hostPort is the address of a server with its port.
func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "http":
		port = "80"
	default:
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (p *peers) add(address string) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return // a name
	}
	at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.addrs, at) {
		return
	}
	p.addrs = append(p.addrs, at)
	p.addrs = p.addrs[max(0, len(p.addrs)-maxPeers):]
}

// list returns the addresses.
func (p *peers) list() []netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.addrs)
}
