// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// decoded reads a message of ours as if the kernel had sent it.
func decoded(m message) (e Entry, ours bool) {
	switch m.typ {
	case unix.RTM_NEWADDR:
		a, ours, _ := decodeAddr(m.body)
		return Address{a.Index, a.Prefix}, ours
	case unix.RTM_NEWROUTE:
		r, protocol, _ := decodeRoute(m.body)
		return r, protocol == Protocol
	case unix.RTM_NEWRULE:
		r, _, _ := decodeRule(m.body)
		return Rule{r.Fam, r.Priority, r.Mark, r.Mask, r.Table}, r.Protocol == Protocol && !r.Selective
	case unix.RTM_NEWNEIGH:
		n, ours, permanent, _ := decodeNeighbour(m.body)
		return n, ours && permanent
	}
	return nil, false
}

// TestWireRoundTrip: what an addition says is read back as the same entry, with us as its owner. The kernel tests hold
// that the kernel sees it the same way.
func TestWireRoundTrip(t *testing.T) {
	rng := seeded(t)
	check := func(e Entry) {
		t.Helper()
		messages, err := encode(Op{Verb: Add, Entry: e})
		if err != nil || len(messages) != 1 {
			t.Fatalf("%v: %d messages, %v", e, len(messages), err)
		}
		if got, ours := decoded(messages[0]); got != e || !ours {
			t.Errorf("got %v (ours %t)\nwant %v", got, ours, e)
		}
	}
	for range 1000 {
		if e := randomEntry(rng); e.Kind() != KindSysctl {
			check(e)
		}
	}
	for e := range Plan(must(allConfig().Normalize()), worker(), nil).Want {
		if e.Kind() != KindSysctl {
			check(e)
		}
	}
	check(Route{Table: 1 << 20, Dst: netip.MustParsePrefix("0.0.0.0/0"), Metric: 1<<32 - 1, Index: 1 << 20, MTU: 65535})
}

// TestWireAnchors holds a few messages to the byte (little endian), as the kernel's headers define them.
func TestWireAnchors(t *testing.T) {
	for _, tt := range []struct {
		op   Op
		want string
	}{
		{Op{Add, Route{254, netip.MustParsePrefix("10.96.0.0/16"), 1024, 2, netip.MustParseAddr("169.254.169.4"), true,
			netip.MustParseAddr("172.18.0.3"), 1400}, nil},
			"02100000 fe6e0001 04000000" + // rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
				"08000100 0a600000" + "08000f00 fe000000" + "08000600 00040000" + // dst, table, priority
				"08000400 02000000" + "08000500 a9fea904" + "08000700 ac120003" + // oif, gateway, prefsrc
				"0c000880 08000200 78050000"}, // metrics { mtu }
		{Op{Remove, Rule{IPv6, 30, 0x1745ec, 0xffffffff, 7}, nil},
			"0a000000 00000001 00000000" + "08000600 1e000000" + "08000a00 ec451700" + "08001000 ffffffff" +
				"08000f00 07000000" + "05001500 6e000000"},
		{Op{Add, Neighbour{2, netip.MustParseAddr("169.254.169.4"), DefaultNextHopMAC()}, nil},
			"02000000 02000000 80000000" + "08000100 a9fea904" + "0a000200 0a58a9fea9040000" + "05000c00 6e000000"},
		{Op{Add, LooseRPF{3}, nil},
			"00000000 03000000 00000000 00000000" + "14001a80 10000280 0c000180 08000800 02000000"},
	} {
		messages, err := encode(tt.op)
		if err != nil {
			t.Fatal(err)
		}
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
		m := message{body: make([]byte, unix.SizeofIfAddrmsg)}
		m.body[1] = 29
		m.addr(unix.IFA_LOCAL, netip.MustParseAddr("169.254.169.2"))
		if tt.proto != 0 {
			m.u8(ifaProto, uint8(tt.proto))
		}
		if tt.tag != 0 {
			m.u32(ifaRTPriority, tt.tag)
		}
		if _, ours, ok := decodeAddr(m.body); ours != tt.want || !ok {
			t.Errorf("%s: ours is %t", tt.name, ours)
		}
	}
}

// TestDecodeOddRoutes: what somebody made of a route of ours is never taken for it.
func TestDecodeOddRoutes(t *testing.T) {
	r := Plan(must(reachConfig().Normalize()), worker(), nil).Want.Sorted()[2].(Route)
	plain := encodeRoute(Add, r)
	blackhole := encodeRoute(Add, r)
	blackhole.body[7] = unix.RTN_BLACKHOLE
	several := encodeRoute(Add, r)
	several.attr(unix.RTA_MULTIPATH, make([]byte, 8))
	if got, _, _ := decodeRoute(plain.body); got != r {
		t.Errorf("got %v, want %v", got, r)
	}
	for _, m := range []message{blackhole, several} {
		if got, protocol, ok := decodeRoute(m.body); got == r || got.slot() != r.slot() || protocol != Protocol || !ok {
			t.Errorf("got %v", got)
		}
	}
}

// FuzzDecode: no input makes a decoder panic, and what is called valid is.
func FuzzDecode(f *testing.F) {
	for e := range Plan(must(allConfig().Normalize()), worker(), nil).Want {
		for _, m := range must(encode(Op{Verb: Add, Entry: e})) {
			f.Add(m.body)
			f.Add(m.body[:len(m.body)-3])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, _, ok := decodeAddr(b); ok && !a.Prefix.IsValid() {
			t.Errorf("address %v", a)
		}
		if r, _, ok := decodeRoute(b); ok && !r.Dst.IsValid() {
			t.Errorf("route %v", r)
		}
		if n, _, _, ok := decodeNeighbour(b); ok && !n.Addr.IsValid() {
			t.Errorf("neighbour %v", n)
		}
		decodeLink(b)
		decodeRule(b)
		decodeNetconf(b)
		in := Interest{Table: 7, Dsts: map[netip.Prefix]bool{}, Hops: map[netip.Addr]bool{}}
		for typ := uint16(unix.RTM_NEWLINK); typ <= unix.RTM_DELNETCONF; typ++ {
			in.concerns(typ, b)
		}
	})
}

// TestInterest: notifications about others' routes and neighbours are no reason to look again, unless they touch ours.
func TestInterest(t *testing.T) {
	r := Route{Table: tableMain, Dst: netip.MustParsePrefix("10.96.0.0/16"), Metric: 1024, Index: 2}
	n := Neighbour{2, netip.MustParseAddr("169.254.169.4"), DefaultNextHopMAC()}
	in := InterestIn(NewSet(r, n), 7)
	other := r
	other.Dst = netip.MustParsePrefix("192.0.2.0/24")
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
		{"others use our table", unix.RTM_NEWROUTE, foreignRoute(inTable), true},
		{"others' route", unix.RTM_NEWROUTE, foreignRoute(other), false},
		{"our neighbour goes", unix.RTM_DELNEIGH, foreignNeigh(n), true},
		{"others' neighbour", unix.RTM_NEWNEIGH, foreignNeigh(Neighbour{2, netip.MustParseAddr("172.18.0.9"), MAC{}}), false},
		{"a link", unix.RTM_NEWLINK, nil, true},
		{"a rule", unix.RTM_DELRULE, nil, true},
		{"cut off", unix.RTM_DELROUTE, []byte{2}, false},
	} {
		if got := in.concerns(tt.typ, tt.body); got != tt.want {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}
