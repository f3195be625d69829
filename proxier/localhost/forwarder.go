// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Port is a NodePort at the loopback address of a family.
type Port struct {
	IPv6   bool
	Proto  kube.Proto // TCP or UDP
	Number uint16
}

// Addr is where the port is listened on: 127.0.0.1 or ::1.
func (p Port) Addr() netip.AddrPort {
	if p.IPv6 {
		return netip.AddrPortFrom(netip.IPv6Loopback(), p.Number)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), p.Number)
}

// String is "TCP 127.0.0.1:30080".
func (p Port) String() string { return p.Proto.String() + " " + p.Addr().String() }

// Target is where a port leads.
type Target struct {
	Owner kube.Name // the Service
	// To is an address of the same family at which the kernel serves the Service to processes of this node.
	To netip.AddrPort
}

// Change is a port that is wanted from now on, or, with the zero Target, not any more.
type Change struct {
	Port
	Target
}

// Limits bound what clients can make this process hold.
type Limits struct {
	// Connections and Clients are the TCP connections and UDP clients in all, PerPort the connections to one port, so
	// that one Service cannot take them from all others. For one too many, the one that is silent for longest is reset
	// or forgotten; a new connection is reset if no other one is silent for a minute.
	Connections, PerPort, Clients int
}

// DefaultLimits are for a node. An idle connection costs two descriptors, and two stacks of about 4 KiB; one under
// load up to six descriptors (two pipes for splice) and 128 KiB of pipe buffers, which the kernel limits per user
// itself. A UDP client costs one descriptor and one stack. So at the limits they hold some 30,000 descriptors of the
// 524,288 or more that container runtimes allow, and 50 MiB.
func DefaultLimits() Limits { return Limits{Connections: 4096, PerPort: 1024, Clients: 4096} }

// Options are what a Forwarder works with. Zero values take the defaults.
type Options struct {
	Limits Limits
	// Idle is how long a UDP client may be silent, in both directions, before it is forgotten; 0 is two minutes, as long as
	// conntrack keeps a UDP stream by default. IdleTCP is the same for TCP connections, which are reset at most a tenth
	// later; 0 is 24 hours, as long as kube-proxy lets conntrack keep an established connection.
	Idle, IdleTCP time.Duration
	// Retry is the pause before a port that could not be opened is tried again; 0 is one second.
	Retry time.Duration
	// Report is told when a wanted port cannot be opened, once until it can or is not wanted any more, and with a nil error
	// when it is open after all. It is called by the goroutine of Run and must not block; nil tells nobody.
	Report func(Port, Target, error)
}

func (o Options) withDefaults() Options {
	l, d := &o.Limits, DefaultLimits()
	l.Connections, l.PerPort, l.Clients = cmp.Or(l.Connections, d.Connections), cmp.Or(l.PerPort, d.PerPort), cmp.Or(l.Clients, d.Clients)
	o.Idle, o.IdleTCP, o.Retry = cmp.Or(o.Idle, 2*time.Minute), cmp.Or(o.IdleTCP, 24*time.Hour), cmp.Or(o.Retry, time.Second)
	if o.Report == nil {
		o.Report = func(Port, Target, error) {}
	}
	return o
}

// Forwarder listens on the wanted ports while Run runs. Make one with New.
type Forwarder struct {
	opt    Options
	kicked chan struct{}
	count  counters

	mu    sync.Mutex
	want  map[Port]Target
	dirty map[Port]bool // changed since Run looked

	// What follows belongs to the goroutine of Run.
	open    map[Port]server
	failing map[Port]Target // as reported
	running sync.WaitGroup

	clients *clients
	conns   *conns
}

// server serves one port.
type server interface {
	// retarget changes where new connections, and all datagrams, go.
	retarget(netip.AddrPort)
	// close stops listening. What is connected goes on.
	close()
}

// New returns a Forwarder that listens on nothing yet.
func New(o Options) *Forwarder {
	f := &Forwarder{
		opt:    o.withDefaults(),
		kicked: make(chan struct{}, 1),
		want:   map[Port]Target{}, dirty: map[Port]bool{},
		open: map[Port]server{}, failing: map[Port]Target{},
	}
	f.clients = newClients(f.opt.Limits.Clients, &f.count)
	f.conns = &conns{limits: f.opt.Limits, count: &f.count, silence: silence, open: map[*net.TCPConn]*tcpServer{}}
	return f
}

// Update tells what is wanted; of two changes of one port the later holds. It returns before the ports are open or
// closed, costs as much as there are changes, and may be called at any time by any goroutine.
func (f *Forwarder) Update(changes []Change) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	for _, c := range changes {
		f.dirty[c.Port] = true
		if f.want[c.Port] = c.Target; c.Target == (Target{}) {
			delete(f.want, c.Port)
		}
	}
	f.mu.Unlock()
	select {
	case f.kicked <- struct{}{}:
	default:
	}
}

// Run listens and forwards in the network namespace of the process until ctx ends; then it closes everything,
// connections too, and returns nil. Call it once.
func (f *Forwarder) Run(ctx context.Context) error {
	retry := time.NewTicker(f.opt.Retry)
	defer retry.Stop()
	sweep := time.NewTicker(f.opt.IdleTCP / 10)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			f.closeAll()
			return nil
		case <-f.kicked:
			for p, t := range f.take() {
				f.apply(ctx, p, t)
			}
		case <-retry.C:
			for p, t := range f.failing {
				f.apply(ctx, p, t)
			}
		case <-sweep.C:
			f.conns.sweep(f.opt.IdleTCP)
		}
	}
}

// take returns the ports that changed with what they are to be now.
func (f *Forwarder) take() map[Port]Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[Port]Target, len(f.dirty))
	for p := range f.dirty {
		out[p] = f.want[p]
	}
	clear(f.dirty)
	return out
}

// apply opens, retargets or closes a port.
func (f *Forwarder) apply(ctx context.Context, p Port, t Target) {
	s, open := f.open[p]
	switch {
	case t == (Target{}):
		delete(f.failing, p)
		if open {
			s.close()
			delete(f.open, p)
			f.count.listeners(p.IPv6).Add(-1)
		}
	case open:
		s.retarget(t.To)
	default:
		f.listen(ctx, p, t)
	}
}

// listen opens a port.
func (f *Forwarder) listen(ctx context.Context, p Port, t Target) {
	s, err := f.serve(ctx, p, t.To)
	was, failed := f.failing[p]
	if err != nil {
		f.failing[p] = t
		f.count.failures.Add(1)
		if !failed || was.Owner != t.Owner {
			f.opt.Report(p, t, fmt.Errorf("listen on %s: %w", p, err))
		}
		return
	}
	f.open[p] = s
	f.count.listeners(p.IPv6).Add(1)
	if failed {
		delete(f.failing, p)
		f.opt.Report(p, t, nil)
	}
}

// serve starts a server of the port's protocol.
func (f *Forwarder) serve(ctx context.Context, p Port, to netip.AddrPort) (server, error) {
	switch p.Proto {
	case kube.TCP:
		return f.serveTCP(ctx, p, to)
	case kube.UDP:
		return f.serveUDP(ctx, p, to)
	}
	return nil, fmt.Errorf("protocol %s: %w", p.Proto, errProto)
}

// closeAll ends all servers; connections end by the context.
func (f *Forwarder) closeAll() {
	for p, s := range f.open {
		s.close()
		f.count.listeners(p.IPv6).Add(-1)
	}
	clear(f.open)
	f.running.Wait()
}

// counters are what Stats shows.
type counters struct {
	listening             [2]atomic.Int64 // IPv4, IPv6
	connections, sessions atomic.Int64
	failures, refused     atomic.Uint64
	forgotten             atomic.Uint64
}

func (c *counters) listeners(ipv6 bool) *atomic.Int64 {
	if ipv6 {
		return &c.listening[1]
	}
	return &c.listening[0]
}

// Stats are numbers of the moment, and totals since the start.
type Stats struct {
	ListenersIPv4, ListenersIPv6 int
	Connections, Clients         int    // TCP connections, UDP clients
	Failures                     uint64 // of opening a port, retries included
	Refused                      uint64 // TCP connections over a limit
	Forgotten                    uint64 // UDP clients that had to make room
}

// Stats may be called at any time by any goroutine.
func (f *Forwarder) Stats() Stats {
	c := &f.count
	return Stats{
		ListenersIPv4: int(c.listening[0].Load()), ListenersIPv6: int(c.listening[1].Load()),
		Connections: int(c.connections.Load()), Clients: int(c.sessions.Load()),
		Failures: c.failures.Load(), Refused: c.refused.Load(), Forgotten: c.forgotten.Load(),
	}
}
