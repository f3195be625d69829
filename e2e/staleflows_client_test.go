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

// datagram is one that was sent, and who answered it, or why nobody did.
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
			// An error is that of a datagram before, which the socket tells once; this one was not sent.
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

// refused notes an ICMP error, which does not say for which datagram: the back-th last one.
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

// all are the datagrams so far, without those that may still be answered.
func (s *stream) all() []datagram {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.grams
	for len(all) > 0 && time.Since(all[len(all)-1].sent) < 200*time.Millisecond {
		all = all[:len(all)-1]
	}
	return all
}

// outcome is how a stream took a change.
type outcome struct {
	after time.Duration // from the write to the first datagram from which on all were right
	never bool
	wrong int    // datagrams sent later than limit after the write that were not right
	fate  string // of the last wrong one
}

// blurred says whether datagram i counts as refused although no error was read for it: a socket keeps one error only,
// so of two refusals that come before the socket is read, one is not told.
func blurred(all []datagram, i int) bool {
	near := all[max(0, i-2):min(len(all), i+3)]
	return all[i].fate == lost && slices.ContainsFunc(near, func(g datagram) bool { return g.fate == refused })
}

// limit is within what time of the API write a client must be served right.
const limit = 100 * time.Millisecond

// judge says how the stream took a change that was written at the given time.
func (s *stream) judge(written time.Time, right func(fate string) bool) outcome {
	var o outcome
	all := s.all()
	for i, g := range all {
		if g.sent.Before(written) || right(g.fate) || right(refused) && blurred(all, i) {
			continue
		}
		o.after, o.fate = g.sent.Add(tick).Sub(written), g.fate
		if g.sent.Sub(written) > limit {
			o.wrong++
		}
	}
	o.never = len(all) == 0 || o.after > 0 && o.after >= all[len(all)-1].sent.Sub(written)
	return o
}

// String is a cell of the table.
func (o outcome) String() string {
	switch {
	case o.never:
		return fmt.Sprintf("never (%s, %d lost)", o.fate, o.wrong)
	case o.wrong > 0:
		return fmt.Sprintf("%d ms (%s, %d lost)", o.after.Milliseconds(), o.fate, o.wrong)
	}
	return fmt.Sprintf("%d ms", o.after.Milliseconds())
}
