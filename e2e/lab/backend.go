// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
)

// Proto is a transport protocol, spelled as Kubernetes spells it.
type Proto string

// The protocols of Services. SCTP is spoken over raw sockets: see sctp.go.
const (
	TCP  Proto = "TCP"
	UDP  Proto = "UDP"
	SCTP Proto = "SCTP"
)

// Backend is a named server. It answers "name|source" and a newline, source being the peer's address as it sees it:
//
//   - TCP: at once on accept; after that it echoes line by line until the peer closes;
//   - UDP: each datagram, with the datagram's own bytes after the newline;
//   - SCTP: each INIT, in the state cookie of the INIT ACK.
type Backend struct {
	Name  string
	Proto Proto
	Addr  netip.AddrPort

	// Hits counts connections accepted and datagrams answered.
	Hits atomic.Int64

	closer io.Closer
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	done   sync.WaitGroup
}

// Serve starts backends named name on a port, on the host's main addresses of both families, for each protocol. They end
// with the Net, or when closed.
func (h *Host) Serve(name string, port uint16, protos ...Proto) (Backends, error) {
	var all Backends
	for _, proto := range protos {
		for _, f := range Families() {
			b, err := h.Listen(name, proto, h.At(f, port))
			if err != nil {
				return all, errors.Join(err, all.Close())
			}
			all = append(all, b)
		}
	}
	return all, nil
}

// Listen starts one backend on an address of the host. With an unspecified address TCP listens on all addresses of that
// family; with an empty name it answers the address that was dialed as its name. Together with Host.AnyIP that makes
// thousands of endpoints of one listener.
func (h *Host) Listen(name string, proto Proto, addr netip.AddrPort) (*Backend, error) {
	b := &Backend{Name: name, Proto: proto, Addr: addr, conns: map[net.Conn]struct{}{}}
	start := map[Proto]func(*Host) error{TCP: b.tcp, UDP: b.udp, SCTP: b.sctp}[proto]
	if start == nil {
		return nil, fmt.Errorf("%s: backend %q: protocol %q", h.Name, name, proto)
	}
	if err := start(h); err != nil {
		return nil, fmt.Errorf("%s: backend %q on %s %s: %w", h.Name, name, proto, addr, err)
	}
	h.Net.onClose(func() { b.Close() })
	return b, nil
}

// Close stops the backend: TCP connections are reset, later ones refused by the kernel.
func (b *Backend) Close() error {
	err := b.closer.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // closed before
	}
	b.done.Wait() // no connection is accepted from here on
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		reset(c)
	}
	return err
}

// Backends are servers that are handled together.
type Backends []*Backend

// Close closes all of them.
func (bs Backends) Close() error {
	var errs []error
	for _, b := range bs {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// Hits sums up the connections and datagrams that the backends answered.
func (bs Backends) Hits() int64 {
	var n int64
	for _, b := range bs {
		n += b.Hits.Load()
	}
	return n
}

// answer is what a backend says to a peer that dialed local.
func (b *Backend) answer(local, peer net.Addr) string {
	b.Hits.Add(1)
	name := b.Name
	if name == "" {
		name = local.String()
	}
	return name + "|" + peer.String() + "\n"
}

func (f Family) network(proto Proto) string {
	return strings.ToLower(string(proto)) + f.pick("4", "6")
}

func (b *Backend) tcp(h *Host) error {
	var l net.Listener
	err := h.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), FamilyOf(b.Addr.Addr()).network(TCP), b.Addr.String())
		return err
	})
	if err != nil {
		return err
	}
	b.closer = l
	b.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed; nothing else ends a listener
			}
			b.track(c)
			go b.converse(c)
		}
	})
	return nil
}

// track remembers a connection so that Close can end it.
func (b *Backend) track(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = struct{}{}
}

func (b *Backend) untrack(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

func (b *Backend) converse(c net.Conn) {
	defer b.untrack(c)
	defer c.Close()
	if _, err := io.WriteString(c, b.answer(c.LocalAddr(), c.RemoteAddr())); err != nil {
		return
	}
	// Line by line and not by io.Copy, whose buffer is 32 KiB for each of thousands of connections.
	r := bufio.NewReaderSize(c, 64)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (b *Backend) udp(h *Host) error {
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP(FamilyOf(b.Addr.Addr()).network(UDP), net.UDPAddrFromAddrPort(b.Addr))
		return err
	})
	if err != nil {
		return err
	}
	b.closer = conn
	b.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, peer, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error for an earlier answer: that peer is gone
			}
			reply := b.answer(conn.LocalAddr(), net.UDPAddrFromAddrPort(peer))
			conn.WriteToUDPAddrPort(append([]byte(reply), buf[:n]...), peer)
		}
	})
	return nil
}

// reset closes a TCP connection with RST in place of FIN.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
