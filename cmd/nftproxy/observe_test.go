// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/routing"
)

// countingSink counts what is passed on.
type countingSink struct{ sets, deletes, synced, problems int }

func (s *countingSink) Set(kube.Object)         { s.sets++ }
func (s *countingSink) Delete(kube.Ref)         { s.deletes++ }
func (s *countingSink) Synced(kube.Kind)        { s.synced++ }
func (s *countingSink) Problem(kube.Ref, error) { s.problems++ }

// healthz is the status of /healthz of a proxy that has synced.
func healthz(p *health.Proxy) int {
	w := httptest.NewRecorder()
	p.Handler(health.Counter{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	return w.Code
}

func TestObserverHealth(t *testing.T) {
	for _, alone := range []bool{false, true} {
		h := health.New(time.Minute, time.Now, v1.IPv4Protocol)
		h.Synced(v1.IPv4Protocol)
		sink := &countingSink{}
		o := &observer{Sink: sink, health: h, alone: alone, cidrs: map[kube.Name][]netip.Prefix{}}
		o.setNode(nil)
		node := kube.Name{Name: "n"}
		without := http.StatusServiceUnavailable
		if alone {
			without = http.StatusOK
		}
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"no Node", func() {}, without},
			{"a Node", func() { o.Set(&kube.Node{Name: node}) }, http.StatusOK},
			{"to be deleted", func() { o.Set(&kube.Node{Name: node, ToBeDeleted: true}) }, http.StatusServiceUnavailable},
			{"deleting", func() { o.Set(&kube.Node{Name: node, Deleting: true}) }, http.StatusServiceUnavailable},
			{"gone", func() { o.Delete(kube.Ref{Kind: kube.KindNode, Name: node}) }, without},
		} {
			step.do()
			if got := healthz(h); got != step.want {
				t.Errorf("alone %v, %s: /healthz %d, want %d", alone, step.name, got, step.want)
			}
		}
		if sink.sets != 3 || sink.deletes != 1 {
			t.Errorf("passed on: %+v", sink)
		}
	}
}

func TestObserverRouting(t *testing.T) {
	var got []routing.Config
	o := &observer{
		Sink: &countingSink{}, health: health.New(time.Minute, time.Now), cidrs: map[kube.Name][]netip.Prefix{},
		nodeIP: netip.MustParseAddr("2001:db8::9"),
		reroute: func(c routing.Config) error {
			got = append(got, c)
			return nil
		},
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
	o.Synced(kube.KindServiceCIDR)
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
	o.routing.ServiceCIDRs = []netip.Prefix{p("10.0.0.0/8")}
	o.Set(cidr("c", "10.201.0.0/16"))
	if last := got[len(got)-1].ServiceCIDRs; len(last) != 1 || last[0] != p("10.0.0.0/8") {
		t.Errorf("configured CIDRs do not win: %v", last)
	}
}
