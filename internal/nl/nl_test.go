// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestAttributesRoundTrip(t *testing.T) {
	var b Buffer
	b.Bytes(1, 7)
	nest := b.Open(2)
	b.Net16(1, 0x1234)
	b.Net32(2, 0x12345678)
	b.Host32(3, 0x12345678)
	b.Close(nest)
	b.Name(3, "eth0")
	b.String(4, "raw")
	b.Addr(5, netip.MustParseAddr("10.0.0.1"))
	b.Addr(6, netip.MustParseAddr("fd00::1"))
	if len(b)%4 != 0 {
		t.Errorf("%d bytes are not a multiple of 4", len(b))
	}
	var types []uint16
	for typ := range Attrs(b) {
		types = append(types, typ)
	}
	if len(types) != 6 {
		t.Fatalf("attributes %v, want 1 to 6 without flags", types)
	}
	in := Find(b, 2)
	if got := Net(Find(in, 1)); got != 0x1234 {
		t.Errorf("16 bits: %#x", got)
	}
	if got := Net(Find(in, 2)); got != 0x12345678 {
		t.Errorf("32 bits in network order: %#x", got)
	}
	if got := Host(Find(in, 3)); got != 0x12345678 {
		t.Errorf("32 bits in host order: %#x", got)
	}
	if !bytes.Equal(Find(in, 2), []byte{0x12, 0x34, 0x56, 0x78}) {
		t.Errorf("network order on the wire: % x", Find(in, 2))
	}
	if Text(Find(b, 3)) != "eth0" || len(Find(b, 3)) != 5 || string(Find(b, 4)) != "raw" {
		t.Errorf("strings: %q %q", Find(b, 3), Find(b, 4))
	}
	if Addr(Find(b, 5)) != netip.MustParseAddr("10.0.0.1") || Addr(Find(b, 6)) != netip.MustParseAddr("fd00::1") {
		t.Errorf("addresses: %v %v", Addr(Find(b, 5)), Addr(Find(b, 6)))
	}
	if Find(b, 99) != nil || Addr(nil).IsValid() || Host(make([]byte, 3)) != 0 || Net(make([]byte, 3)) != 0 {
		t.Error("what is missing or of an odd length is not zero")
	}
}

func TestAttrsAllocatesNothing(t *testing.T) {
	var b Buffer
	for i := range uint16(10) {
		b.Net32(i, uint32(i))
	}
	sum := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		for _, v := range Attrs(b) {
			sum += Net(v)
		}
	}); n != 0 {
		t.Errorf("%v allocations per walk", n)
	}
}

func FuzzAttrs(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 1, 2, 3, 4})
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{5, 0, 1, 128, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for _, v := range Attrs(b) {
			n += 4 + len(v)
		}
		if n > len(b) {
			t.Errorf("attributes of %d bytes in %d", n, len(b))
		}
	})
}

func TestRetry(t *testing.T) {
	fail := errors.New("fail")
	for _, c := range []struct {
		name  string
		errs  []error // the last one repeats
		calls int
		want  error
	}{
		{"at once", []error{nil}, 1, nil},
		{"another error", []error{fail}, 1, fail},
		{"interrupted twice", []error{syscall.EINTR, syscall.EINTR, nil}, 3, nil},
		{"interrupted always", []error{syscall.EINTR}, dumpAttempts, syscall.EINTR},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := Retry(t.Context(), func() error {
				calls++
				return c.errs[min(calls, len(c.errs))-1]
			})
			if calls != c.calls || !errors.Is(err, c.want) {
				t.Errorf("%s: %v after %d calls, want %v after %d", c.name, err, calls, c.want, c.calls)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := Retry(ctx, func() error { calls++; cancel(); return syscall.EINTR })
	if !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("%v after %d calls, want the end of ctx after one", err, calls)
	}
}

func TestNames(t *testing.T) {
	for _, f := range Families() {
		if f.Other().Other() != f || FamilyOf(f.Unspecified()) != f || f.Unspecified().BitLen() != 8*f.AddrLen() {
			t.Errorf("%v", f)
		}
	}
	if IPv4.String()+IPv6.String() != "IPv4IPv6" {
		t.Error("names of families")
	}
	for _, p := range []Proto{TCP, UDP, SCTP} {
		if got, ok := ParseProto(p.String()); !ok || got != p {
			t.Errorf("%v is parsed as %v", p, got)
		}
	}
	if Proto(47).String() != "47" {
		t.Error("a protocol of no Service is its number")
	}
}
