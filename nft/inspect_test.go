// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

func variants() []Config {
	return append(externalConfigs(), []Config{
		{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}},
		{MasqueradeBit: 31, MasqueradeAll: true, NodePortAll: true},
		{MasqueradeBit: 3, MasqueradeAll: true, Pods: PodMatch{CIDRs: true}},
		{Pods: PodMatch{Interface: "cbr0"}},
		{MasqueradeBit: 1, Pods: PodMatch{Interface: "veth", Prefix: true}, NodePortAll: true},
		{MasqueradeBit: 5},
		{MasqueradeBit: 5, Connections: true},
	}...)
}

func snapshot(t testing.TB, k *kernel.Conn, f Family) *Snapshot {
	t.Helper()
	s, err := k.Snapshot(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What the kernel gives back is the rules that were sent: the configuration can be read from them, and nothing differs.
func TestSnapshotTellsConfigAndDifferences(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		if d := snapshot(t, k, f).Differences(Config{}, nil); len(d) != 1 {
			t.Errorf("%s: without a table: %q", f, d)
		}
		for _, cfg := range variants() {
			cfg = inFamily(cfg, f)
			program(t, k, f, cfg, sample(f), sampleNode(f))
			s := snapshot(t, k, f)
			if got := s.Config(); got != cfg {
				t.Errorf("%s: config %+v, want %+v", f, got, cfg)
			}
			if d := s.Differences(cfg, nil); len(d) != 0 {
				t.Errorf("%s: %+v: %q", f, cfg, d)
			}
		}
		for _, r := range snapshot(t, k, f).Rules {
			for i := range r {
				if slices.Contains(r[i].Exprs, nil) {
					t.Errorf("%s: an expression of ours was not understood: %v", f, r[i])
				}
			}
		}
	}
}

func TestDifferencesNameWhatDiffers(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	cfg := Config{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}}
	for _, c := range []struct{ command, want string }{
		{"insert rule ip nftproxy services drop", "chain services: rule 1 is not of this configuration"},
		{"flush chain ip nftproxy run", "chain run: rule 1 is missing (a policy, which puts a program in its place); rule 2 is missing (what ends in DNAT)"},
		{"add chain ip nftproxy strange", "chain strange is not of this version"},
		{"add set ip nftproxy odd { type ipv4_addr; }", "set odd is not of this version"},
		{"delete element ip nftproxy programs { 100:3 }", "program cluster-3 is missing in map programs"},
		{"delete element ip nftproxy programs { 100:3 }; add element ip nftproxy programs { 100:3 : goto refuse }", `program cluster-3 is "goto refuse", not "goto cluster-3"`},
	} {
		program(t, k, IPv4, cfg, sample(IPv4), sampleNode(IPv4))
		if d := snapshot(t, k, IPv4).Differences(cfg, nil); len(d) != 0 {
			t.Fatalf("before %q: %q", c.command, d)
		}
		n.nft(t, c.command+"\n", "-f", "-")
		d := snapshot(t, k, IPv4).Differences(cfg, nil)
		if !slices.ContainsFunc(d, func(d Difference) bool { return d.String() == c.want }) {
			t.Errorf("after %q: %q, want %q", c.command, d, c.want)
		}
	}
}

func TestDecodeInvertsElements(t *testing.T) {
	for _, f := range Families() {
		dec := NewDecoder(f)
		for _, s := range sample(f) {
			for _, e := range Elements(s) {
				d, ok := dec.Decode(&e)
				if !ok || encode(s, e, d) != e {
					t.Errorf("%s: %s %x: decoded as %+v, ok %v", f, e.Set, e.Key, d, ok)
				}
			}
		}
		for _, e := range sampleNode(f) {
			d, ok := dec.Decode(&e)
			if !ok || e.Set.IsInterval() && !slices.Contains(sampleNode(f), RangeElements(e.Set, f, d.Range.Prefixes())[0]) {
				t.Errorf("%s: %s %x: decoded as %+v, ok %v", f, e.Set, e.Key, d, ok)
			}
		}
		if _, ok := dec.Decode(&Element{Set: Services, Key: "short"}); ok {
			t.Errorf("%s: a short key was decoded", f)
		}
	}
}

// encode makes the element of values anew.
func encode(s *Service, e Element, d Decoded) Element {
	front := &Frontend{Addr: d.Addr, Port: d.Port}
	if !d.Addr.IsValid() {
		front.Kind = NodePort
	}
	out := Element{Set: e.Set, Key: string(AppendFrontend(nil, d.Proto, front)), Comment: e.Comment}
	if e.Set.Group() == Allowed {
		out.Key += AddrKey(d.Range.From)
		return out
	}
	switch e.Set {
	case Endpoints, NodePortEndpoints, EndpointsByID, NodePortEndpointsByID:
		out.Key += string(AppendClassID(nil, d.Slot))
		out.Data = string(AppendEndpoint(nil, d.Endpoint))
	case EndpointIDs, NodePortEndpointIDs:
		out.Key += string(AppendClassID(nil, d.Slot))
		out.Data = string(AppendClassID(nil, d.ID))
	case HostEndpoints:
		out.Data = string(AppendEndpoint(nil, d.Endpoint))
	case StickyDraws:
		out.Key, out.Data = string(AppendClassID(nil, d.Slot)), string(AppendClassID(nil, uint32(d.Program)))
	case ClusterIPs:
		out.Key = AddrKey(d.Addr)
	case Hairpin:
		out.Key = AddrKey(d.Addr) + AddrKey(d.Range.To) + string(AppendPort(AppendProto(nil, d.Proto), d.Port))
	case Services, NodePorts, ClusterPrograms, LocalPrograms, NodePortClusterPrograms, NodePortLocalPrograms:
		out.Data = string(AppendClassID(nil, uint32(d.Program)))
	}
	return out
}

func TestPrefixesCoverRange(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"10.0.0.0", "10.255.255.255", "10.0.0.0/8"},
		{"10.0.0.1", "10.0.0.6", "10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32"},
		{"0.0.0.0", "255.255.255.255", "0.0.0.0/0"},
		{"255.255.255.255", "255.255.255.255", "255.255.255.255/32"},
		{"fd00::", "fd00::1:ffff", "fd00::/111"},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"},
	} {
		r := Range{netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)}
		var got []string
		for _, p := range r.Prefixes() {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s-%s: %s, want %s", c.from, c.to, got, c.want)
		}
		if !r.Contains(r.From) || !r.Contains(r.To) || r.From.Prev().IsValid() && r.Contains(r.From.Prev()) {
			t.Errorf("%s-%s: wrong Contains", c.from, c.to)
		}
	}
}

// The model of a table is what the kernel returns.
func TestModelIsWhatTheKernelHolds(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		for _, cfg := range variants() {
			program(t, k, f, cfg, sample(f), sampleNode(f))
			got, want := snapshot(t, k, f), Model(f, cfg, sample(f), sampleNode(f))
			if d := DiffElements(got.Elements, want.Elements); d.Len() != 0 {
				t.Errorf("%s: elements differ: %+v", f, d)
			}
			got.Elements, want.Elements = nil, nil
			if d := cmp.Diff(want.Content, got.Content, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s %+v: (-model +kernel)\n%s", f, cfg, d)
			}
		}
	}
}
