// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

const (
	// readBuf holds one datagram of a dump. The kernel fills at most 32 KiB (net/netlink/af_netlink.c,
	// netlink_dump), whatever the reader offers.
	readBuf = 32 << 10
	// deleteBatch bounds the deletions sent in one write. Each is answered by one datagram, which the kernel charges
	// with up to 1,280 bytes, so that 64 need 80 KiB of the receive buffer's default of 208 KiB.
	deleteBatch = 64
	// patience bounds the wait for an answer. The kernel answers within the system call, or after a walk of a large
	// table; one of 1,000,000 entries takes 0.3 s.
	patience = 30 * time.Second
)

// errInterrupted says that the table was resized or rewritten under a dump, which may then have missed entries.
var errInterrupted = errors.New("dump interrupted")

// kernel is the conntrack table of one network namespace. It is for one goroutine. It keeps two sockets, because a
// dump in progress blocks any other request on its own socket, and none of them is shared with whoever commits rules.
type kernel struct {
	netns      int
	dumps, ops *socket.Conn
	seq        uint32
	in, out    []byte
	// flows are the entries of the datagram at hand.
	flows []Flow
}

// openKernel opens the sockets in the namespace of the file descriptor netns, or in that of the calling thread if it
// is 0. Needs CAP_NET_ADMIN there.
func openKernel(netns int) (*kernel, error) {
	k := &kernel{netns: netns, in: make([]byte, readBuf)}
	if err := k.reopen(); err != nil {
		return nil, err
	}
	return k, nil
}

// reopen replaces both sockets, which also ends whatever was in progress on them.
func (k *kernel) reopen() error {
	k.close()
	dumps, err := dial(k.netns)
	if err != nil {
		return fmt.Errorf("conntrack dump socket: %w", err)
	}
	ops, err := dial(k.netns)
	if err != nil {
		_ = dumps.Close()
		return fmt.Errorf("conntrack delete socket: %w", err)
	}
	k.dumps, k.ops = dumps, ops
	return nil
}

// dial opens one netlink socket. Acknowledgements are asked to come without a copy of the request (NETLINK_CAP_ACK,
// Linux 4.3).
func dial(netns int) (*socket.Conn, error) {
	c, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, "ctnetlink",
		&socket.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	err = errors.Join(c.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		c.SetsockoptInt(unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1))
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// close closes the sockets. It may be called again.
func (k *kernel) close() {
	for _, c := range []*socket.Conn{k.dumps, k.ops} {
		if c != nil {
			_ = c.Close()
		}
	}
	k.dumps, k.ops = nil, nil
}

// dump streams the entries that match q, one datagram (about 170 entries) at a time, and returns how many there were.
// The slice that show gets is valid during the call only. An error of show ends the dump.
func (k *kernel) dump(q *query, show func([]Flow) error) (scanned int, err error) {
	intr := false
	entry := func(h header, data []byte) {
		intr = intr || h.flags&unix.NLM_F_DUMP_INTR != 0
		n := len(k.flows)
		k.flows = append(k.flows, Flow{}) // decoded in place: a Flow is some 170 bytes
		if scanned++; !k.flows[n].decode(data) {
			k.flows = k.flows[:n]
		}
	}
	k.seq++
	seq := k.seq // deletions go on counting
	err = k.send(k.dumps, q.appendDump(k.out[:0], seq))
	for done := false; err == nil && !done; {
		k.flows = k.flows[:0]
		done, err = k.receive(k.dumps, seq, entry)
		if err == nil {
			err = show(k.flows)
		}
	}
	switch {
	case err != nil:
		err = errors.Join(err, k.reopen()) // the rest of the dump would answer the next request
	case intr:
		err = errInterrupted
	}
	if err != nil {
		return scanned, fmt.Errorf("dump after %d conntrack entries: %w", scanned, err)
	}
	return scanned, nil
}

// send writes req to c, and keeps its memory for the next request.
func (k *kernel) send(c *socket.Conn, req []byte) error {
	k.out = req[:0]
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := c.Write(req)
	return err
}

// receive reads one datagram of the answer to request seq and hands its messages to entry. It reports done at the
// end of a dump and at an acknowledgement.
func (k *kernel) receive(c *socket.Conn, seq uint32, entry func(header, []byte)) (done bool, err error) {
	n, err := c.Read(k.in)
	if err != nil {
		return false, err
	}
	for b := k.in[:n]; len(b) > 0; {
		h, data, rest, ok := nextMessage(b)
		if !ok {
			return false, errMalformed
		}
		b = rest
		switch {
		case h.seq != seq:
		case h.typ == unix.NLMSG_ERROR || h.typ == unix.NLMSG_DONE:
			return true, errnoOf(data)
		default:
			entry(h, data[min(nfgenLen, len(data)):])
		}
	}
	return false, nil
}

// remove deletes the flows. One that is gone already is a success. It returns how many are still there, with the
// first error.
func (k *kernel) remove(flows []Flow) (failed int, err error) {
	for len(flows) > 0 {
		n := min(len(flows), deleteBatch)
		bad, e := k.removeBatch(flows[:n])
		if failed += bad; err == nil {
			err = e
		}
		flows = flows[n:]
	}
	if err != nil {
		err = fmt.Errorf("delete %d conntrack entries: %w", failed, err)
	}
	return failed, err
}

// removeBatch deletes up to deleteBatch flows with one write. What is not answered counts as failed.
func (k *kernel) removeBatch(flows []Flow) (failed int, err error) {
	req := k.out[:0]
	first := k.seq + 1
	for i := range flows {
		k.seq++
		req = flows[i].appendDelete(req, k.seq)
	}
	failed = len(flows)
	if err := k.send(k.ops, req); err != nil {
		return failed, errors.Join(err, k.reopen())
	}
	var refused error
	for range flows {
		n, err := k.ops.Read(k.in)
		if err != nil {
			return failed, errors.Join(err, k.reopen())
		}
		h, data, _, ok := nextMessage(k.in[:n])
		if !ok || h.seq-first >= uint32(len(flows)) {
			return failed, errors.Join(errMalformed, k.reopen())
		}
		if e := errnoOf(data); e == nil || errors.Is(e, syscall.ENOENT) {
			failed--
		} else {
			refused = e
		}
	}
	return failed, refused
}

// entries returns the number of entries of the namespace. The kernel keeps count; nothing is walked.
func (k *kernel) entries() (int, error) {
	k.seq++
	req, at := begin(k.out[:0], ctGetStats, 0, k.seq, unix.AF_UNSPEC)
	n := 0
	err := k.send(k.ops, finish(req, at))
	if err == nil {
		_, err = k.receive(k.ops, k.seq, func(_ header, data []byte) {
			if typ, v, _, ok := nextAttr(data); ok && typ == ctaStatsGlobalEntries {
				n = int(number32(v))
			}
		})
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("count conntrack entries: %w", err), k.reopen())
	}
	return n, nil
}

// probe asks which dump filters the kernel has. Each is probed with a request that a kernel with the filter refuses
// before it looks at any entry, and one without takes for a dump of everything, which is dropped with its socket.
func (k *kernel) probe() (Caps, error) {
	tuple, err := k.refuses(func(b []byte) []byte { // flags for a tuple that is missing
		b, filter := open(b, ctaFilter)
		return shut(attr(b, ctaFilterOrigFlags, 0xff, 0xff, 0xff, 0xff), filter)
	})
	if err != nil {
		return Caps{}, fmt.Errorf("probe conntrack tuple filter: %w", err)
	}
	status, err := k.refuses(func(b []byte) []byte { // a mask for a status that is missing
		return attr32(b, ctaStatusMask, statusDstNAT)
	})
	if err != nil {
		return Caps{}, fmt.Errorf("probe conntrack status filter: %w", err)
	}
	return Caps{Tuple: tuple, Status: status}, nil
}

// refuses says whether the kernel refuses a dump with the given attributes as invalid or unsupported.
func (k *kernel) refuses(attrs func([]byte) []byte) (bool, error) {
	k.seq++
	req, at := begin(k.out[:0], ctGet, unix.NLM_F_DUMP, k.seq, unix.AF_INET)
	err := k.send(k.dumps, finish(attrs(req), at))
	if err == nil {
		_, err = k.receive(k.dumps, k.seq, func(header, []byte) {})
	}
	refused := errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP)
	if refused {
		err = nil
	}
	return refused, errors.Join(err, k.reopen())
}

// raw sends packets that we made ourselves, one socket per family. It is for one goroutine.
type raw struct {
	v4, v6 *socket.Conn
	out    []byte
}

// openRaw opens the sockets in the namespace netns (see openKernel). Needs CAP_NET_RAW. A kernel without IPv6 gives
// none for it.
func openRaw(netns int) (*raw, error) {
	// IPPROTO_RAW: the packet brings its own IP header (raw(7), and since Linux 2.2 in IPv6 too).
	v4, err := socket.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, "nudge", &socket.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("raw IPv4 socket: %w", err)
	}
	v6, err := socket.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW, "nudge", &socket.Config{NetNS: netns})
	if err != nil && !errors.Is(err, syscall.EAFNOSUPPORT) {
		_ = v4.Close()
		return nil, fmt.Errorf("raw IPv6 socket: %w", err)
	}
	return &raw{v4: v4, v6: v6}, nil
}

// close closes the sockets.
func (r *raw) close() {
	_ = r.v4.Close()
	if r.v6 != nil {
		_ = r.v6.Close()
	}
}

// nudge makes the clients of the deleted flows notice; see appendNudge. It reports how many packets were sent. One
// that cannot be sent (no route, full queue) leaves its client to its own timeouts.
func (r *raw) nudge(flows []Flow) (sent int) {
	for i := range flows {
		f := &flows[i]
		if !nudgeable(f) {
			continue
		}
		r.out = appendNudge(r.out[:0], f)
		if err := r.send(f.Src.Addr()); err == nil {
			sent++
		}
	}
	return sent
}

// send sends the packet in r.out to dst.
func (r *raw) send(dst netip.Addr) error {
	if dst.Is4() {
		return r.v4.Sendto(context.Background(), r.out, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: dst.As4()})
	}
	if r.v6 == nil {
		return syscall.EAFNOSUPPORT
	}
	return r.v6.Sendto(context.Background(), r.out, unix.MSG_DONTWAIT, &unix.SockaddrInet6{Addr: dst.As16()})
}
