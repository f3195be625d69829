// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

const (
	// readBuffer holds one datagram of a dump. The kernel fills at most 32 KiB (net/netlink/af_netlink.c, netlink_dump),
	// whatever the reader offers.
	readBuffer = 32 << 10
	// batch bounds the entries that are decided on together and the deletions that are sent in one write. Each deletion
	// is answered by a datagram, which the kernel charges with up to 1,280 bytes, so that 64 need 80 KiB of the receive
	// buffer's default of 208 KiB.
	batch = 64
	// timeout bounds the wait for an answer. The kernel answers within the system call, or after a walk of a large
	// table; one of 1,000,000 entries takes 0.3 s.
	timeout = 30 * time.Second
)

// table is the conntrack table of one network namespace. It is for one goroutine. It has two sockets, because a dump
// in progress blocks any other request on its own socket. Each is opened when it is needed and closed after any error,
// so that the rest of an answer is not taken for the next one's.
type table struct {
	netns      int
	dumps, ops *netlink.Conn
	flows      []ctsync.Flow // of the dump in progress
}

// openTable returns the table of the namespace of the file descriptor netns, or of the calling thread if it is 0.
// Needs CAP_NET_ADMIN there.
func openTable(netns int) (*table, error) {
	t := &table{netns: netns, flows: make([]ctsync.Flow, 0, batch)}
	for _, c := range []**netlink.Conn{&t.dumps, &t.ops} {
		if _, err := t.open(c); err != nil {
			t.close()
			return nil, err
		}
	}
	return t, nil
}

// open returns the socket in *c, opened if it is not, with a new timeout.
func (t *table) open(c **netlink.Conn) (*netlink.Conn, error) {
	if *c == nil {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.netns, MessageBufferSize: readBuffer})
		if err != nil {
			return nil, fmt.Errorf("open conntrack socket: %w", err)
		}
		*c = conn
	}
	return *c, (*c).SetDeadline(time.Now().Add(timeout))
}

// shut closes the socket in *c. It may be called again.
func shut(c **netlink.Conn) {
	if *c != nil {
		_ = (*c).Close()
		*c = nil
	}
}

func (t *table) close() {
	shut(&t.dumps)
	shut(&t.ops)
}

// dump shows the entries that match q, up to a batch of them at a time, and returns how many there were. The slice
// that show gets is valid during the call. An error of show ends the dump. An error that wraps EINTR means that the
// table was resized meanwhile, so that entries may be missing.
func (t *table) dump(q ctsync.Query, show func([]ctsync.Flow) error) (scanned int, err error) {
	defer func() {
		if err != nil {
			shut(&t.dumps)
			err = fmt.Errorf("dump after %d conntrack entries: %w", scanned, err)
		}
	}()
	conn, err := t.open(&t.dumps)
	if err == nil {
		_, err = conn.Send(dumpRequest(q))
	}
	if err != nil {
		return 0, err
	}
	interrupted := false
	flows := t.flows[:0]
	for m, err := range conn.ReceiveIter() {
		if err != nil {
			return scanned, err
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		scanned++
		flows = flows[:len(flows)+1] // decoded in place: a Flow is some 120 bytes
		if !decode(&flows[len(flows)-1], m.Data) {
			flows = flows[:len(flows)-1]
		}
		if len(flows) == cap(flows) {
			if err := errors.Join(show(flows), conn.SetDeadline(time.Now().Add(timeout))); err != nil {
				shut(&t.dumps) // now, or the iterator reads the rest of the dump
				return scanned, err
			}
			flows = flows[:0]
		}
	}
	if err := show(flows); err != nil {
		return scanned, err
	}
	if interrupted {
		return scanned, syscall.EINTR
	}
	return scanned, nil
}

// remove deletes up to a batch of flows with one write. One that is gone already is a success. It returns how many are
// left; a flow without an answer counts as left.
func (t *table) remove(flows []ctsync.Flow) (left int, err error) {
	conn, fault := t.open(&t.ops)
	if fault == nil {
		requests := make([]netlink.Message, len(flows))
		for i := range flows {
			requests[i] = deleteRequest(&flows[i])
		}
		_, fault = conn.SendMessages(requests)
	}
	left = len(flows)
	var refused error
	for i := 0; i < len(flows) && fault == nil; i++ {
		_, answer := conn.Receive()
		var op *netlink.OpError
		switch {
		case answer == nil || errors.Is(answer, syscall.ENOENT):
			left--
		case errors.As(answer, &op) && op.Sequence != 0: // refused by the kernel; the next answer follows
			refused = answer
		default:
			fault = answer
		}
	}
	if fault != nil {
		shut(&t.ops)
	}
	if err := errors.Join(refused, fault); err != nil {
		return left, fmt.Errorf("delete %d of %d conntrack entries: %w", left, len(flows), err)
	}
	return left, nil
}

// first sends a request on a socket of its own and returns the first message of the answer, or its errno.
func (t *table) first(request netlink.Message) (message []byte, err error) {
	var c *netlink.Conn
	defer shut(&c)
	conn, err := t.open(&c)
	if err == nil {
		_, err = conn.Send(request)
	}
	if err != nil {
		return nil, err
	}
	for m, err := range conn.ReceiveIter() {
		shut(&c) // now, or the iterator waits for the rest
		return m.Data, err
	}
	return nil, nil
}

// entries returns the number of entries of the namespace. The kernel keeps count; nothing is walked. It marks the
// answer as one of many (NLM_F_MULTI) and sends no end.
func (t *table) entries() (int, error) {
	message, err := t.first(request(ctGetStats, 0, 0, func(*nl.Buffer) {}))
	if err != nil {
		return 0, fmt.Errorf("count conntrack entries: %w", err)
	}
	return int(nl.Net(nl.Find(message[min(nfgenLen, len(message)):], ctaStatsGlobalEntries))), nil
}

// probe finds out which filters of dumps the kernel has. Each is probed with a request that a kernel with the filter refuses
// before it looks at any entry, and that one without takes for a dump of everything, which ends with its socket.
func (t *table) probe() (ctsync.Caps, error) {
	tuple, err := t.refuses(func(b *nl.Buffer) { // flags for a tuple that is missing
		filter := b.Open(ctaFilter)
		b.Host32(ctaFilterOrigFlags, ^uint32(0))
		b.Close(filter)
	})
	if err != nil {
		return ctsync.Caps{}, fmt.Errorf("probe conntrack tuple filter: %w", err)
	}
	status, err := t.refuses(func(b *nl.Buffer) { b.Net32(ctaStatusMask, statusDstNAT) }) // a mask without a status
	if err != nil {
		return ctsync.Caps{}, fmt.Errorf("probe conntrack status filter: %w", err)
	}
	return ctsync.Caps{Tuple: tuple, Status: status}, nil
}

// refuses reports whether the kernel refuses a dump with the given attributes as invalid or unsupported.
func (t *table) refuses(attrs func(*nl.Buffer)) (bool, error) {
	_, err := t.first(request(ctGet, netlink.Dump, nl.IPv4, attrs))
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		return true, nil
	}
	return false, err
}

// List shows the flows of both families whose destination was translated, as they come from the kernel: at no time is
// more than one datagram in memory (about 170 entries). It returns the number of entries that the kernel returned, and
// whether the table was not resized meanwhile: otherwise some entries may be missing or counted twice. begin is called
// before the first flow, and again when everything comes anew after a resize. The Flow is valid during the call.
//
// netns is the descriptor of the network namespace, 0 for that of the calling thread. Needs CAP_NET_ADMIN there. A table
// of 1,000,000 entries takes about a second; it is read in stretches of less than a millisecond, as a Syncer reads it.
func List(ctx context.Context, netns int, begin func(), show func(*ctsync.Flow)) (scanned int, exact bool, err error) {
	t, err := openTable(netns)
	if err != nil {
		return 0, false, err
	}
	defer t.close()
	err = nl.Retry(ctx, func() (err error) {
		begin()
		scanned, err = t.dump(ctsync.Query{}, func(flows []ctsync.Flow) error {
			for i := range flows {
				if flows[i].Translated() {
					show(&flows[i])
				}
			}
			return ctx.Err()
		})
		return err
	})
	if errors.Is(err, syscall.EINTR) {
		return scanned, false, nil
	}
	return scanned, err == nil, err
}
