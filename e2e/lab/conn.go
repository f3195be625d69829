// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"
)

// Conn is a connection, or a UDP socket, that is kept: to see whether it survives what is done to the proxy, and whom it
// talks to. Not safe for concurrent use.
type Conn struct {
	Result // the answer to the first request

	s *socket
}

// Open connects and gets the first answer. The error says what became of it instead; it can be distinguished by Ask's verdicts
// in Conn.Result, which is set in any case.
func (p Probe) Open() (*Conn, error) {
	if p.Timeout == 0 {
		p.Timeout = DefaultTimeout
	}
	deadline := time.Now().Add(p.Timeout)
	s, err := dial(p, deadline)
	if err != nil {
		return &Conn{Result: fate(err)}, err
	}
	c := &Conn{s: s}
	local := s.local()
	c.Result = s.hello(deadline)
	c.Local = local
	if c.Verdict != Answered {
		s.Close()
		return c, fmt.Errorf("%s %s: %w", p.Proto, p.To, c.Err)
	}
	return c, nil
}

// Open is Probe.Open from the host with the default timeout.
func (h *Host) Open(proto Proto, to netip.AddrPort) (*Conn, error) {
	return Probe{From: h, Proto: proto, To: to}.Open()
}

// Ping sends a line over the connection and waits for the answer. Over UDP the answer names the backend that serves the socket
// now; over TCP it is the same backend or none.
func (c *Conn) Ping(timeout time.Duration) Result {
	start := time.Now()
	r := c.ping(start.Add(timeout))
	r.Began, r.Took = start, time.Since(start)
	r.Local = c.Local
	return r
}

func (c *Conn) ping(deadline time.Time) Result {
	if c.s.proto == UDP {
		return c.s.hello(deadline)
	}
	if err := c.s.SetDeadline(deadline); err != nil {
		return fate(err)
	}
	line := []byte(time.Now().Format("15:04:05.000000000") + "\n")
	if _, err := c.s.Write(line); err != nil {
		return fate(err)
	}
	echo := make([]byte, 0, len(line))
	buf := make([]byte, len(line))
	for len(echo) < len(line) {
		n, err := c.s.Read(buf)
		if err != nil {
			return fate(err)
		}
		echo = append(echo, buf[:n]...)
	}
	if !bytes.Equal(echo, line) {
		return Result{Verdict: Broken, Err: fmt.Errorf("sent %q, got %q", line, echo)}
	}
	return Result{Verdict: Answered, Backend: c.Backend, Source: c.Source}
}

// Close closes the connection; TCP is reset, as by Probe.Send.
func (c *Conn) Close() error {
	if c.s == nil {
		return nil
	}
	return c.s.Close()
}
