// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

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

// sizeOf is what a Service of two endpoints counts.
func sizeOf(objects []kube.Object) int {
	out := services.Build(services.Input{Service: objects[0].(*kube.Service),
		Slices: []*kube.EndpointSlice{objects[1].(*kube.EndpointSlice), objects[2].(*kube.EndpointSlice)}, Node: services.Node{Name: "node-1"}})
	return out.Size()
}

// A Service that asks for more than one may have is not served, and is named; all others are, and it is again when it
// asks for less.
func TestTooLargeService(t *testing.T) {
	r := bounded(t, sizeOf(service(1, 10)), 0)
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
	r.set(service(1, 11)...) // what was served goes, rather than to grow stale
	r.eventually("the other one only", func() bool { return !r.served(1) && r.served(2) })
	r.set(service(3, 1)...)
	r.eventually("others go on", func() bool { return r.served(3) })
	if event = <-r.events; !strings.Contains(event, "default/svc-1 ServiceTooLarge") || len(r.events) > 0 {
		t.Error(event, len(r.events))
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
	start := time.Now()
	r.sync()
	r.ready()
	r.eventually("the other one", func() bool { return r.served(2) })
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if event := <-r.events; !strings.Contains(event, "50001 addresses") {
		t.Error(event)
	}
	if !r.health.Healthy() {
		t.Error("unhealthy for one Service")
	}
}

// When there is no room for all, the oldest are served, in whatever order they come, and after a restart as before it.
func TestNoRoomForAll(t *testing.T) {
	one := sizeOf(service(1, 2))
	r := bounded(t, 0, 3*one)
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
	r.eventually("an older one takes the place of the youngest", is("123"))
	r.Sink().Delete(kube.Ref{Kind: kube.KindService, Name: kube.Name{Namespace: "default", Name: "svc-2"}})
	r.eventually("the oldest that waits", is("134"))
	r.set(service(1, 8)...) // more than twice what it had
	r.eventually("the old one grows", func() bool { return r.served(1) && !r.served(4) })
	r.set(service(1, 2)...)
	r.eventually("and shrinks", is("134"))
	if r.size != 3*one {
		t.Errorf("%d elements are counted, want %d", r.size, 3*one)
	}
	r.stop()
	if n := len(r.aside); n != 1 {
		t.Errorf("%d are set aside", n)
	}
}
