// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Where a range holds this node (192.168.0.1, fd00::1), the addresses of the load balancer are sources as well.
var sourceTests = []struct {
	name   string
	ranges string
	// want4 and want6 are the sources of the load balancer's address in each family; open is no restriction, nobody
	// one that admits none.
	want4, want6 string
	// fail4 and fail6 are the same under FailOpenSourceRanges, where they differ.
	fail4, fail6 string
}{
	{name: "no ranges", want4: "open", want6: "open"},
	{name: "both families", ranges: "172.16.0.0/12 2001:db8::/32",
		want4: "172.16.0.0-172.31.255.255", want6: "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"},
	{name: "IPv4 only", ranges: "172.16.0.0/12", want4: "172.16.0.0-172.31.255.255", want6: "nobody", fail6: "open"},
	{name: "IPv6 only", ranges: "2001:db8::/127", want4: "nobody", want6: "2001:db8::-2001:db8::1", fail4: "open"},
	{name: "everybody in IPv4", ranges: "0.0.0.0/0", want4: "open", want6: "nobody", fail6: "open"},
	{name: "everybody in IPv4, some in IPv6", ranges: "0.0.0.0/0 2001:db8::1/128", want4: "open", want6: "2001:db8::1-2001:db8::1"},
	{name: "everybody in both", ranges: "0.0.0.0/0 ::/0", want4: "open", want6: "open"},
	{name: "everybody and somebody", ranges: "172.16.0.0/12 0.0.0.0/0 ::/0", want4: "open", want6: "open"},
	{name: "single addresses", ranges: "172.16.0.1/32 2001:db8::1/128", want4: "172.16.0.1-172.16.0.1", want6: "2001:db8::1-2001:db8::1"},
	{name: "overlapping", ranges: "172.16.0.0/12 172.16.1.0/24 2001:db8:1::/48 2001:db8::/32",
		want4: "172.16.0.0-172.31.255.255", want6: "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"},
	{name: "adjacent", ranges: "172.16.1.0/24 172.16.0.0/24 2001:db8::2/127 2001:db8::/127",
		want4: "172.16.0.0-172.16.1.255", want6: "2001:db8::-2001:db8::3"},
	{name: "up to the last address", ranges: "255.255.255.0/24 ffff::/16",
		want4: "255.255.255.0-255.255.255.255", want6: "ffff::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	{name: "halves of everybody are not everybody", ranges: "0.0.0.0/1 128.0.0.0/1 2001:db8::/128",
		want4: "0.0.0.0-255.255.255.255", want6: "2001:db8::-2001:db8::"},
	{name: "this node", ranges: "192.168.0.0/24 fd00::/112",
		want4: "10.3.0.1-10.3.0.2 192.168.0.0-192.168.0.255", want6: "fd00::-fd00::ffff fd03::1-fd03::2"},
	{name: "this node in one family", ranges: "192.168.0.0/24 2001:db8::/128",
		want4: "10.3.0.1-10.3.0.2 192.168.0.0-192.168.0.255", want6: "2001:db8::-2001:db8::"},
	{name: "this node and the load balancer itself", ranges: "192.168.0.1/32 10.3.0.0/30 fd00::1/128 fd03::/64",
		want4: "10.3.0.0-10.3.0.3 192.168.0.1-192.168.0.1", want6: "fd00::1-fd00::1 fd03::-fd03::ffff:ffff:ffff:ffff"},
}

func sourcesText(f nft.Frontend) string {
	switch {
	case !f.Restricted:
		return "open"
	case len(f.Sources) == 0:
		return "nobody"
	}
	var out []string
	for _, r := range nft.MergeRanges(f.Sources) {
		out = append(out, fmt.Sprintf("%s-%s", r.From, r.To))
	}
	return strings.Join(out, " ")
}

func TestSourceRanges(t *testing.T) {
	for _, tt := range sourceTests {
		t.Run(tt.name, func(t *testing.T) {
			for _, failOpen := range []bool{false, true} {
				eachFamily(t, func(t *testing.T, f nft.Family) {
					want, open := tt.want4, tt.fail4
					if f == nft.IPv6 {
						want, open = tt.want6, tt.fail6
					}
					if failOpen && open != "" {
						want = open
					}
					checkSources(t, f, tt.ranges, failOpen, want)
				})
			}
		})
	}
}

// checkSources wants the sources on the load balancer's addresses, and nothing else restricted.
func checkSources(t *testing.T, f nft.Family, ranges string, failOpen bool, want string) {
	t.Helper()
	s := service(t, f, ":80:30080 external=1 lb=1,2")
	for _, r := range strings.Fields(ranges) {
		s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(r))
	}
	p := only(t, Build(Input{Service: s, Node: here, Options: Options{FailOpenSourceRanges: failOpen}}))
	if len(p.Frontends) != 5 {
		t.Fatalf("%d frontends, want 5", len(p.Frontends))
	}
	for _, fr := range p.Frontends {
		expect := "open"
		if fr.Addr == s.LoadBalancerIPs[0] || fr.Addr == s.LoadBalancerIPs[1] {
			expect = want
		}
		if got := sourcesText(fr); got != expect {
			t.Errorf("failOpen=%t %s: got %s, want %s", failOpen, fr.Addr, got, expect)
		}
	}
}

// TestManySourceRanges: a thousand ranges on one Service are kept apart, or joined where they touch.
func TestManySourceRanges(t *testing.T) {
	for _, step := range []int{1, 2} {
		s := service(t, nft.IPv4, ":80 lb=1")
		for i := range 1000 {
			n := (i * 7919 % 1000) * step // 7919 is prime to 1000: all of them, in a jumbled order
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n), 0}), 24))
		}
		got := nft.MergeRanges(only(t, Build(Input{Service: s, Node: here})).Frontends[1].Sources)
		if want := map[int]int{1: 1, 2: 1000}[step]; len(got) != want {
			t.Errorf("%d ranges, want %d", len(got), want)
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].To.Next().Less(got[i].From) {
				t.Fatalf("range %d touches the one before it", i)
			}
		}
	}
}

// TestSourcesOfThePorts: all ports of a Service are restricted alike.
func TestSourcesOfThePorts(t *testing.T) {
	s := service(t, nft.IPv4, "a:80 b:81 lb=1")
	s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	for _, p := range Build(Input{Service: s, Node: here, Slices: []*kube.EndpointSlice{}}).Ports {
		if got := sourcesText(p.Frontends[1]); got != "172.16.0.0-172.31.255.255" {
			t.Errorf("%s: got %s", p.Name, got)
		}
	}
}

// TestSourcesOfBothFamilies: the load balancer's addresses of one family are no sources in the other.
func TestSourcesOfBothFamilies(t *testing.T) {
	s := dualStack(t)
	for _, r := range []string{"192.168.0.0/24", "fd00::/112"} {
		s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(r))
	}
	want := map[nft.Family]string{
		nft.IPv4: "10.3.0.1-10.3.0.1 192.168.0.0-192.168.0.255",
		nft.IPv6: "fd00::-fd00::ffff fd03::1-fd03::1",
	}
	for _, p := range Build(Input{Service: s, Node: here}).Ports {
		for _, f := range p.Frontends {
			if got := sourcesText(f); f.Restricted && got != want[p.Family] {
				t.Errorf("%s %s: got %s, want %s", p.Name, f.Addr, got, want[p.Family])
			}
		}
	}
}
