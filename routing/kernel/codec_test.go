// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/hex"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	. "github.com/nftproxy/nftproxy/routing"
)

// sampleRoute is a route with everything that a route of ours can have.
var sampleRoute = Route{
	Table: 254, Dst: netip.MustParsePrefix("10.96.0.0/16"), Metric: 1024, Index: 2,
	Gateway: netip.MustParseAddr("169.254.169.4"), OnLink: true, Source: netip.MustParseAddr("172.18.0.3"), MTU: 1400,
}

// samples are entries of each type and family.
func samples() []Entry {
	v6 := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	return []Entry{
		sampleRoute,
		Route{Table: 7, Dst: netip.MustParsePrefix("fd00:10:96::/112"), Metric: 7, Index: 3, Gateway: v6("fd00::1")},
		Route{Table: 254, Dst: netip.MustParsePrefix("fd69::/125"), Metric: 1024, Index: 3, Source: v6("fd69::2"), MTU: 1280},
		Route{Table: 254, Dst: netip.MustParsePrefix("169.254.169.1/32"), Metric: 1, Index: 3},
		Route{Table: 1 << 20, Dst: netip.MustParsePrefix("0.0.0.0/0"), Metric: 1<<32 - 1, Index: 1 << 20, MTU: 65535},
		Address{Index: 3, Prefix: netip.MustParsePrefix("169.254.169.2/29")},
		Address{Index: 3, Prefix: netip.MustParsePrefix("fd69::2/125")},
		Rule{Fam: IPv4, Priority: 30, Mark: 0x1745ec, Mask: 1<<32 - 1, Table: 7},
		Rule{Fam: IPv6, Priority: 77, Mark: 0x10, Mask: 0xf0, Table: 4242},
		Neighbour{Index: 2, Addr: netip.MustParseAddr("169.254.169.4"), MAC: DefaultNextHopMAC()},
		Neighbour{Index: 2, Addr: v6("fd69::4"), MAC: MAC{2, 5: 1}},
	}
}

// decoded reads a message of ours as if the kernel had sent it.
func decoded(m message) (e Entry, ours bool) {
	switch m.typ {
	case unix.RTM_NEWADDR:
		a, _ := decodeAddr(m.body)
		return Address{Index: a.Index, Prefix: a.Prefix}, a.ours
	case unix.RTM_NEWROUTE:
		r, _ := decodeRoute(m.body)
		return r.Route, r.Protocol == Protocol
	case unix.RTM_NEWRULE:
		r, _ := decodeRule(m.body)
		return Rule{Fam: r.Fam, Priority: r.Priority, Mark: r.Mark, Mask: r.Mask, Table: r.Table}, r.Protocol == Protocol && !r.Selective
	case unix.RTM_NEWNEIGH:
		n, _ := decodeNeighbour(m.body)
		return n.Neighbour, n.ours && n.permanent
	}
	return nil, false
}

// TestCodecRoundTrip: an addition is read back as the same entry with us as its owner. The kernel tests hold that the
// kernel reads it the same way.
func TestCodecRoundTrip(t *testing.T) {
	for _, e := range samples() {
		messages := encode(Op{Verb: Add, Entry: e})
		if len(messages) != 1 {
			t.Fatalf("%v: %d messages", e, len(messages))
		}
		if got, ours := decoded(messages[0]); got != e || !ours {
			t.Errorf("got %v (ours %t)\nwant %v", got, ours, e)
		}
	}
}

// TestCodecAnchors holds a few messages to the byte (little endian), as the kernel's headers define them.
func TestCodecAnchors(t *testing.T) {
	for _, tt := range []struct {
		op   Op
		want string
	}{
		{Op{Verb: Add, Entry: sampleRoute},
			"02100000 fe6e0001 04000000" + // rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
				"08000100 0a600000" + "08000f00 fe000000" + "08000600 00040000" + // dst, table, priority
				"08000400 02000000" + "08000500 a9fea904" + "08000700 ac120003" + // oif, gateway, prefsrc
				"0c000880 08000200 78050000"}, // metrics { mtu }
		{Op{Verb: Remove, Entry: Rule{Fam: IPv6, Priority: 30, Mark: 0x1745ec, Mask: 0xffffffff, Table: 7}},
			"0a000000 00000001 00000000" + "08000600 1e000000" + "08000a00 ec451700" + "08001000 ffffffff" +
				"08000f00 07000000" + "05001500 6e000000"},
		{Op{Verb: Add, Entry: Neighbour{Index: 2, Addr: netip.MustParseAddr("169.254.169.4"), MAC: DefaultNextHopMAC()}},
			"02000000 02000000 80000000" + "08000100 a9fea904" + "0a000200 0a58a9fea9040000" + "05000c00 6e000000"},
		{Op{Verb: Add, Entry: LooseRPF{Index: 3}},
			"00000000 03000000 00000000 00000000" + "14001a80 10000280 0c000180 08000800 02000000"},
	} {
		messages := encode(tt.op)
		var want string
		for _, c := range tt.want {
			if c != ' ' {
				want += string(c)
			}
		}
		if got := hex.EncodeToString(messages[0].body); got != want {
			t.Errorf("%v\ngot  %s\nwant %s", tt.op.Entry, got, want)
		}
	}
}

// TestAddressOwner: the kernel's own mark decides; where it is too old to keep it, our tag does; an owner that is
// not us beats the tag.
func TestAddressOwner(t *testing.T) {
	for _, tt := range []struct {
		name       string
		proto, tag uint32
		want       bool
	}{
		{"both", Protocol, addressTag, true},
		{"kernel before 5.18", 0, addressTag, true},
		{"somebody changed the metric", Protocol, 5, true},
		{"somebody else's", 3, addressTag, false},
		{"nobody's", 0, 0, false},
		{"a metric of others", 0, 1024, false},
	} {
		body := make(nl.Buffer, unix.SizeofIfAddrmsg)
		body[1] = 29
		body.Addr(unix.IFA_LOCAL, netip.MustParseAddr("169.254.169.2"))
		if tt.proto != 0 {
			body.Bytes(ifaProto, uint8(tt.proto))
		}
		if tt.tag != 0 {
			body.Host32(ifaRTPriority, tt.tag)
		}
		if a, ok := decodeAddr(body); a.ours != tt.want || !ok {
			t.Errorf("%s: ours is %t", tt.name, a.ours)
		}
	}
}

// TestDecodeOddRoutes: a route of ours that another program has changed is never taken for the original.
func TestDecodeOddRoutes(t *testing.T) {
	plain, blackhole, several := encodeRoute(Add, sampleRoute), encodeRoute(Add, sampleRoute), encodeRoute(Add, sampleRoute)
	blackhole.body[7] = unix.RTN_BLACKHOLE
	several.body.Bytes(unix.RTA_MULTIPATH, make([]byte, 8)...)
	if got, _ := decodeRoute(plain.body); got.Route != sampleRoute {
		t.Errorf("got %v, want %v", got, sampleRoute)
	}
	for _, m := range []message{blackhole, several} {
		got, ok := decodeRoute(m.body)
		if got.Route == sampleRoute || got.Slot() != sampleRoute.Slot() || got.Protocol != Protocol || !ok {
			t.Errorf("got %v", got)
		}
	}
}

// FuzzDecode: no input makes a decoder panic, and what is called valid is.
func FuzzDecode(f *testing.F) {
	for _, e := range append(samples(), LooseRPF{Index: 3}) {
		for _, m := range encode(Op{Verb: Add, Entry: e}) {
			f.Add([]byte(m.body))
			f.Add([]byte(m.body[:len(m.body)-3]))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := decodeAddr(b); ok && !a.Prefix.IsValid() {
			t.Errorf("address %v", a)
		}
		if r, ok := decodeRoute(b); ok && !r.Dst.IsValid() {
			t.Errorf("route %v", r)
		}
		if n, ok := decodeNeighbour(b); ok && !n.Addr.IsValid() {
			t.Errorf("neighbour %v", n)
		}
		decodeLink(b)
		decodeRule(b)
		decodeNetconf(b)
		in := InterestIn(NewSet(samples()...), Config{Steering: Steering{Table: 7}})
		for typ := uint16(unix.RTM_NEWLINK); typ <= unix.RTM_DELNETCONF; typ++ {
			in.concerns(typ, b)
		}
	})
}

// TestInterest: notifications about others' routes and neighbours are no reason to look again, unless they touch ours.
func TestInterest(t *testing.T) {
	r := sampleRoute
	n := Neighbour{Index: 2, Addr: netip.MustParseAddr("169.254.169.4"), MAC: DefaultNextHopMAC()}
	in := InterestIn(NewSet(r, n), Config{Steering: Steering{Table: 7}})
	other := r
	other.Dst = netip.MustParsePrefix("192.0.2.0/24")
	part, wider := r, r
	part.Dst, wider.Dst = netip.MustParsePrefix("10.96.7.0/24"), netip.MustParsePrefix("10.0.0.0/8")
	inTable := other
	inTable.Table = 7
	foreignRoute := func(r Route) []byte { m := encodeRoute(Add, r); m.body[5] = unix.RTPROT_STATIC; return m.body }
	foreignNeigh := func(n Neighbour) []byte {
		m := encodeNeighbour(Remove, n) // without owner and MAC
		return m.body
	}
	for _, tt := range []struct {
		name string
		typ  uint16
		body []byte
		want bool
	}{
		{"ours goes", unix.RTM_DELROUTE, encodeRoute(Remove, r).body, true},
		{"ours of old goes", unix.RTM_DELROUTE, encodeRoute(Remove, other).body, true},
		{"others take our destination", unix.RTM_NEWROUTE, foreignRoute(r), true},
		{"others take a part of it", unix.RTM_NEWROUTE, foreignRoute(part), true},
		{"others have a wider one", unix.RTM_NEWROUTE, foreignRoute(wider), false},
		{"others use our table", unix.RTM_NEWROUTE, foreignRoute(inTable), true},
		{"others' route", unix.RTM_NEWROUTE, foreignRoute(other), false},
		{"our neighbour goes", unix.RTM_DELNEIGH, foreignNeigh(n), true},
		{"others' neighbour", unix.RTM_NEWNEIGH, foreignNeigh(Neighbour{Index: 2, Addr: netip.MustParseAddr("172.18.0.9")}), false},
		{"a link", unix.RTM_NEWLINK, nil, true},
		{"a rule", unix.RTM_DELRULE, nil, true},
		{"cut off", unix.RTM_DELROUTE, []byte{2}, false},
	} {
		if got := in.concerns(tt.typ, tt.body); got != tt.want {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}

// TestRepairLimit: 32 repairs of an entry at once, then one a second, and 32 again after as many quiet seconds. The
// limit of one entry does not hold back another, and limits of entries that are not wanted any more are dropped.
func TestRepairLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(nil, Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, b := LooseRPF{Index: 1}, LooseRPF{Index: 2}
		want := NewSet(a, b)
		allowed := func(length, step time.Duration) (n int) {
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(step) {
				out, deferred, wait := m.limit([]Op{{Verb: Add, Entry: a}}, want)
				n += len(out)
				if deferred != 1-len(out) || deferred == 1 && (wait <= 0 || wait > repairPeriod) {
					t.Fatalf("%d allowed, %d deferred for %v", len(out), deferred, wait)
				}
			}
			return n
		}
		if n := allowed(10*time.Second, 10*time.Millisecond); n != repairBurst+9 {
			t.Errorf("%d in 10 seconds, want %d", n, repairBurst+9)
		}
		time.Sleep(time.Hour)
		if n := allowed(time.Millisecond, time.Microsecond); n != repairBurst {
			t.Errorf("%d after a quiet hour, want %d", n, repairBurst)
		}
		if out, _, _ := m.limit([]Op{{Verb: Add, Entry: b}, {Verb: Remove, Entry: a}}, want); len(out) != 2 {
			t.Errorf("%v pass", out)
		}
		if m.limit(nil, NewSet(b)); len(m.limits) != 1 {
			t.Errorf("%d limits for one wanted entry", len(m.limits))
		}
	})
}
