// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
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
	conn    *net.UDPConn
	raw     syscall.RawConn
	to      atomic.Pointer[netip.AddrPort]
	clients sync.Map // of *udpClient by netip.AddrPort
}

func (f *Forwarder) serveUDP(ctx context.Context, p Port, to netip.AddrPort) (server, error) {
	lc := loopbackOnly()
	l, err := lc.ListenPacket(ctx, p.network("udp"), p.Addr().String())
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
		s.sessions.drop(s)
	}
}

func (s *udpServer) close() {
	_ = s.conn.Close()
	s.sessions.drop(s)
}

// receive forwards the datagrams of clients until the socket is closed.
func (s *udpServer) receive() {
	defer s.sessions.drop(s) // a client that came between the close and now
	for {
		if err := readable(s.raw); err != nil {
			return
		}
		buf := s.buffers.Get().(*[maxDatagram]byte)
		n, from, err := s.conn.ReadFromUDPAddrPort(buf[:])
		if err == nil {
			s.send(from, buf[:n])
		}
		s.buffers.Put(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// send passes a datagram of a client on. One that cannot be sent is lost, as datagrams are.
func (s *udpServer) send(from netip.AddrPort, datagram []byte) {
	var c *udpClient
	if known, ok := s.clients.Load(from); ok {
		c = known.(*udpClient)
	} else {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(*s.to.Load()))
		if err != nil {
			return
		}
		c = &udpClient{server: s, from: from, conn: conn}
		c.use()
		s.clients.Store(from, c)
		s.sessions.add(c, s)
		s.running.Go(c.answer)
	}
	c.use()
	// The first send after an ICMP error returns that error instead of sending.
	if _, err := c.conn.Write(datagram); errors.Is(err, unix.ECONNREFUSED) {
		_, _ = c.conn.Write(datagram)
	}
}

// udpClient is a UDP client with its socket towards the Service.
type udpClient struct {
	server *udpServer
	from   netip.AddrPort
	conn   *net.UDPConn
	used   atomic.Int64 // nanoseconds since the start of the Forwarder, by the monotonic clock
}

func (c *udpClient) use() { c.used.Store(int64(time.Since(c.server.started))) }

func (c *udpClient) silence() time.Duration {
	return time.Since(c.server.started) - time.Duration(c.used.Load())
}

func (c *udpClient) end() {
	c.server.clients.CompareAndDelete(c.from, c)
	_ = c.conn.Close()
}

// answer passes datagrams to the client until its session ends.
func (c *udpClient) answer() {
	defer c.server.sessions.remove(c)
	raw, err := c.conn.SyscallConn()
	for err == nil {
		if err = readable(raw); err == nil {
			err = c.passBack()
		}
	}
}

// passBack passes one datagram to the client. An error ends the session.
func (c *udpClient) passBack() error {
	buf := c.server.buffers.Get().(*[maxDatagram]byte)
	defer c.server.buffers.Put(buf)
	n, err := c.conn.Read(buf[:])
	if err != nil {
		return err
	}
	c.use()
	_, err = c.server.conn.WriteToUDPAddrPort(buf[:n], c.from)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOBUFS) {
		return nil // about an earlier datagram, or this one alone
	}
	return err
}

// readable waits until there is a datagram or an error to read, so that waiting takes no buffer.
func readable(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(set, 0)
		return err != nil || n > 0
	})
}
