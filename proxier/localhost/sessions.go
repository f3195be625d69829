// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"sync"
	"time"
)

// session is a TCP connection or a UDP client.
type session interface {
	// silence is how long it carried no data in either direction.
	silence() time.Duration
	// end closes its sockets, upon which its goroutines return. It may be called again.
	end()
}

// sessions are the TCP connections, or the UDP clients, of all ports. All clients of a loopback address look the same,
// so the limits are per port and in all, and silent sessions make room for new ones.
type sessions struct {
	limit, perPort int
	minSilence     time.Duration // of a session that makes room
	silence        func(session) time.Duration

	mu   sync.Mutex
	open map[session]server
	over uint64 // sessions above the limits: refused, or ended for a new one
}

func newSessions(limit, perPort int, minSilence time.Duration) *sessions {
	return &sessions{
		limit: limit, perPort: perPort, minSilence: minSilence,
		silence: session.silence, open: map[session]server{},
	}
}

// add counts a session of a port. If there are too many, the one that is silent for longest ends; if none is silent for
// minSilence, add reports false.
func (l *sessions) add(s session, of server) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.makeRoom(l.perPort, of) || !l.makeRoom(l.limit, nil) {
		l.over++
		return false
	}
	l.open[s] = of
	return true
}

// makeRoom reports whether one more session of a port (nil: of all) is within a limit, after the end of another one if
// need be.
func (l *sessions) makeRoom(limit int, of server) bool {
	n := 0
	for _, port := range l.open {
		if of == nil || port == of {
			n++
		}
	}
	if n < limit {
		return true
	}
	var silent session
	longest := l.minSilence
	for s, port := range l.open {
		if of != nil && port != of {
			continue
		}
		d := l.silence(s)
		if d >= longest {
			silent, longest = s, d
		}
	}
	if silent == nil {
		return false
	}
	l.over++
	l.endLocked(silent)
	return true
}

// sweep ends the sessions that are silent for too long.
func (l *sessions) sweep(idle time.Duration) {
	l.endIf(func(s session, _ server) bool { return l.silence(s) >= idle })
}

// drop ends all sessions of a port.
func (l *sessions) drop(of server) {
	l.endIf(func(_ session, port server) bool { return port == of })
}

func (l *sessions) endIf(ends func(session, server) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, port := range l.open {
		if ends(s, port) {
			l.endLocked(s)
		}
	}
}

// remove ends a session. It may be called again.
func (l *sessions) remove(s session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(s)
}

func (l *sessions) endLocked(s session) {
	delete(l.open, s)
	s.end()
}

// count returns the number of sessions, and how many were above the limits.
func (l *sessions) count() (open int, over uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open), l.over
}
