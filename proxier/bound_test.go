// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// bounded returns a rig whose Services are bounded.
func bounded(t *testing.T, one, all int) *rig {
	r := newRig(t)
	r.opt.Config.Own.MaxServiceElements, r.opt.Config.Own.MaxElements = one, all
	return r
}

// served tells whether the table leads a Service of rig.set somewhere.
func (r *rig) served(i int) bool {
	for _, e := range r.content(nft.IPv4).Elements {
		if e.Set == nft.Services && e.Comment == fmt.Sprintf("default/svc-%d", i) {
			return true
		}
	}
	return false
}

// elementsOf is what a Service of two endpoints counts.
func elementsOf(objects []kube.Object) int {
	out := services.Build(services.Input{Service: objects[0].(*kube.Service),
		Slices: []*kube.EndpointSlice{objects[1].(*kube.EndpointSlice), objects[2].(*kube.EndpointSlice)}, Node: services.Node{Name: "node-1"}})
	return out.Size()
}

// A Service that asks for more than one may have is not served, and is named; all others are, and it is again when it
// asks for less.
func TestTooLargeService(t *testing.T) {
	r := bounded(t, elementsOf(service(1, 10)), 0)
	r.set(service(1, 10)...)
	r.set(service(2, 11)...)
	r.sync()
	r.ready()
	r.eventually("the small one only", func() bool { return r.served(1) && !r.served(2) })
	event := <-r.events
	if !strings.Contains(event, "default/svc-2 ServiceTooLarge") || !strings.Contains(event, "maxServiceElements") {
		t.Error(event)
	}
	r.set(service(2, 12)...) // larger still: that is not told again
	r.set(service(2, 10)...)
	r.eventually("both", func() bool { return r.served(1) && r.served(2) })
	r.set(service(1, 11)...) // what is served stays, its growth is refused
	event = <-r.events
	if !strings.Contains(event, "default/svc-1 ServiceTooLarge") {
		t.Error(event)
	}
	before := r.count(nft.Endpoints)
	gone := service(1, 12)
	gone[1].(*kube.EndpointSlice).Endpoints = gone[1].(*kube.EndpointSlice).Endpoints[1:] // an endpoint that it has goes
	r.set(gone...)
	r.eventually("another endpoint in place of the one that is gone", func() bool {
		for _, e := range r.content(nft.IPv4).Elements {
			if e.Set == nft.Endpoints && strings.HasPrefix(e.Data, string([]byte{10, 244, 1, 1})) {
				return false
			}
		}
		return r.count(nft.Endpoints) == before
	})
	r.set(service(3, 1)...)
	r.eventually("others go on", func() bool { return r.served(3) && r.served(1) && r.served(2) })
	if len(r.events) > 0 {
		t.Error(<-r.events)
	}
}

// What would take the memory of the process before it takes that of the kernel is refused before it is made.
func TestTooManyFrontends(t *testing.T) {
	r := bounded(t, 1_000_000, 10_000_000)
	wide := service(1, 1)
	svc := wide[0].(*kube.Service)
	for i := range 50_000 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	svc.Ports = nil
	for i := range 10_000 {
		svc.Ports = append(svc.Ports, kube.ServicePort{Name: kube.Intern(fmt.Sprint("p", i)), Proto: kube.TCP, Port: uint16(i + 1)})
	}
	r.set(wide...)
	r.set(service(2, 1)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.sync()
	r.ready()
	r.eventually("the other one", func() bool { return r.served(2) })
	runtime.ReadMemStats(&after)
	// 50,001 addresses x 10,000 ports are 500,010,000 frontends of some 100 bytes. What is allocated otherwise, by far the most of it to
	// read the tables while waiting, is in the tens of megabytes.
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 5<<30 {
		t.Errorf("%d MiB were allocated", grew>>20)
	}
	if event := <-r.events; !strings.Contains(event, "50001 addresses") {
		t.Error(event)
	}
	if !r.healthy() {
		t.Error("unhealthy for one Service")
	}
}

// When there is no room for all, those that are served keep what they have, and room goes to the oldest that waits. One
// namespace leaves room for others.
func TestNoRoomForAll(t *testing.T) {
	one := elementsOf(service(1, 2))
	r := bounded(t, 0, 6*one) // three in one namespace
	for _, i := range []int{5, 4, 3, 2} {
		r.set(service(i, 2)...)
	}
	r.sync()
	r.ready()
	is := func(want string) func() bool {
		return func() bool {
			got := ""
			for i := range 6 {
				if r.served(i) {
					got += fmt.Sprint(i)
				}
			}
			return got == want
		}
	}
	r.eventually("the three oldest", is("234"))
	r.set(service(1, 2)...)
	other := service(6, 2)
	for _, o := range other {
		switch o := o.(type) {
		case *kube.Service:
			o.Name.Namespace = "other"
		case *kube.EndpointSlice:
			o.Name.Namespace, o.Service.Namespace = "other", "other"
		}
	}
	r.set(other...)
	r.eventually("a Service of another namespace", func() bool { return r.count(nft.Services) == 4 })
	if !is("234")() {
		t.Error("a Service that was served lost its place")
	}
	r.Sink().Delete(kube.Ref{Kind: kube.KindService, Name: kube.Name{Namespace: "default", Name: "svc-2"}})
	r.eventually("the oldest that waits", is("134"))
	endpoints := r.count(nft.Endpoints)
	r.set(service(1, 8)...)
	grown := service(6, 3)[1:]
	for _, o := range grown {
		o.(*kube.EndpointSlice).Name.Namespace, o.(*kube.EndpointSlice).Service.Namespace = "other", "other"
	}
	r.set(grown...)
	r.eventually("the other namespace may grow", func() bool { return r.count(nft.Endpoints) == endpoints+1 })
	if !is("134")() {
		t.Error("growth was not refused")
	}
	r.stop()
	if n := len(r.planner.aside); n != 2 {
		t.Errorf("%d are set aside, want the one that has no room and the one that has grown", n)
	}
	for namespace, n := range r.planner.usage.byNamespace {
		if namespace == "default" && n > 3*one {
			t.Errorf("%d elements in one namespace, want at most %d", n, 3*one)
		}
	}
}
