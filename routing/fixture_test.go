// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/routing"
)

// Addresses of the tests: node 172.18.0.3 / fd00:18::3 on eth0 (2), pod gateway mp0 (3) with 10.244.1.2/24 towards
// 10.244.1.1, services 10.96.0.0/16 and fd00:10:96::/112.

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(list))
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func hops(list ...string) []NextHop {
	out := make([]NextHop, 0, len(list))
	for _, s := range list {
		a, mac, _ := strings.Cut(s, "=")
		h := NextHop{Addr: netip.MustParseAddr(a)}
		if mac != "" {
			h.MAC = must(ParseMAC(mac))
		}
		out = append(out, h)
	}
	return out
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// dualCIDRs are the service CIDRs of the lab.
func dualCIDRs() []netip.Prefix { return prefixes("10.96.0.0/16", "fd00:10:96::/112") }

// baseConfig has everything but a mode.
func baseConfig() Config {
	return Config{ServiceCIDRs: dualCIDRs(), PodCIDRs: prefixes("10.244.0.0/16", "fd00:10:244::/56")}
}

func reachConfig() Config {
	c := baseConfig()
	c.Reach.Enabled = true
	return c
}

func steeringConfig() Config {
	c := reachConfig()
	c.Steering = Steering{Enabled: true, Device: "mp0", Gateways: hops("10.244.1.1", "fd00:10:244:1::1")}
	return c
}

func handOffConfig() Config {
	c := baseConfig()
	c.HandOff = HandOff{
		Enabled: true, Device: "mp0", Local: true, Cluster: true, Gateways: hops("10.244.1.1", "fd00:10:244:1::1"),
	}
	c.Masquerade.Enabled = true
	return c
}

// antreaConfig has the addresses of Antrea's pipeline document; the IPv6 ones are from its agent's configuration.
func antreaConfig() Config {
	c := baseConfig()
	via := hops("169.254.0.253=aa:bb:cc:dd:ee:ff", "fc01::aabb:ccdd:eeff=aa:bb:cc:dd:ee:ff")
	c.HandOff = HandOff{
		Enabled: true, Device: "mp0", Local: true, Cluster: true, Gateways: via, Peers: via,
		Virtual: addrs("169.254.0.252", "fc01::aabb:ccdd:eefe"),
	}
	return c
}

// allConfig switches on everything that goes together.
func allConfig() Config {
	c := steeringConfig()
	c.HandOff = handOffConfig().HandOff
	c.HandOff.Cluster = false
	c.Masquerade.Enabled = true
	c.MTU = 1400
	return c
}

// worker is the state of a node of the lab before we touch it.
func worker() State {
	return State{
		Links: []Link{
			{Index: 1, Name: "lo", Up: true, Loopback: true, MTU: 65536},
			{Index: 2, Name: "eth0", Up: true, MTU: 1500, AltNames: []string{"enp0s1"}},
			{Index: 3, Name: "mp0", Up: true, MTU: 1400},
		},
		Addrs: []Addr{
			{Index: 1, Prefix: netip.MustParsePrefix("127.0.0.1/8")},
			{Index: 2, Prefix: netip.MustParsePrefix("172.18.0.3/16"), Global: true},
			{Index: 3, Prefix: netip.MustParsePrefix("10.244.1.2/24"), Global: true},
			{Index: 2, Prefix: netip.MustParsePrefix("fd00:18::3/64"), Global: true},
			{Index: 2, Prefix: netip.MustParsePrefix("fe80::3/64")},
			{Index: 3, Prefix: netip.MustParsePrefix("fd00:10:244:1::2/64"), Global: true},
		},
		AllRPFilter: RPStrict,
		Forwarding:  map[Family]bool{IPv4: true, IPv6: true},
	}
}

// mutable returns a pointer into s, to change it.
func mutable(s *State, name string) *Link {
	for i := range s.Links {
		if s.Links[i].Name == name {
			return &s.Links[i]
		}
	}
	panic(name)
}

func without(s State, addr string) State {
	var out []Addr
	for _, a := range s.Addrs {
		if a.Prefix.Addr().String() != addr {
			out = append(out, a)
		}
	}
	s.Addrs = out
	return s
}

// lines prints a set as the tests compare it: sorted, one entry per line.
func lines(set Set, name func(int) string) string {
	var b strings.Builder
	for _, e := range set.Sorted() {
		b.WriteString(e.Text(name) + "\n")
	}
	return b.String()
}

func problemLines(ps []Problem) string {
	var b strings.Builder
	for _, p := range ps {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}

// trim removes the indentation that a raw string has in the source.
func trim(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// owned returns the entries of now without loose filters that are not wanted, which are nobody's.
func owned(now, want Set) Set {
	out := Set{}
	for e := range now {
		if e.Kind() != KindSysctl || want.Has(e) {
			out[e] = struct{}{}
		}
	}
	return out
}

// seeded returns a random source whose seed is printed; ROUTING_SEED replays it. It belongs to one goroutine.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ROUTING_SEED"); s != "" {
		seed = must(strconv.ParseUint(s, 10, 64))
	}
	t.Logf("ROUTING_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
