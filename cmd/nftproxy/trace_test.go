// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
)

// parsed is what the filter flags make of a command line.
func parsed(line string) (*filterFlags, error) {
	q := &filterFlags{}
	flags := pflag.NewFlagSet("trace", pflag.ContinueOnError)
	q.addFlags(flags)
	if err := flags.Parse(strings.Fields(line)); err != nil {
		return nil, err
	}
	return q, q.take(flags.Args())
}

func TestTraceFilters(t *testing.T) {
	v4, v6 := nft.TraceFilter{Family: nft.IPv4, Rate: 100}, nft.TraceFilter{Family: nft.IPv6, Rate: 100}
	with := func(f nft.TraceFilter, change func(*nft.TraceFilter)) nft.TraceFilter {
		change(&f)
		return f
	}
	for line, want := range map[string][]nft.TraceFilter{
		"tcp 10.96.0.1:443": {with(v4, func(f *nft.TraceFilter) {
			f.Proto, f.Addr, f.Port = nft.TCP, netip.MustParseAddr("10.96.0.1"), 443
		})},
		"udp [fd00::1]:53 --from fd00::/64 --iif lo": {with(v6, func(f *nft.TraceFilter) {
			f.Proto, f.Addr, f.Port, f.From, f.IIF = nft.UDP, netip.MustParseAddr("fd00::1"), 53, netip.MustParsePrefix("fd00::/64"), "lo"
		})},
		"sctp 10.96.0.1": {with(v4, func(f *nft.TraceFilter) { f.Proto, f.Addr = nft.SCTP, netip.MustParseAddr("10.96.0.1") })},
		"--from 10.1.2.3 --all-packets --rate 5": {with(v4, func(f *nft.TraceFilter) {
			f.From, f.All, f.Rate = netip.MustParsePrefix("10.1.2.3/32"), true, 5
		})},
		"--port 80": {
			with(v4, func(f *nft.TraceFilter) { f.Port = 80 }), with(v6, func(f *nft.TraceFilter) { f.Port = 80 }),
		},
	} {
		q, err := parsed(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		got, err := q.filters(func(nft.Family) *explain.Describer { return nil })
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", line, err, d)
		}
	}
	for _, line := range []string{
		"", "--all-packets", "icmp 10.96.0.1", "tcp nowhere", "tcp 10.96.0.1:80 --port 80", "tcp 10.96.0.1 --proto tcp",
		"tcp 10.96.0.1:80 --from fd00::1", "--from somebody", "--service default/web --port 80", "tcp 10.96.0.1:99999",
	} {
		if q, err := parsed(line); err == nil {
			t.Errorf("%q is taken for %+v", line, q)
		}
	}
}
