// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Verdict is what became of a probe.
type Verdict string

// The verdicts. Refused and Dropped are what a proxy means by reject and drop; Unreachable comes from the lab's switch, or
// a node without a route, and means that no proxy took the packet for a Service.
const (
	Answered    Verdict = "answered"
	Refused     Verdict = "refused"     // RST or ICMP port unreachable: ECONNREFUSED
	Unreachable Verdict = "unreachable" // other ICMP errors, or no route: EHOSTUNREACH, ENETUNREACH, and kin
	Dropped     Verdict = "dropped"     // nothing came back in time
	Broken      Verdict = "broken"      // connected, but closed or reset before it answered
	Failed      Verdict = "failed"      // the sender could not send: a fault of the test
)

// DefaultTimeout is how long a probe waits before it counts as dropped. Answers take well below a millisecond on an idle
// machine; the rest is for a busy one, where a thread may not run for seconds. Where a drop is expected, a Probe may set less.
const DefaultTimeout = 10 * time.Second

// HangLimit is how long a test waits for something that has to happen. It is a guard against waiting for ever, not an
// expectation of how fast the machine is.
const HangLimit = 2 * time.Minute

// Probe is one connection or datagram to send.
type Probe struct {
	From    *Host
	Proto   Proto
	To      netip.AddrPort
	Source  netip.AddrPort // where to send from; zero leaves address or port to the kernel
	Timeout time.Duration  // 0 is DefaultTimeout

	// ConnectOnly takes an established TCP connection for an answer, for servers that wait for the client to speak first.
	ConnectOnly bool
}

// Result is what became of a Probe.
type Result struct {
	Verdict Verdict
	Backend string         // who answered
	Source  netip.AddrPort // the sender, as the backend saw it
	Local   netip.AddrPort // the sender, as it saw itself
	Began   time.Time      // before the first packet was sent
	Took    time.Duration
	Err     error // nil if and only if answered
}

// String is "web-1 from 10.244.1.11:40000", "refused", and so on.
func (r Result) String() string {
	switch r.Verdict {
	case Answered:
		return fmt.Sprintf("%s from %s", r.Backend, r.Source)
	case Failed, Broken:
		return fmt.Sprintf("%s: %v", r.Verdict, r.Err)
	default:
		return string(r.Verdict)
	}
}

// SawAs reports whether the backend named saw the sender as the address.
func (r Result) SawAs(backend string, source netip.Addr) bool {
	return r.Verdict == Answered && r.Backend == backend && r.Source.Addr() == source
}

// Ask sends one Probe from the host with the default timeout.
func (h *Host) Ask(proto Proto, to netip.AddrPort) Result {
	return Probe{From: h, Proto: proto, To: to}.Send()
}

// Dial is Ask with a timeout.
func Dial(from *Host, proto Proto, to netip.AddrPort, timeout time.Duration) Result {
	return Probe{From: from, Proto: proto, To: to, Timeout: timeout}.Send()
}

// Send sends the probe and waits for its fate. TCP connections are closed with RST (SO_LINGER 0): there is then no
// TIME_WAIT on either side, and both the port and the conntrack entry are free for the next of 100,000 connections. UDP
// sends one datagram and does not repeat it. Safe for concurrent use.
func (p Probe) Send() Result {
	if p.Timeout == 0 {
		p.Timeout = DefaultTimeout
	}
	start := time.Now()
	var r Result
	if p.Proto == SCTP {
		r = p.sctp(start.Add(p.Timeout))
	} else {
		r = p.stream(start.Add(p.Timeout))
	}
	r.Began, r.Took = start, time.Since(start)
	return r
}

// stream sends a TCP or UDP probe.
func (p Probe) stream(deadline time.Time) Result {
	s, err := dial(p, deadline)
	if err != nil {
		return fate(err)
	}
	defer s.Close()
	local := s.local()
	if p.ConnectOnly && p.Proto == TCP {
		return Result{Verdict: Answered, Local: local}
	}
	r := s.hello(deadline)
	r.Local = local
	return r
}

// hello gets the backend's line. UDP has to ask for it.
func (s *socket) hello(deadline time.Time) Result {
	if err := s.SetDeadline(deadline); err != nil {
		return fate(err)
	}
	if s.proto == UDP {
		// EPERM comes from a rule in the sender's own output hook, of a rejection too: the sender's error tells the two
		// apart, and comes like an answer.
		if _, err := s.Write([]byte("?")); err != nil && !errors.Is(err, unix.EPERM) {
			s.forgetErrors()
			return fate(err)
		}
	}
	var line []byte
	buf := make([]byte, 256)
	for !bytes.ContainsRune(line, '\n') {
		n, err := s.Read(buf)
		if err != nil {
			r := fate(err)
			s.forgetErrors()
			if s.proto == TCP && r.Verdict != Dropped {
				r.Verdict = Broken // after the handshake, so no refusal any more
			}
			return r
		}
		line = append(line, buf[:n]...)
	}
	return parse(string(line))
}

// parse reads a backend's line.
func parse(text string) Result {
	line, _, _ := strings.Cut(text, "\n")
	name, source, _ := strings.Cut(line, "|")
	from, err := netip.ParseAddrPort(source)
	if err != nil {
		return Result{Verdict: Broken, Err: fmt.Errorf("answer %q: %w", line, err)}
	}
	return Result{Verdict: Answered, Backend: name, Source: from}
}

// fate turns an error of a socket into a verdict.
func fate(err error) Result {
	r := Result{Verdict: Failed, Err: err}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		r.Verdict = Refused
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH),
		errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EPROTO):
		r.Verdict = Unreachable
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		r.Verdict = Dropped
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		r.Verdict = Broken
	}
	return r
}
