// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Kernel reads and writes the routing state of one network namespace over rtnetlink.
//
// It belongs to one goroutine at a time. Reading needs no privilege, writing needs CAP_NET_ADMIN in the
// namespace. It needs Linux 5.0 for strict dumps and for the owners of rules and neighbours.
type Kernel struct {
	dumps  *nl.SocketHandle // strict, so that filters are honoured
	writes *nl.SocketHandle // with extended acknowledgements: the errno alone cannot tell what was refused
	ns     netns.NsHandle
}

// requestTimeout bounds the wait for one answer. The kernel answers within the call; only a lock held for long
// by somebody else (rtnl) makes it wait.
const requestTimeout = 10 * time.Second

// dumpAttempts bounds the repetition of a dump that was interrupted by a change. Each takes a millisecond or
// less, and a change that lands in every one of ten is a storm; the next trigger will come.
const dumpAttempts = 10

// Open returns a Kernel for the network namespace of the calling thread.
func Open() (*Kernel, error) { return OpenAt(int(netns.None())) }

// OpenAt returns a Kernel for the network namespace behind the file descriptor ns, which must stay open as long
// as the Kernel is used. A negative descriptor means the namespace of the calling thread.
func OpenAt(ns int) (*Kernel, error) {
	k := &Kernel{ns: netns.NsHandle(ns)}
	var err error
	if k.dumps, err = k.open(); err != nil {
		return nil, err
	}
	if k.writes, err = k.open(); err != nil {
		k.dumps.Close()
		return nil, err
	}
	// Extended acknowledgements are not for dumps: nl (v1.3.1) takes the end of a dump that failed for an error
	// message, looks for the request echoed in it, and panics. TestDumpOfMissingTable holds this.
	err = errors.Join(
		unix.SetsockoptInt(k.dumps.Socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
		k.writes.Socket.SetExtAck(true),
	)
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("prepare rtnetlink: %w", err)
	}
	return k, nil
}

func (k *Kernel) open() (*nl.SocketHandle, error) {
	s, err := nl.GetNetlinkSocketAt(k.ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	limit := unix.NsecToTimeval(requestTimeout.Nanoseconds())
	if err := errors.Join(s.SetSendTimeout(&limit), s.SetReceiveTimeout(&limit)); err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare rtnetlink: %w", err)
	}
	return &nl.SocketHandle{Socket: s}, nil
}

// Close releases the sockets.
func (k *Kernel) Close() {
	k.dumps.Close()
	k.writes.Close()
}

// OpError tells which operation the kernel refused; it unwraps to the errno.
type OpError struct {
	Op   Op
	Text string // the operation in words, with the names of interfaces
	Err  error
}

// Error returns the operation and the kernel's reason.
func (e *OpError) Error() string { return e.Text + ": " + e.Err.Error() }

// Unwrap returns the cause, which wraps a syscall.Errno if the kernel refused.
func (e *OpError) Unwrap() error { return e.Err }

// Taken tells whether something of others holds the slot: repeating does not help until it goes.
func (e *OpError) Taken() bool { return errors.Is(e.Err, syscall.EEXIST) }

// denied tells whether the privilege to write is missing.
func (e *OpError) denied() bool {
	return errors.Is(e.Err, syscall.EPERM) || errors.Is(e.Err, syscall.EACCES)
}

// Apply carries out the operations one after the other and returns the entries that are now there, given that
// have were before. It goes on after an error, because the operations of one mode do not depend on another's;
// all errors are joined, each an [*OpError]. Absent on removal is success.
//
// name turns interface indexes into names for the errors.
func (k *Kernel) Apply(ctx context.Context, have Set, ops []Op, name func(int) string) (now Set, err error) {
	now = have.Clone()
	if now == nil {
		now = Set{}
	}
	var failed []error
	for _, op := range ops {
		if ctx.Err() != nil {
			failed = append(failed, ctx.Err())
			break
		}
		if err := k.do(op); err != nil {
			failed = append(failed, &OpError{op, op.Verb.String() + " " + op.Entry.Text(name), err})
			continue
		}
		switch op.Verb {
		case Remove:
			delete(now, op.Entry)
		case Replace:
			delete(now, op.Old)
			now[op.Entry] = struct{}{}
		default:
			now[op.Entry] = struct{}{}
		}
	}
	if len(failed) == 0 {
		return now, nil
	}
	return now, fmt.Errorf("routing: %d of %d operations failed: %w", len(failed), len(ops), errors.Join(failed...))
}

func (k *Kernel) do(op Op) error {
	messages, err := encode(op)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := request(k.writes, m, nil); err != nil && !(m.removes() && absent(err)) {
			return err
		}
	}
	return nil
}

// removes tells whether the message takes something away.
func (m message) removes() bool {
	switch m.typ {
	case unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_DELRULE, unix.RTM_DELNEIGH:
		return true
	}
	return false
}

// absent tells whether an error of a removal says that there is nothing to remove: the kernel uses ESRCH for routes,
// ENOENT for rules and neighbours, EADDRNOTAVAIL for addresses, and ENODEV or ENXIO when the interface is gone.
func absent(err error) bool {
	for _, e := range []error{unix.ESRCH, unix.ENOENT, unix.EADDRNOTAVAIL, unix.ENODEV, unix.ENXIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// request sends one message over a socket and hands every answer to f.
func request(s *nl.SocketHandle, m message, f func(body []byte)) error {
	req := &nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Len: unix.SizeofNlMsghdr, Type: m.typ, Flags: unix.NLM_F_REQUEST | m.flags},
		Sockets:  map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s},
		RawData:  m.body,
	}
	return req.ExecuteIter(unix.NETLINK_ROUTE, 0, func(b []byte) bool {
		if f != nil {
			f(b)
		}
		return true
	})
}

// dump collects what decode makes of a dump. A dump that was interrupted by a change may miss or repeat entries
// (NLM_F_DUMP_INTR): it is thrown away and made again.
func dump[E any](ctx context.Context, k *Kernel, m message, decode func([]byte) (E, bool)) ([]E, error) {
	m.flags |= unix.NLM_F_DUMP
	var err error
	for range dumpAttempts {
		var out []E
		err = request(k.dumps, m, func(b []byte) {
			if e, ok := decode(b); ok {
				out = append(out, e)
			}
		})
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			return out, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("%d attempts: %w", dumpAttempts, err)
}

// watchBuffer is the receive buffer asked for. A notification takes about 1 KiB of it (skb truesize), so a burst of
// 1,000 fits; what does not fit is told as ENOBUFS, and that is a trigger like any other.
const watchBuffer = 1 << 20

// Watcher hears what changes in a network namespace.
type Watcher struct {
	socket *nl.NetlinkSocket
}

// Watch subscribes to changes in the namespace of k. Whatever happens after it has returned is heard by
// [Watcher.Run], so subscribe first and read then. The Watcher has a socket of its own and may outlive k.
func (k *Kernel) Watch() (Subscription, error) {
	s, err := nl.SubscribeAt(k.ns, netns.None(), unix.NETLINK_ROUTE, watchGroups[:]...)
	if err != nil {
		return nil, fmt.Errorf("routing: watch %d groups of rtnetlink: %w", len(watchGroups), err)
	}
	if err := s.SetReceiveBufferSize(watchBuffer, false); err != nil {
		s.Close()
		return nil, fmt.Errorf("routing: watch: receive buffer of %d bytes: %w", watchBuffer, err)
	}
	return &Watcher{s}, nil
}

// Run implements [Subscription].
func (w *Watcher) Run(ctx context.Context, interest func() Interest, trigger func()) error {
	defer w.socket.Close()
	stop := context.AfterFunc(ctx, w.socket.Close) // a pending Receive returns
	defer stop()
	for {
		messages, _, err := w.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some were lost
			trigger()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("routing: watch: %w", err)
		case concernsAny(interest(), messages):
			trigger()
		}
	}
}

// Close ends a subscription that does not run.
func (w *Watcher) Close() { w.socket.Close() }
