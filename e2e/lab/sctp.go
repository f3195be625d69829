// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kernels without SCTP sockets (CONFIG_IP_SCTP) still track and translate SCTP (CONFIG_NF_CT_PROTO_SCTP). So the lab speaks
// just enough of it over raw sockets (RFC 9260): a client sends INIT, a backend answers INIT ACK with its line in the state
// cookie. Conntrack checks the checksum, the verification tags and the order of chunks; a wrong packet is lost there.
const (
	protoSCTP = 132

	chunkInit    = 1
	chunkInitAck = 2
	paramCookie  = 7

	sctpHeader = 12 // ports, verification tag, checksum
	initFixed  = 20 // chunk header 4, initiate tag 4, window 4, streams 2+2, initial TSN 4
)

// sctpPacket is an SCTP packet with one INIT or INIT ACK chunk.
type sctpPacket struct {
	From, To uint16
	Tag      uint32 // verification tag: 0 in INIT, the peer's initiate tag in INIT ACK
	Type     byte
	Initiate uint32 // initiate tag: what the peer shall put into Tag
	Cookie   []byte // state cookie, in INIT ACK
}

func (p sctpPacket) marshal() []byte {
	var param []byte
	if p.Cookie != nil {
		param = binary.BigEndian.AppendUint16(param, paramCookie)
		param = binary.BigEndian.AppendUint16(param, uint16(4+len(p.Cookie)))
		param = append(param, p.Cookie...)
	}
	b := make([]byte, 0, 128)
	b = binary.BigEndian.AppendUint16(b, p.From)
	b = binary.BigEndian.AppendUint16(b, p.To)
	b = binary.BigEndian.AppendUint32(b, p.Tag)
	b = append(b, 0, 0, 0, 0) // checksum, below
	b = append(b, p.Type, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(initFixed+len(param))) // without padding: RFC 9260 section 3.2
	b = binary.BigEndian.AppendUint32(b, p.Initiate)
	b = binary.BigEndian.AppendUint32(b, 1<<16) // window: at least 1,500
	b = binary.BigEndian.AppendUint16(b, 1)     // outbound streams
	b = binary.BigEndian.AppendUint16(b, 1)     // inbound streams
	b = binary.BigEndian.AppendUint32(b, p.Initiate)
	b = append(b, param...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	// CRC32c is stored least significant byte first: RFC 9260 appendix A.
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// errNotINIT says that a packet is well-formed but none of ours.
var errNotINIT = errors.New("not an INIT or INIT ACK")

func unmarshalSCTP(b []byte) (sctpPacket, error) {
	var p sctpPacket
	if len(b) < sctpHeader+initFixed {
		return p, fmt.Errorf("SCTP packet of %d bytes: %w", len(b), errNotINIT)
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	clear := append([]byte(nil), b...)
	copy(clear[8:12], []byte{0, 0, 0, 0})
	if want := crc32.Checksum(clear, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		return p, fmt.Errorf("SCTP checksum %#x, want %#x", sum, want)
	}
	p.From = binary.BigEndian.Uint16(b)
	p.To = binary.BigEndian.Uint16(b[2:])
	p.Tag = binary.BigEndian.Uint32(b[4:])
	p.Type = b[12]
	p.Initiate = binary.BigEndian.Uint32(b[16:])
	if p.Type != chunkInit && p.Type != chunkInitAck {
		return p, errNotINIT
	}
	param := b[sctpHeader+initFixed:]
	if len(param) >= 4 && binary.BigEndian.Uint16(param) == paramCookie {
		n := int(binary.BigEndian.Uint16(param[2:]))
		if n < 4 || n > len(param) {
			return p, fmt.Errorf("SCTP cookie of %d bytes in %d", n, len(param))
		}
		p.Cookie = param[4:n]
	}
	return p, nil
}

// payload strips the IPv4 header, which raw IPv4 sockets receive and IPv6 ones do not.
func payload(b []byte, f Family) []byte {
	if f == IPv6 || len(b) == 0 {
		return b
	}
	if n := int(b[0]&0x0f) * 4; n <= len(b) {
		return b[n:]
	}
	return nil
}

// rawSocket is a raw SCTP socket on a local address. The descriptor is used through f only.
func (n *Namespace) rawSocket(local netip.Addr) (*os.File, error) {
	fd, err := n.socket(local, unix.SOCK_RAW, protoSCTP)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, 0))); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind %s: %w", local, err)
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}

// sctp serves INITs to the backend's address and port.
func (b *Backend) sctp(h *Host) error {
	f, err := h.rawSocket(b.Addr.Addr())
	if err != nil {
		return err
	}
	b.closer = f
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	b.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			var n int
			var peer unix.Sockaddr
			var failed error
			err := raw.Read(func(fd uintptr) bool {
				n, peer, failed = unix.Recvfrom(int(fd), buf, 0)
				return failed != unix.EAGAIN
			})
			if err != nil {
				return // closed
			}
			if failed != nil {
				continue
			}
			b.initAck(raw, payload(buf[:n], FamilyOf(b.Addr.Addr())), addrPort(peer).Addr())
		}
	})
	return nil
}

// writer is the half of syscall.RawConn that sending needs.
type writer interface {
	Write(f func(fd uintptr) (done bool)) error
}

func (b *Backend) initAck(raw writer, packet []byte, peer netip.Addr) {
	p, err := unmarshalSCTP(packet)
	if err != nil || p.Type != chunkInit || p.To != b.Addr.Port() {
		return
	}
	b.Hits.Add(1)
	from := netip.AddrPortFrom(peer.WithZone(""), p.From)
	reply := sctpPacket{
		From: p.To, To: p.From, Tag: p.Initiate, Type: chunkInitAck, Initiate: rand.Uint32() | 1,
		Cookie: []byte(b.Name + "|" + from.String() + "\n"),
	}.marshal()
	raw.Write(func(fd uintptr) bool {
		// A raw IPv6 socket takes its protocol from the port field unless that is 0.
		return unix.Sendto(int(fd), reply, 0, sockaddr(netip.AddrPortFrom(peer, 0))) != unix.EAGAIN
	})
}

// sctp sends an INIT and waits for the INIT ACK.
func (p Probe) sctp(deadline time.Time) Result {
	fd, err := p.From.socket(p.To.Addr(), unix.SOCK_RAW, protoSCTP)
	if err != nil {
		return fate(err)
	}
	if p.Source.Addr().IsValid() {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.Source.Addr(), 0)))
	}
	// Connected, the socket receives the ICMP errors about its own packets, and packets of that peer only.
	if err == nil {
		err = hearErrors(fd, p)
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(p.To.Addr(), 0)))
	}
	if err != nil {
		unix.Close(fd)
		return fate(err)
	}
	s := &socket{File: os.NewFile(uintptr(fd), "sctp"), proto: SCTP}
	defer s.Close()
	port := p.Source.Port()
	if port == 0 {
		port = p.From.nextSCTPPort()
	}
	r := s.init(port, p.To, deadline)
	r.Local = netip.AddrPortFrom(s.local().Addr(), port)
	return r
}

// nextSCTPPort hands out source ports, since the kernel does not for a protocol without sockets: the upper half of all, one
// after the other. Chosen at random, two probes under way at once would sometimes have the same, and conntrack would take the
// second INIT for a new beginning of the first association, whose INIT ACK then has the wrong tag.
func (h *Host) nextSCTPPort() uint16 { return uint16(h.sctpPort.Add(1)) | 1<<15 }

func (s *socket) init(port uint16, to netip.AddrPort, deadline time.Time) Result {
	if err := s.SetDeadline(deadline); err != nil {
		return fate(err)
	}
	tag := rand.Uint32() | 1 // any but 0
	packet := sctpPacket{From: port, To: to.Port(), Type: chunkInit, Initiate: tag}.marshal()
	if _, err := s.Write(packet); err != nil {
		return fate(err)
	}
	buf := make([]byte, 2048)
	for {
		n, err := s.Read(buf)
		if err != nil {
			return fate(err)
		}
		p, err := unmarshalSCTP(payload(buf[:n], FamilyOf(to.Addr())))
		if err == nil && p.Type == chunkInitAck && p.To == port && p.From == to.Port() && p.Tag == tag {
			return parse(string(p.Cookie))
		}
	}
}
