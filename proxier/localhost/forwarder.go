// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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

// network is the name of the port's family and protocol in package net.
func (p Port) network(proto string) string {
	if p.IPv6 {
		return proto + "6"
	}
	return proto + "4"
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
	// Report is called when a wanted port cannot be opened, once until it can or is not wanted any more, and with a nil
	// error when it is open at last. The goroutine of Run calls it with a lock held: it must not block, nor call the
	// Forwarder. It may be nil.
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
	opt     Options
	started time.Time
	kicked  chan struct{}
	buffers sync.Pool // of *[maxDatagram]byte

	connections *sessions // TCP
	sessions    *sessions // UDP
	running     sync.WaitGroup
	failing     map[Port]Target // as reported; of the goroutine of Run

	mu       sync.Mutex
	want     map[Port]Target
	dirty    map[Port]bool // changed since Run looked
	open     map[Port]server
	failures uint64
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
	o = o.withDefaults()
	return &Forwarder{
		opt: o, started: time.Now(), kicked: make(chan struct{}, 1),
		buffers:     sync.Pool{New: func() any { return new([maxDatagram]byte) }},
		connections: newSessions(o.Limits.Connections, o.Limits.PerPort, minSilence),
		sessions:    newSessions(o.Limits.Clients, o.Limits.Clients, 0),
		want:        map[Port]Target{}, dirty: map[Port]bool{}, open: map[Port]server{}, failing: map[Port]Target{},
	}
}

// Update sets what is wanted; of two changes of one port the later holds. It returns before the ports are open or
// closed, costs as much as there are changes, and may be called at any time by any goroutine.
func (f *Forwarder) Update(changes []Change) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	for _, c := range changes {
		f.dirty[c.Port] = true
		f.want[c.Port] = c.Target
		if c.Target == (Target{}) {
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
	retry, sweep, sweepTCP := time.NewTicker(f.opt.Retry), time.NewTicker(f.opt.Idle/10), time.NewTicker(f.opt.IdleTCP/10)
	defer retry.Stop()
	defer sweep.Stop()
	defer sweepTCP.Stop()
	for {
		select {
		case <-ctx.Done():
			for p := range f.opened() {
				f.apply(ctx, p, Target{})
			}
			f.running.Wait()
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
			f.sessions.sweep(f.opt.Idle)
		case <-sweepTCP.C:
			f.connections.sweep(f.opt.IdleTCP)
		}
	}
}

// take returns the ports that changed with their targets.
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

// opened returns the ports that are open.
func (f *Forwarder) opened() map[Port]server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.open)
}

// apply opens, retargets or closes a port.
func (f *Forwarder) apply(ctx context.Context, p Port, t Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, open := f.open[p]
	switch {
	case t == (Target{}):
		delete(f.failing, p)
		delete(f.open, p)
		if open {
			s.close()
		}
	case open:
		s.retarget(t.To)
	default:
		f.listen(ctx, p, t)
	}
}

// listen opens a port. f.mu is held.
func (f *Forwarder) listen(ctx context.Context, p Port, t Target) {
	s, err := f.serve(ctx, p, t.To)
	was, failed := f.failing[p]
	if err != nil {
		f.failing[p] = t
		f.failures++
		if !failed || was.Owner != t.Owner {
			f.opt.Report(p, t, fmt.Errorf("listen on %s: %w", p, err))
		}
		return
	}
	f.open[p] = s
	if failed {
		delete(f.failing, p)
		f.opt.Report(p, t, nil)
	}
}

var errProto = errors.New("neither TCP nor UDP")

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

// loopbackOnly binds a listener to the loopback interface, so that it stays closed to the network even where other
// software has set route_localnet. Linux 5.7 and later allow that without CAP_NET_RAW.
func loopbackOnly() net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), "lo") })
		return errors.Join(err, failed)
	}}
}

// Stats are numbers of the moment, and totals since the start.
type Stats struct {
	ListenersIPv4, ListenersIPv6 int
	Connections, Clients         int    // TCP connections, UDP clients
	Failures                     uint64 // of opening a port, retries included
	Refused, Forgotten           uint64 // TCP connections and UDP clients above a limit: the new one, or one that made room
}

// Stats may be called at any time by any goroutine.
func (f *Forwarder) Stats() (s Stats) {
	for p := range f.opened() {
		if p.IPv6 {
			s.ListenersIPv6++
		} else {
			s.ListenersIPv4++
		}
	}
	s.Connections, s.Refused = f.connections.count()
	s.Clients, s.Forgotten = f.sessions.count()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Failures = f.failures
	return s
}
