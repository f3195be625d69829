// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// ctNew creates an entry. The product never does.
const ctNew = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW is 0

// newNS moves the calling test into a network namespace of its own and returns its file descriptor. The thread is
// locked and dies with the test.
func newNS(tb testing.TB) int {
	tb.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			tb.Fatalf("network namespace: %v", err)
		}
		tb.Skipf("network namespace: %v", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// run runs a command in the namespace of the calling thread.
func run(tb testing.TB, stdin string, command ...string) string {
	tb.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// openTest opens the conntrack table of the namespace.
func openTest(tb testing.TB, ns int) *table {
	tb.Helper()
	k, err := openTable(ns)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(k.close)
	return k
}

// newRequest creates f, with a timeout far beyond any test. A translated flow gets its translation the way NAT sets it,
// so that its status is as real as that of a packet's. Only destination NAT.
func newRequest(f *ctsync.Flow) netlink.Message {
	flags := netlink.Create | netlink.Excl | netlink.Acknowledge
	return request(ctNew, flags, nl.FamilyOf(f.Src.Addr()), func(b *nl.Buffer) {
		putTuple(b, ctaTupleOrig, f, f.Src, f.Dst)
		putTuple(b, ctaTupleReply, f, f.Dst, f.Src)
		status := uint32(1 << 3) // IPS_CONFIRMED
		if f.Replied {
			status |= statusSeenReply
		}
		b.Net32(ctaStatus, status)
		b.Net32(7, 36_000) // CTA_TIMEOUT
		if f.Translated() {
			putNAT(b, f.ReplySrc)
		}
		if f.Zone != 0 && !f.ZoneOrig {
			b.Net16(ctaZone, f.Zone)
		}
		if f.Proto == ctsync.TCP || f.Proto == ctsync.SCTP {
			putState(b, f)
		}
	})
}

// putNAT appends CTA_NAT_DST.
func putNAT(b *nl.Buffer, to netip.AddrPort) {
	nat := b.Open(13)
	first, last := uint16(1), uint16(2) // CTA_NAT_V4_MINIP and MAXIP
	if to.Addr().Is6() {
		first, last = 4, 5
	}
	b.Addr(first, to.Addr())
	b.Addr(last, to.Addr())
	ports := b.Open(3) // CTA_NAT_PROTO
	b.Net16(1, to.Port())
	b.Net16(2, to.Port())
	b.Close(ports)
	b.Close(nat)
}

// putState appends CTA_PROTOINFO.
func putState(b *nl.Buffer, f *ctsync.Flow) {
	info := b.Open(ctaProtoInfo)
	if f.Proto == ctsync.TCP {
		tcp := b.Open(ctaProtoInfoTCP)
		b.Bytes(ctaProtoInfoTCPState, f.TCPState)
		b.Close(tcp)
	} else {
		sctp := b.Open(3) // CTA_PROTOINFO_SCTP
		b.Bytes(1, 3)     // established
		b.Net32(2, 111)   // verification tags
		b.Net32(3, 222)
		b.Close(sctp)
	}
	b.Close(info)
}

// create puts flows into the kernel's table.
func (k *table) create(tb testing.TB, flows ...ctsync.Flow) {
	tb.Helper()
	conn, err := k.open(&k.ops)
	if err != nil {
		tb.Fatal(err)
	}
	for part := range slices.Chunk(flows, batch) {
		var requests []netlink.Message
		for i := range part {
			requests = append(requests, newRequest(&part[i]))
		}
		if _, err := conn.SendMessages(requests); err != nil {
			tb.Fatal(err)
		}
		for i := range part {
			if _, err := conn.Receive(); err != nil {
				tb.Fatalf("create %+v: %v", part[i], err)
			}
		}
	}
}

// all returns what a query shows.
func (k *table) all(tb testing.TB, q ctsync.Query) []ctsync.Flow {
	tb.Helper()
	var all []ctsync.Flow
	if _, err := k.dump(q, func(f []ctsync.Flow) error { all = append(all, f...); return nil }); err != nil {
		tb.Fatal(err)
	}
	slices.SortFunc(all, func(a, b ctsync.Flow) int { return cmp.Compare(text(&a), text(&b)) })
	return all
}

// text is one flow as a line, without its ID.
func text(f *ctsync.Flow) string {
	o := *f
	o.ID = 0
	return fmt.Sprintf("%+v", o)
}

func texts(flows []ctsync.Flow) string {
	var lines []string
	for i := range flows {
		lines = append(lines, text(&flows[i]))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// flow returns a flow as the kernel shows it; endpoint is "" for an untranslated one.
func flow(p ctsync.Proto, src, dst, endpoint string) ctsync.Flow {
	f := ctsync.Flow{Proto: p, Src: ap(src), Dst: ap(dst), ReplySrc: ap(dst), Replied: true}
	if endpoint != "" {
		f.ReplySrc = ap(endpoint)
	}
	if p == ctsync.TCP {
		f.TCPState = 3 // established
	}
	return f
}

// with returns f changed.
func with(f ctsync.Flow, change func(*ctsync.Flow)) ctsync.Flow { change(&f); return f }

func front(p ctsync.Proto, addrPort string) ctsync.Frontend {
	a := ap(addrPort)
	return ctsync.Frontend{Addr: a.Addr(), Port: a.Port(), Proto: p}
}

func eps(list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, ap(s))
	}
	return out
}

// shapes are flows of all kinds that the codec has to deal with.
func shapes() []ctsync.Flow {
	return []ctsync.Flow{
		flow(ctsync.UDP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		flow(ctsync.UDP, "10.1.0.1:1002", "10.96.0.1:53", "10.244.0.2:5353"),
		flow(ctsync.UDP, "10.1.0.1:1003", "10.96.0.1:54", "10.244.0.2:5353"),
		flow(ctsync.UDP, "10.1.0.1:65535", "10.96.0.2:53", ""),
		with(flow(ctsync.UDP, "10.1.0.1:1004", "10.96.0.2:53", ""), func(f *ctsync.Flow) { f.Replied = false }),
		with(flow(ctsync.UDP, "10.1.0.1:1004", "10.96.0.2:53", "10.244.0.1:53"), func(f *ctsync.Flow) { f.Zone = 7 }),
		with(flow(ctsync.UDP, "10.1.0.1:1004", "10.96.0.2:53", "10.244.0.1:53"), func(f *ctsync.Flow) { f.Zone, f.ZoneOrig = 8, true }),
		flow(ctsync.TCP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		with(flow(ctsync.TCP, "10.1.0.1:1002", "10.96.0.1:53", ""), func(f *ctsync.Flow) { f.TCPState, f.Replied = ctsync.TCPSynSent, false }),
		flow(ctsync.SCTP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		flow(ctsync.UDP, "[fd00:1::1]:1001", "[fd00:96::1]:53", "[fd00:244::1]:5353"),
		flow(ctsync.UDP, "[fd00:1::1]:1002", "[fd00:96::2]:53", "[fd00:244::1]:5353"),
		flow(ctsync.UDP, "[fd00:1::1]:1003", "[fd00:96::1]:54", ""),
		flow(ctsync.TCP, "[fd00:1::1]:1003", "[fd00:96::1]:53", "[fd00:244::1]:5353"),
	}
}

// TestKernelDecode holds our decoder to that of ti-mo/conntrack, entry by entry, and both to what was created.
func TestKernelDecode(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	got := k.all(t, ctsync.Query{})
	if g, w := texts(got), texts(shapes()); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	c, err := conntrack.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	theirs, err := c.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	byID := map[uint32]ctsync.Flow{}
	for _, f := range got {
		byID[f.ID] = f
	}
	for _, o := range theirs {
		if f, w := byID[o.ID], oracle(o); f != w {
			t.Errorf("\ngot  %+v\nwant %+v", f, w)
		}
	}
	if len(theirs) != len(got) {
		t.Errorf("%d entries, want %d", len(got), len(theirs))
	}
}

// oracle converts an entry that ti-mo/conntrack decoded.
func oracle(o conntrack.Flow) ctsync.Flow {
	f := ctsync.Flow{
		Src:      netip.AddrPortFrom(o.TupleOrig.IP.SourceAddress, o.TupleOrig.Proto.SourcePort),
		Dst:      netip.AddrPortFrom(o.TupleOrig.IP.DestinationAddress, o.TupleOrig.Proto.DestinationPort),
		ReplySrc: netip.AddrPortFrom(o.TupleReply.IP.SourceAddress, o.TupleReply.Proto.SourcePort),
		Replied:  o.Status.SeenReply(), ID: o.ID, Zone: o.Zone, Proto: ctsync.Proto(o.TupleOrig.Proto.Protocol),
	}
	if o.TupleOrig.Zone != 0 {
		f.Zone, f.ZoneOrig = o.TupleOrig.Zone, true
	}
	if o.ProtoInfo.TCP != nil {
		f.TCPState = o.ProtoInfo.TCP.State
	}
	return f
}

// TestKernelFilters checks that no filter hides an entry it must show, and that each that the kernel has hides what it
// can.
func TestKernelFilters(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	caps, err := k.probe()
	if err != nil {
		t.Fatal(err)
	}
	sctp := func(f *ctsync.Flow) bool { return f.Proto == ctsync.SCTP }
	udp4 := func(f *ctsync.Flow) bool { return isV4(f) && f.Proto == ctsync.UDP }
	vip4, vip6 := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")
	for name, c := range map[string]struct {
		q      ctsync.Query
		must   func(f *ctsync.Flow) bool
		atMost func(f *ctsync.Flow) bool
	}{
		"family":      {ctsync.Query{Family: nl.IPv4}, isV4, isV4},
		"dnat":        {ctsync.Query{DNAT: true}, (*ctsync.Flow).Translated, (*ctsync.Flow).Translated},
		"proto":       {ctsync.Query{Family: nl.IPv4, Proto: ctsync.UDP}, udp4, udp4},
		"port":        {ctsync.Query{Family: nl.IPv6, Proto: ctsync.UDP, Port: 53}, v6dns, v6dns},
		"one address": {ctsync.Query{Family: nl.IPv4, Proto: ctsync.UDP, Port: 53, Dst: vip4}, dns1, dns1},
		"one address, both filters": {ctsync.Query{Family: nl.IPv4, Proto: ctsync.UDP, Port: 53, Dst: vip4, DNAT: true},
			dns1, dns1},
		"one IPv6 address": {ctsync.Query{Family: nl.IPv6, Proto: ctsync.UDP, Port: 53, Dst: vip6},
			func(f *ctsync.Flow) bool { return v6dns(f) && f.Dst.Addr() == vip6 }, v6dns},
		"SCTP": {ctsync.Query{Family: nl.IPv4, Proto: ctsync.SCTP, Port: 53}, sctp, sctp},
	} {
		t.Run(name, func(t *testing.T) {
			shown := map[string]bool{}
			has := (c.q.Proto == 0 || caps.Tuple) && (!c.q.DNAT || caps.Status)
			for _, f := range k.all(t, c.q) {
				shown[text(&f)] = true
				if has && !c.atMost(&f) {
					t.Errorf("shows %s", text(&f))
				}
			}
			for _, f := range shapes() {
				if c.must(&f) && !shown[text(&f)] {
					t.Errorf("hides %s", text(&f))
				}
			}
		})
	}
}

func isV4(f *ctsync.Flow) bool  { return f.Src.Addr().Is4() }
func v6dns(f *ctsync.Flow) bool { return !isV4(f) && f.Proto == ctsync.UDP && f.Dst.Port() == 53 }
func dns1(f *ctsync.Flow) bool  { return f.Proto == ctsync.UDP && f.Dst == ap("10.96.0.1:53") }

// TestKernelProbe: what the probe reports is what a dump shows.
func TestKernelProbe(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	caps, err := k.probe()
	if err != nil {
		t.Fatal(err)
	}
	hides := func(q ctsync.Query, kind func(*ctsync.Flow) bool) bool {
		return !slices.ContainsFunc(k.all(t, q), func(f ctsync.Flow) bool { return !kind(&f) })
	}
	udp := func(f *ctsync.Flow) bool { return f.Proto == ctsync.UDP }
	if got := hides(ctsync.Query{Family: nl.IPv4, Proto: ctsync.UDP}, udp); got != caps.Tuple {
		t.Errorf("tuple filter: %v, the probe has %v", got, caps.Tuple)
	}
	if got := hides(ctsync.Query{DNAT: true}, (*ctsync.Flow).Translated); got != caps.Status {
		t.Errorf("status filter: %v, the probe has %v", got, caps.Status)
	}
	t.Logf("%+v", caps)
	// A request that no kernel refuses: what a kernel without the filter would do.
	if refused, err := k.refuses(func(*nl.Buffer) {}); refused || err != nil {
		t.Errorf("plain dump: refused %v, %v", refused, err)
	}
	if n := len(k.all(t, ctsync.Query{})); n != len(shapes()) {
		t.Errorf("after the probe: %d entries, want %d", n, len(shapes()))
	}
}

// TestKernelRemove deletes entries of all shapes, at the boundaries of a batch, and leaves all others.
func TestKernelRemove(t *testing.T) {
	ns := newNS(t)
	k := openTest(t, ns)
	k.create(t, shapes()...)
	for i := range shapes() {
		before := k.all(t, ctsync.Query{})
		victim := before[i%len(before)]
		if failed, err := k.remove([]ctsync.Flow{victim}); failed != 0 || err != nil {
			t.Fatalf("remove %s: %d, %v", text(&victim), failed, err)
		}
		want := slices.DeleteFunc(before, func(f ctsync.Flow) bool { return f == victim })
		if got := k.all(t, ctsync.Query{}); texts(got) != texts(want) {
			t.Fatalf("after %s:\n%s\nwant\n%s", text(&victim), texts(got), texts(want))
		}
		if failed, err := k.remove([]ctsync.Flow{victim}); failed != 0 || err != nil {
			t.Errorf("again, when it is gone: %d, %v", failed, err)
		}
		k.create(t, victim)
	}
	if n, err := k.entries(); n != len(shapes()) || err != nil {
		t.Errorf("entries: %d, %v", n, err)
	}
}

func TestKernelRemoveBatches(t *testing.T) {
	k := openTest(t, newNS(t))
	for _, n := range []int{0, 1, batch - 1, batch, batch + 1, 3 * batch} {
		var flows []ctsync.Flow
		for i := range n {
			flows = append(flows, flow(ctsync.UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.1:53", "10.244.0.1:53"))
		}
		k.create(t, flows...)
		for part := range slices.Chunk(k.all(t, ctsync.Query{}), batch) {
			if left, err := k.remove(part); left != 0 || err != nil {
				t.Errorf("%d: %d, %v", n, left, err)
			}
		}
		if left, err := k.entries(); left != 0 || err != nil {
			t.Errorf("%d: %d left, %v", n, left, err)
		}
	}
}

// TestKernelDeleteWhileDumping deletes from a dump in progress, over many datagrams.
func TestKernelDeleteWhileDumping(t *testing.T) {
	k := openTest(t, newNS(t))
	var flows []ctsync.Flow
	for i := range 5_000 {
		flows = append(flows, flow(ctsync.UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.1:53", "10.244.0.1:53"))
	}
	k.create(t, flows...)
	scanned, err := k.dump(ctsync.Query{}, func(f []ctsync.Flow) error {
		_, err := k.remove(f)
		return err
	})
	if left, _ := k.entries(); scanned < len(flows) || err != nil || left != 0 {
		t.Errorf("scanned %d, left %d, %v", scanned, left, err)
	}
}

// TestKernelRemoveByID: an entry that the same client opened later is another entry.
func TestKernelRemoveByID(t *testing.T) {
	k := openTest(t, newNS(t))
	old := with(flow(ctsync.UDP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:53"), func(f *ctsync.Flow) { f.ID = 1 })
	k.create(t, old)
	if failed, err := k.remove([]ctsync.Flow{old}); failed != 0 || err != nil {
		t.Errorf("remove: %d, %v", failed, err)
	}
	if n, _ := k.entries(); n != 1 {
		t.Errorf("the other entry with the same tuple was deleted")
	}
}

// TestKernelNoSocket: while no socket can be opened (descriptor limit) every request is an error, and after that each
// works again.
func TestKernelNoSocket(t *testing.T) {
	ns := newNS(t)
	k := openTest(t, ns)
	k.create(t, shapes()...)
	flows := k.all(t, ctsync.Query{})
	k.close()
	k.netns = 1 << 20 // no such descriptor
	show := func([]ctsync.Flow) error { return nil }
	for range 2 {
		_, dump := k.dump(ctsync.Query{}, show)
		left, remove := k.remove(flows[:2])
		_, entries := k.entries()
		_, probe := k.probe()
		for _, err := range []error{dump, remove, entries, probe} {
			if !errors.Is(err, unix.EBADF) {
				t.Errorf("%v, want %v", err, unix.EBADF)
			}
		}
		if left != 2 {
			t.Errorf("%d of 2 flows are left", left)
		}
	}
	k.netns = ns
	if left, err := k.remove(flows[:2]); left != 0 || err != nil {
		t.Errorf("remove: %d, %v", left, err)
	}
	if n := len(k.all(t, ctsync.Query{})); n != len(flows)-2 {
		t.Errorf("%d entries, want %d", n, len(flows)-2)
	}
}

// TestKernelErrors: errors wrap their errno, and the next request is answered.
func TestKernelErrors(t *testing.T) {
	k := openTest(t, newNS(t))
	bad := flow(1, "10.1.0.1:1001", "10.96.0.1:53", "") // ICMP without its type
	failed, err := k.remove([]ctsync.Flow{bad, bad})
	if failed != 2 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("remove: %d, %v", failed, err)
	}
	stop := errors.New("stop")
	k.create(t, shapes()...)
	if _, err := k.dump(ctsync.Query{}, func([]ctsync.Flow) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("dump: %v", err)
	}
	if n := len(k.all(t, ctsync.Query{})); n != len(shapes()) {
		t.Errorf("after a dump that was ended: %d entries, want %d", n, len(shapes()))
	}
}

// FuzzDecode feeds the decoder with what no kernel writes: it must not panic, nor read on for ever.
func FuzzDecode(f *testing.F) {
	for _, s := range shapes() {
		f.Add(newRequest(&s).Data)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var flow ctsync.Flow
		decode(&flow, b)
	})
}
