// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// tick is how often a stream sends.
const tick = 10 * time.Millisecond

// What became of a datagram that no backend answered.
const (
	lost        = "lost"
	refused     = "refused"
	unreachable = "unreachable"
)

// datagram is one that was sent, and who answered it, or why none did.
type datagram struct {
	sent time.Time
	fate string
}

// stream is a UDP client that keeps one socket and sends every 10 ms, whatever comes back.
type stream struct {
	conn *net.UDPConn
	stop chan struct{}
	done sync.WaitGroup

	mu    sync.Mutex
	grams []datagram
}

// openStream starts a stream from a host. It ends with the test.
func openStream(t *testing.T, from *lab.Host, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{stop: make(chan struct{})}
	err := from.Do(func() (err error) {
		s.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.done.Add(2)
	go s.send()
	go s.receive()
	t.Cleanup(s.close)
	return s
}

// close ends the stream.
func (s *stream) close() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
		_ = s.conn.Close()
		s.done.Wait()
	}
}

// send sends numbered datagrams.
func (s *stream) send() {
	defer s.done.Done()
	every := time.NewTicker(tick)
	defer every.Stop()
	for {
		s.mu.Lock()
		number := binary.BigEndian.AppendUint32(nil, uint32(len(s.grams)))
		s.grams = append(s.grams, datagram{time.Now(), lost})
		s.mu.Unlock()
		for range 3 {
			// An error is that of a datagram before, which the socket reports once; this one was not sent.
			_, err := s.conn.Write(number)
			if err == nil {
				break
			}
			s.refused(err, 2)
		}
		select {
		case <-s.stop:
			return
		case <-every.C:
		}
	}
}

// receive notes the answers: "backend|source", a newline, and the number.
func (s *stream) receive() {
	defer s.done.Done()
	b := make([]byte, 512)
	for {
		n, err := s.conn.Read(b)
		switch {
		case errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			s.refused(err, 1)
			continue
		}
		who, rest, _ := strings.Cut(string(b[:n]), "|")
		_, number, ok := strings.Cut(rest, "\n")
		if ok && len(number) == 4 {
			s.mu.Lock()
			if i := binary.BigEndian.Uint32([]byte(number)); int(i) < len(s.grams) {
				s.grams[i].fate = who
			}
			s.mu.Unlock()
		}
	}
}

// refused notes an ICMP error, which does not name its datagram: it counts for the back-th last one.
func (s *stream) refused(err error, back int) {
	fate := unreachable
	if errors.Is(err, syscall.ECONNREFUSED) {
		fate = refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := len(s.grams) - back; i >= 0 && s.grams[i].fate == lost {
		s.grams[i].fate = fate
	}
}

// last is the fate of a recent datagram, old enough to have one.
func (s *stream) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.grams) < 4 {
		return "nothing sent"
	}
	return s.grams[len(s.grams)-3].fate
}

// sent is the number of datagrams so far.
func (s *stream) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.grams)
}

// metAfter reports whether a datagram after the first n had a wanted fate.
func (s *stream) metAfter(n int, right func(fate string) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n+3 < len(s.grams) && slices.ContainsFunc(s.grams[n:len(s.grams)-3], func(g datagram) bool { return right(g.fate) })
}

// all are the datagrams so far.
func (s *stream) all() []datagram {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.grams)
}

// disturbed reports whether a datagram of the stream that was sent at about a time got lost.
func (s *stream) disturbed(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.grams, func(g datagram) bool {
		return g.fate == lost && g.sent.Sub(at).Abs() < 200*time.Millisecond
	})
}

// outcome is how a stream took a change. It is about order: once a datagram is served right, all later ones are.
type outcome struct {
	never  bool
	wrong  int           // datagrams after the write and before the first right one
	again  int           // wrong ones after a right one
	fate   string        // of the last wrong one
	lasted time.Duration // from the write to the last wrong one; for the table, nothing depends on it
}

// failed reports whether the stream was not served as it should be. One that is right from the start stays so.
func (o outcome) failed(kept bool) bool { return o.never || o.again > 0 || kept && o.wrong > 0 }

// judge returns how the stream took a change that was written at the given time. A lost datagram does not count if
// one of the control streams lost one at the same time, which no rule of a proxy concerns, or where clients are refused:
// of two refusals that come before the socket is read, one is not reported.
func (s *stream) judge(written time.Time, right func(fate string) bool, control ...*stream) outcome {
	o := outcome{never: true}
	all := s.all()
	for !right(lost) && len(all) > 0 && all[len(all)-1].fate == lost {
		all = all[:len(all)-1] // it may still be answered
	}
	for _, g := range all {
		switch {
		case g.sent.Before(written):
			continue
		case right(g.fate):
			o.never = false
			continue
		case g.fate == lost && (right(refused) || slices.ContainsFunc(control, func(c *stream) bool { return c.disturbed(g.sent) })):
			continue
		case o.never:
			o.wrong++
		default:
			o.again++
		}
		o.fate, o.lasted = g.fate, g.sent.Add(tick).Sub(written)
	}
	return o
}

// String is a cell of the table.
func (o outcome) String() string {
	switch {
	case o.never:
		return fmt.Sprintf("never (%s, %d wrong)", o.fate, o.wrong)
	case o.again > 0:
		return fmt.Sprintf("%d ms (%s, %d wrong after a right one)", o.lasted.Milliseconds(), o.fate, o.again)
	}
	return fmt.Sprintf("%d ms, %d wrong", o.lasted.Milliseconds(), o.wrong)
}
