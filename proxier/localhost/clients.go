// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// clients are the UDP clients of all ports, in the order of their last use.
type clients struct {
	limit   int
	count   *counters
	buffers sync.Pool // of *[maxDatagram]byte

	mu    sync.Mutex
	byKey map[clientKey]*client
	order list.List // the one that is silent for longest is at the front
}

type clientKey struct {
	server *udpServer
	from   netip.AddrPort
}

// client is a UDP client with its socket towards the Service.
type client struct {
	key  clientKey
	conn *net.UDPConn
	// Under the lock of clients.
	used time.Time // has a monotonic clock reading: a change of the time of day makes no client silent
	at   *list.Element
	gone bool
}

func newClients(limit int, count *counters) *clients {
	c := &clients{limit: limit, count: count, byKey: map[clientKey]*client{}}
	c.buffers.New = func() any { return new([maxDatagram]byte) }
	return c
}

// find returns a client, as used now, or nil.
func (l *clients) find(key clientKey) *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.byKey[key]
	if c != nil {
		l.touchLocked(c)
	}
	return c
}

// add makes a client. Past the limit, the one that is silent for longest has to make room.
func (l *clients) add(key clientKey, conn *net.UDPConn) *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.byKey) >= l.limit {
		l.removeLocked(l.order.Front().Value.(*client))
		l.count.forgotten.Add(1)
	}
	c := &client{key: key, conn: conn}
	c.at = l.order.PushBack(c)
	l.byKey[key] = c
	l.count.sessions.Add(1)
	l.touchLocked(c)
	return c
}

// touch notes that a client is used.
func (l *clients) touch(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.gone {
		l.touchLocked(c)
	}
}

func (l *clients) touchLocked(c *client) {
	c.used = time.Now()
	l.order.MoveToBack(c.at)
}

// lastUse returns when a client was used last.
func (l *clients) lastUse(c *client) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.used
}

// remove forgets a client and closes its socket. It may be called again.
func (l *clients) remove(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(c)
}

func (l *clients) removeLocked(c *client) {
	if c.gone {
		return
	}
	c.gone = true
	delete(l.byKey, c.key)
	l.order.Remove(c.at)
	l.count.sessions.Add(-1)
	_ = c.conn.Close()
}

// drop forgets all clients of a port.
func (l *clients) drop(s *udpServer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range l.byKey {
		if key.server == s {
			l.removeLocked(c)
		}
	}
}
