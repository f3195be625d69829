// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a connected socket inside a namespace. It is made by hand because only the system call that makes it needs a
// thread in the namespace: net.Dialer would hold that thread for as long as it waits.
type socket struct {
	*os.File
	proto Proto
}

// dial makes a socket and connects it.
func dial(p Probe, deadline time.Time) (*socket, error) {
	kind := unix.SOCK_STREAM
	if p.Proto == UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := p.From.socket(p.To.Addr(), kind, 0)
	if err != nil {
		return nil, err
	}
	if err := prepare(fd, p); err != nil {
		unix.Close(fd)
		return nil, err
	}
	err = unix.Connect(fd, sockaddr(p.To))
	waiting := errors.Is(err, unix.EINPROGRESS)
	if err != nil && !waiting {
		unix.Close(fd)
		return nil, fmt.Errorf("connect to %s: %w", p.To, err)
	}
	s := &socket{File: os.NewFile(uintptr(fd), "socket"), proto: p.Proto}
	if waiting {
		if err := s.connected(deadline); err != nil {
			s.Close()
			return nil, fmt.Errorf("connect to %s: %w", p.To, err)
		}
	}
	return s, nil
}

// socket makes a non-blocking socket of the address's family in the namespace.
func (n *Namespace) socket(a netip.Addr, kind, protocol int) (fd int, err error) {
	domain := unix.AF_INET
	if a.Is6() {
		domain = unix.AF_INET6
	}
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

// prepare sets the socket's options and source.
func prepare(fd int, p Probe) error {
	if p.Proto == TCP {
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("SO_LINGER: %w", err)
		}
	}
	if err := hearErrors(fd, p); err != nil {
		return err
	}
	if !p.Source.Addr().IsValid() && p.Source.Port() == 0 {
		return nil
	}
	src := p.Source
	if !src.Addr().IsValid() {
		src = netip.AddrPortFrom(everything(FamilyOf(p.To.Addr())).Addr(), src.Port())
	}
	option := unix.SO_REUSEADDR
	level := unix.SOL_SOCKET
	if src.Port() == 0 {
		// The port is chosen by connect, among those free for this destination, and not by bind among all.
		level, option = unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fmt.Errorf("socket option %d: %w", option, err)
	}
	if err := unix.Bind(fd, sockaddr(src)); err != nil {
		return fmt.Errorf("bind %s: %w", src, err)
	}
	return nil
}

// hearErrors makes a datagram socket report all ICMP errors. Without it Linux passes on only those that it takes for lasting,
// and host unreachable is none.
func hearErrors(fd int, p Probe) error {
	if p.Proto == TCP {
		return nil // reports all during the handshake
	}
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if p.To.Addr().Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fmt.Errorf("receive ICMP errors: %w", err)
	}
	return nil
}

// forgetErrors empties the queue in which the kernel keeps the packets that came back, since it counts against the buffer
// of a socket that is kept.
func (s *socket) forgetErrors() {
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		buf, control := make([]byte, 1), make([]byte, 512)
		for {
			if _, _, _, _, err := unix.Recvmsg(int(fd), buf, control, unix.MSG_ERRQUEUE); err != nil {
				return
			}
		}
	})
}

// connected waits for the end of a handshake.
func (s *socket) connected(deadline time.Time) error {
	if err := s.SetDeadline(deadline); err != nil {
		return err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			failed = err
			return true
		case code != 0:
			failed = unix.Errno(code)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil // ENOTCONN while the handshake lasts
	})
	if err != nil {
		return err
	}
	return failed
}

// local is the socket's own address.
func (s *socket) local() netip.AddrPort {
	var at netip.AddrPort
	raw, err := s.SyscallConn()
	if err != nil {
		return at
	}
	raw.Control(func(fd uintptr) {
		sa, err := unix.Getsockname(int(fd))
		if err == nil {
			at = addrPort(sa)
		}
	})
	return at
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
