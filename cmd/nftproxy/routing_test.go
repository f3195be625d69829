// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/routing"
)

// countingSink counts what is passed on.
type countingSink struct{ sets, deletes, synced, problems int }

func (s *countingSink) Set(kube.Object)         { s.sets++ }
func (s *countingSink) Delete(kube.Ref)         { s.deletes++ }
func (s *countingSink) Synced(kube.Kind)        { s.synced++ }
func (s *countingSink) Problem(kube.Ref, error) { s.problems++ }

func TestRoutingInputs(t *testing.T) {
	var got []routing.Config
	sink := &countingSink{}
	o := newRoutingInputs(routing.Config{}, netip.MustParseAddr("2001:db8::9"), func(c routing.Config) error {
		got = append(got, c)
		return nil
	})
	o.Sink = sink
	complete := func() bool {
		select {
		case <-o.complete:
			return true
		default:
			return false
		}
	}
	cidr := func(name string, p ...string) *kube.ServiceCIDR {
		c := &kube.ServiceCIDR{Name: kube.Name{Name: name}}
		for _, s := range p {
			c.Prefixes = append(c.Prefixes, netip.MustParsePrefix(s))
		}
		return c
	}
	o.Set(cidr("a", "10.96.0.0/12", "fd00:96::/112"))
	o.Set(&kube.Node{Name: kube.Name{Name: "n"}, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}})
	if len(got) > 0 {
		t.Fatalf("routing was told of an incomplete list: %+v", got)
	}
	if complete() {
		t.Error("complete before all ServiceCIDRs are known")
	}
	o.Synced(kube.KindServiceCIDR)
	if !complete() {
		t.Error("not complete")
	}
	o.Set(cidr("b", "10.200.0.0/16"))
	o.Delete(kube.Ref{Kind: kube.KindServiceCIDR, Name: kube.Name{Name: "a"}})
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::9")}
	p := netip.MustParsePrefix
	want := []routing.Config{
		{NodeAddrs: addrs, ServiceCIDRs: []netip.Prefix{p("10.96.0.0/12"), p("fd00:96::/112")}},
		{NodeAddrs: addrs, ServiceCIDRs: []netip.Prefix{p("10.96.0.0/12"), p("10.200.0.0/16"), p("fd00:96::/112")}},
		{NodeAddrs: addrs, ServiceCIDRs: []netip.Prefix{p("10.200.0.0/16")}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	o.Delete(kube.Ref{Kind: kube.KindNode, Name: kube.Name{Name: "n"}})
	o.configured.ServiceCIDRs = []netip.Prefix{p("10.0.0.0/8")}
	o.Set(cidr("c", "10.201.0.0/16"))
	if last := got[len(got)-1].NodeAddrs; !reflect.DeepEqual(last, addrs) {
		t.Errorf("without the Node object its addresses are %v, want %v", last, addrs)
	}
	if last := got[len(got)-1].ServiceCIDRs; len(last) != 1 || last[0] != p("10.0.0.0/8") {
		t.Errorf("configured CIDRs do not win: %v", last)
	}
	if *sink != (countingSink{sets: 4, deletes: 2, synced: 1}) {
		t.Errorf("passed on: %+v", *sink)
	}
}
