// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

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

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// ctNew creates an entry. The product never does.
const ctNew uint16 = unix.NFNL_SUBSYS_CTNETLINK<<8 | 0

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
func openTest(tb testing.TB, ns int) *kernel {
	tb.Helper()
	k, err := openKernel(ns)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(k.close)
	return k
}

// appendNew appends the request to create f, with a timeout far beyond any test. A translated flow gets its
// translation the way NAT sets it, so that its status is as real as that of a packet's. Only destination NAT.
func appendNew(b []byte, f *Flow, seq uint32) []byte {
	b, at := begin(b, ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, seq, familyOf(f.Src.Addr()))
	tuple := func(typ uint16, src, dst netip.AddrPort) {
		var t, n int
		b, t = open(b, typ)
		b, n = open(b, ctaTupleIP)
		b = attrAddr(b, ctaIPv4Src, ctaIPv6Src, src.Addr())
		b = shut(attrAddr(b, ctaIPv4Dst, ctaIPv6Dst, dst.Addr()), n)
		b, n = open(b, ctaTupleProto)
		b = attr(b, ctaProtoNum, byte(f.Proto))
		b = attr16(b, ctaProtoSrcPort, src.Port())
		b = shut(attr16(b, ctaProtoDstPort, dst.Port()), n)
		if f.ZoneOrig && typ == ctaTupleOrig {
			b = attr16(b, ctaTupleZone, f.Zone)
		}
		b = shut(b, t)
	}
	tuple(ctaTupleOrig, f.Src, f.Dst)
	tuple(ctaTupleReply, f.Dst, f.Src)
	b = attr32(b, ctaStatus, f.Status&^statusDstNAT|1<<3) // IPS_CONFIRMED
	b = attr32(b, 7, 36_000)                              // CTA_TIMEOUT
	if f.translated() {
		b = appendNAT(b, f.From)
	}
	if f.Mark != 0 {
		b = attr32(b, ctaMark, f.Mark)
	}
	if f.Zone != 0 && !f.ZoneOrig {
		b = attr16(b, ctaZone, f.Zone)
	}
	if f.Proto == TCP || f.Proto == SCTP {
		b = appendState(b, f)
	}
	return finish(b, at)
}

// appendNAT appends CTA_NAT_DST.
func appendNAT(b []byte, to netip.AddrPort) []byte {
	b, nat := open(b, 13)
	b = attrAddr(b, 1, 4, to.Addr()) // CTA_NAT_V4_MINIP, CTA_NAT_V6_MINIP
	b = attrAddr(b, 2, 5, to.Addr())
	b, ports := open(b, 3) // CTA_NAT_PROTO
	b = attr16(attr16(b, 1, to.Port()), 2, to.Port())
	return shut(shut(b, ports), nat)
}

// appendState appends CTA_PROTOINFO.
func appendState(b []byte, f *Flow) []byte {
	b, info := open(b, ctaProtoInfo)
	if f.Proto == TCP {
		var p int
		b, p = open(b, ctaProtoInfoTCP)
		b = shut(attr(b, ctaProtoInfoTCPState, f.TCPState), p)
	} else {
		var p int
		b, p = open(b, 3)                              // CTA_PROTOINFO_SCTP
		b = attr(b, 1, 3)                              // established
		b = shut(attr32(attr32(b, 2, 111), 3, 222), p) // verification tags
	}
	return shut(b, info)
}

// create puts flows into the kernel's table.
func (k *kernel) create(tb testing.TB, flows ...Flow) {
	tb.Helper()
	for part := range slices.Chunk(flows, deleteBatch) {
		var req []byte
		for i := range part {
			k.seq++
			req = appendNew(req, &part[i], k.seq)
		}
		if err := k.send(k.ops, req); err != nil {
			tb.Fatal(err)
		}
		for i := range part {
			n, err := k.ops.Read(k.in)
			if err != nil {
				tb.Fatal(err)
			}
			_, data, _, _ := nextMessage(k.in[:n])
			if err := errnoOf(data); err != nil {
				tb.Fatalf("create %d %+v: %v", i, part[i], err)
			}
		}
	}
}

// all returns what a query shows.
func (k *kernel) all(tb testing.TB, q query) []Flow {
	tb.Helper()
	var all []Flow
	if _, err := k.dump(&q, func(f []Flow) error { all = append(all, f...); return nil }); err != nil {
		tb.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Flow) int { return cmp.Compare(a.text(), b.text()) })
	return all
}

// text is one flow as a line, without its ID and the status bits that the test does not choose.
func (f *Flow) text() string {
	return fmt.Sprintf("%s %s>%s %s>%s zone %d %v mark %d state %d dnat %v replied %v", f.Proto, f.Src, f.Dst, f.From, f.To,
		f.Zone, f.ZoneOrig, f.Mark, f.TCPState, f.Status&statusDstNAT != 0, f.replied())
}

func texts(flows []Flow) string {
	var lines []string
	for i := range flows {
		lines = append(lines, flows[i].text())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// flow returns a flow as the kernel would show it; from is "" for an untranslated one.
func flow(p Proto, src, dst, from string) Flow {
	f := Flow{Proto: p, Src: ap(src), Dst: ap(dst), From: ap(dst), To: ap(src), Status: statusSeenReply}
	if from != "" {
		f.From = ap(from)
		f.Status |= statusDstNAT
	}
	if p == TCP {
		f.TCPState = 3
	}
	return f
}

// with returns f changed.
func with(f Flow, change func(*Flow)) Flow { change(&f); return f }

// shapes are flows of all kinds that the codec has to deal with.
func shapes() []Flow {
	return []Flow{
		flow(UDP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		flow(UDP, "10.1.0.1:1002", "10.96.0.1:53", "10.244.0.2:5353"),
		flow(UDP, "10.1.0.1:1003", "10.96.0.1:54", "10.244.0.2:5353"),
		flow(UDP, "10.1.0.1:65535", "10.96.0.2:53", ""),
		with(flow(UDP, "10.1.0.1:1004", "10.96.0.2:53", ""), func(f *Flow) { f.Status = 0 }),
		with(flow(UDP, "10.1.0.1:1004", "10.96.0.2:53", "10.244.0.1:53"), func(f *Flow) { f.Zone = 7 }),
		with(flow(UDP, "10.1.0.1:1004", "10.96.0.2:53", "10.244.0.1:53"), func(f *Flow) { f.Zone, f.ZoneOrig = 8, true }),
		with(flow(UDP, "10.1.0.1:1005", "10.96.0.2:53", "10.244.0.1:53"), func(f *Flow) { f.Mark = 0xabcd }),
		flow(TCP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		with(flow(TCP, "10.1.0.1:1002", "10.96.0.1:53", ""), func(f *Flow) { f.TCPState, f.Status = tcpSynSent, 0 }),
		flow(SCTP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:5353"),
		flow(UDP, "[fd00:1::1]:1001", "[fd00:96::1]:53", "[fd00:244::1]:5353"),
		flow(UDP, "[fd00:1::1]:1002", "[fd00:96::2]:53", "[fd00:244::1]:5353"),
		flow(UDP, "[fd00:1::1]:1003", "[fd00:96::1]:54", ""),
		flow(TCP, "[fd00:1::1]:1003", "[fd00:96::1]:53", "[fd00:244::1]:5353"),
	}
}

// TestKernelDecode holds our decoder to that of ti-mo/conntrack, entry by entry, and both to what was created.
func TestKernelDecode(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	got := k.all(t, query{})
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
	byID := map[uint32]Flow{}
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
func oracle(o conntrack.Flow) Flow {
	f := Flow{
		Src:    netip.AddrPortFrom(o.TupleOrig.IP.SourceAddress, o.TupleOrig.Proto.SourcePort),
		Dst:    netip.AddrPortFrom(o.TupleOrig.IP.DestinationAddress, o.TupleOrig.Proto.DestinationPort),
		From:   netip.AddrPortFrom(o.TupleReply.IP.SourceAddress, o.TupleReply.Proto.SourcePort),
		To:     netip.AddrPortFrom(o.TupleReply.IP.DestinationAddress, o.TupleReply.Proto.DestinationPort),
		Status: uint32(o.Status), ID: o.ID, Mark: o.Mark, Zone: o.Zone, Proto: Proto(o.TupleOrig.Proto.Protocol),
	}
	if o.TupleOrig.Zone != 0 {
		f.Zone, f.ZoneOrig = o.TupleOrig.Zone, true
	}
	if o.ProtoInfo.TCP != nil {
		f.TCPState = o.ProtoInfo.TCP.State
	}
	return f
}

// TestKernelFilters checks that no filter hides an entry it must show, and that each hides what it can.
func TestKernelFilters(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	zone := uint16(7)
	for name, c := range map[string]struct {
		q      query
		must   func(f *Flow) bool
		atMost func(f *Flow) bool
	}{
		"family": {query{family: unix.AF_INET}, isV4, isV4},
		"dnat":   {query{dnat: true}, (*Flow).translated, (*Flow).translated},
		"mark": {query{mark: 0xffcd, markMask: 0xff}, func(f *Flow) bool { return f.Mark&0xff == 0xcd },
			func(f *Flow) bool { return f.Mark&0xff == 0xcd }},
		"zone": {query{zone: &zone}, func(f *Flow) bool { return f.Zone == 7 }, func(f *Flow) bool { return true }},
		"proto": {query{family: unix.AF_INET, proto: UDP}, func(f *Flow) bool { return isV4(f) && f.Proto == UDP },
			func(f *Flow) bool { return isV4(f) && f.Proto == UDP }},
		"port":        {query{family: unix.AF_INET6, proto: UDP, port: 53}, v6dns, v6dns},
		"one address": {query{family: unix.AF_INET, proto: UDP, port: 53, dst: netip.MustParseAddr("10.96.0.1")}, dns1, dns1},
		"one address, both filters": {query{family: unix.AF_INET, proto: UDP, port: 53, dst: netip.MustParseAddr("10.96.0.1"),
			dnat: true}, dns1, dns1},
		"one IPv6 address": {query{family: unix.AF_INET6, proto: UDP, port: 53, dst: netip.MustParseAddr("fd00:96::1")},
			func(f *Flow) bool { return v6dns(f) && f.Dst.Addr() == netip.MustParseAddr("fd00:96::1") }, v6dns},
		"SCTP": {query{family: unix.AF_INET, proto: SCTP, port: 53}, func(f *Flow) bool { return f.Proto == SCTP },
			func(f *Flow) bool { return f.Proto == SCTP }},
	} {
		t.Run(name, func(t *testing.T) {
			shown := map[string]bool{}
			for _, f := range k.all(t, c.q) {
				shown[f.text()] = true
				if !c.atMost(&f) {
					t.Errorf("shows %s", f.text())
				}
			}
			for _, f := range shapes() {
				if c.must(&f) && !shown[f.text()] {
					t.Errorf("hides %s", f.text())
				}
			}
		})
	}
}

func isV4(f *Flow) bool  { return f.Src.Addr().Is4() }
func v6dns(f *Flow) bool { return !isV4(f) && f.Proto == UDP && f.Dst.Port() == 53 }
func dns1(f *Flow) bool  { return f.Proto == UDP && f.Dst == ap("10.96.0.1:53") }

// TestKernelProbe holds the probes to kernels that are known: all filters exist since 5.15.
func TestKernelProbe(t *testing.T) {
	k := openTest(t, newNS(t))
	k.create(t, shapes()...)
	caps, err := k.probe()
	if err != nil || caps != (Caps{Tuple: true, Status: true}) {
		t.Errorf("probe: %+v, %v", caps, err)
	}
	// A request that no kernel refuses: what a kernel without the filter would do.
	if refused, err := k.refuses(func(b []byte) []byte { return b }); refused || err != nil {
		t.Errorf("plain dump: refused %v, %v", refused, err)
	}
	if n := len(k.all(t, query{})); n != len(shapes()) {
		t.Errorf("after the probe: %d entries, want %d", n, len(shapes()))
	}
}

// TestKernelRemove deletes entries of all shapes, at the boundaries of a batch, and leaves all others.
func TestKernelRemove(t *testing.T) {
	ns := newNS(t)
	k := openTest(t, ns)
	k.create(t, shapes()...)
	for i := range shapes() {
		before := k.all(t, query{})
		victim := before[i%len(before)]
		if failed, err := k.remove([]Flow{victim}); failed != 0 || err != nil {
			t.Fatalf("remove %s: %d, %v", victim.text(), failed, err)
		}
		want := slices.DeleteFunc(before, func(f Flow) bool { return f == victim })
		if got := k.all(t, query{}); texts(got) != texts(want) {
			t.Fatalf("after %s:\n%s\nwant\n%s", victim.text(), texts(got), texts(want))
		}
		if failed, err := k.remove([]Flow{victim}); failed != 0 || err != nil {
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
	for _, n := range []int{0, 1, deleteBatch - 1, deleteBatch, deleteBatch + 1, 3 * deleteBatch} {
		var flows []Flow
		for i := range n {
			flows = append(flows, flow(UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.1:53", "10.244.0.1:53"))
		}
		k.create(t, flows...)
		if failed, err := k.remove(k.all(t, query{})); failed != 0 || err != nil {
			t.Errorf("%d: %d, %v", n, failed, err)
		}
		if left, err := k.entries(); left != 0 || err != nil {
			t.Errorf("%d: %d left, %v", n, left, err)
		}
	}
}

// TestKernelDeleteWhileDumping deletes from a dump in progress, over many datagrams.
func TestKernelDeleteWhileDumping(t *testing.T) {
	k := openTest(t, newNS(t))
	var flows []Flow
	for i := range 5_000 {
		flows = append(flows, flow(UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.1:53", "10.244.0.1:53"))
	}
	k.create(t, flows...)
	scanned, err := k.dump(&query{}, func(f []Flow) error {
		_, err := k.remove(f)
		return err
	})
	if left, _ := k.entries(); scanned < len(flows) || err != nil || left != 0 {
		t.Errorf("scanned %d, left %d, %v", scanned, left, err)
	}
}

// TestKernelReborn: an entry that was closed and opened anew by the same client is another entry.
func TestKernelReborn(t *testing.T) {
	k := openTest(t, newNS(t))
	old := with(flow(UDP, "10.1.0.1:1001", "10.96.0.1:53", "10.244.0.1:53"), func(f *Flow) { f.ID = 1 })
	k.create(t, old)
	if failed, err := k.remove([]Flow{old}); failed != 0 || err != nil {
		t.Errorf("remove: %d, %v", failed, err)
	}
	if n, _ := k.entries(); n != 1 {
		t.Errorf("the other entry with the same tuple was deleted")
	}
}

// TestKernelUnprivileged: errors carry their errno.
func TestKernelErrors(t *testing.T) {
	k := openTest(t, newNS(t))
	bad := flow(UDP, "10.1.0.1:1001", "10.96.0.1:53", "")
	bad.Dst = ap("[fd00::1]:53") // two families in one tuple
	failed, err := k.remove([]Flow{bad, bad})
	if failed != 2 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("remove: %d, %v", failed, err)
	}
	stop := errors.New("stop")
	k.create(t, shapes()...)
	if _, err := k.dump(&query{}, func([]Flow) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("dump: %v", err)
	}
	if n := len(k.all(t, query{})); n != len(shapes()) {
		t.Errorf("after a dump that was ended: %d entries, want %d", n, len(shapes()))
	}
}
