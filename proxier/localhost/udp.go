// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxDatagram is the longest payload of UDP: 65,535 less the header, rounded up.
const maxDatagram = 1 << 16

// udpServer serves a UDP port. Each client has a socket of its own towards the Service, so that the kernel takes it
// for a flow of its own, and answers find their way back.
type udpServer struct {
	*Forwarder
	conn *net.UDPConn
	raw  syscall.RawConn
	to   atomic.Pointer[netip.AddrPort]
}

func (f *Forwarder) serveUDP(ctx context.Context, p Port, to netip.AddrPort) (server, error) {
	lc := loopbackOnly()
	l, err := lc.ListenPacket(ctx, network("udp", p.IPv6), p.Addr().String())
	if err != nil {
		return nil, err
	}
	s := &udpServer{Forwarder: f, conn: l.(*net.UDPConn)}
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		_ = s.conn.Close()
		return nil, err
	}
	s.to.Store(&to)
	f.running.Go(s.receive)
	return s, nil
}

// retarget forgets the clients of the former address: their next datagram goes to the new one.
func (s *udpServer) retarget(to netip.AddrPort) {
	if was := s.to.Swap(&to); *was != to {
		s.clients.drop(s)
	}
}

func (s *udpServer) close() {
	_ = s.conn.Close()
	s.clients.drop(s)
}

// receive forwards the datagrams of clients until the socket is closed.
func (s *udpServer) receive() {
	// A client that came between the close and now would keep a socket without a reader of its own.
	defer s.clients.drop(s)
	for {
		if err := readable(s.raw); err != nil {
			return
		}
		buf := s.clients.buffers.Get().(*[maxDatagram]byte)
		n, from, err := s.conn.ReadFromUDPAddrPort(buf[:])
		if err == nil {
			s.send(from, buf[:n])
		}
		s.clients.buffers.Put(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// send passes a datagram of a client on. One that cannot be sent is lost, as datagrams are.
func (s *udpServer) send(from netip.AddrPort, datagram []byte) {
	key := clientKey{s, from}
	c := s.clients.find(key)
	if c == nil {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(*s.to.Load()))
		if err != nil {
			return
		}
		c = s.clients.add(key, conn)
		s.running.Go(func() { s.answer(c) })
	}
	// The first send after an ICMP error returns that error instead of sending.
	if _, err := c.conn.Write(datagram); errors.Is(err, unix.ECONNREFUSED) {
		_, _ = c.conn.Write(datagram)
	}
}

// answer passes datagrams to a client until it is forgotten, which a long silence does too.
func (s *udpServer) answer(c *client) {
	defer s.clients.remove(c)
	raw, err := c.conn.SyscallConn()
	for err == nil {
		if err = c.conn.SetReadDeadline(s.clients.lastUse(c).Add(s.opt.Idle)); err != nil {
			return
		}
		err = readable(raw)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(s.clients.lastUse(c)) < s.opt.Idle {
			err = nil // the client has sent since
			continue
		}
		if err == nil {
			err = s.passBack(c)
		}
	}
}

// passBack passes one datagram to the client. An error ends the client.
func (s *udpServer) passBack(c *client) error {
	buf := s.clients.buffers.Get().(*[maxDatagram]byte)
	defer s.clients.buffers.Put(buf)
	n, err := c.conn.Read(buf[:])
	if err != nil {
		return err
	}
	s.clients.touch(c)
	_, err = s.conn.WriteToUDPAddrPort(buf[:n], c.key.from)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOBUFS) {
		return nil // about an earlier datagram, or this one alone
	}
	return err
}
