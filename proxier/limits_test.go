// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// A Service has as many ports as fit in etcd, and whoever may write its slices can have it built anew all the time.
func TestManyPorts(t *testing.T) {
	r := newRig(t)
	const ports = 10000
	name := kube.Name{Namespace: "default", Name: "wide"}
	svc := &kube.Service{Name: name, UID: "uid", Created: 1, ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:10:96::1")}}
	slice := func(v6 bool, last int) *kube.EndpointSlice {
		s := &kube.EndpointSlice{Name: kube.Name{Namespace: "default", Name: fmt.Sprint("wide-", v6)}, Service: name, IPv6: v6}
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(last)})
		if v6 {
			a = netip.MustParseAddr(fmt.Sprintf("fd00:244::%x", last))
		}
		s.Endpoints = []kube.Endpoint{{Addr: a, Ready: true, Serving: true}}
		for i := range svc.Ports {
			s.Ports = append(s.Ports, kube.SlicePort{Name: svc.Ports[i].Name, Proto: kube.TCP, Port: uint16(i + 1)})
		}
		return s
	}
	for i := range ports {
		svc.Ports = append(svc.Ports, kube.ServicePort{Name: kube.Intern(fmt.Sprintf("p%05d", i)), Proto: kube.TCP, Port: uint16(i + 1)})
	}
	all := svc.Ports
	replace := func(ports int) time.Duration {
		wide := *svc
		wide.Ports = all[:ports]
		svc = &wide
		r.set(svc, slice(false, 1), slice(true, 1))
		r.sync()
		r.ready()
		r.eventually("all ports", func() bool { return r.endpointsAt(1) == ports })
		written, start := r.kernel.written.Load(), processorTime(t)
		r.set(slice(false, 2), slice(true, 2))
		// Each port of each family loses an element and gets one.
		r.eventually("all ports on the new endpoint", func() bool { return r.kernel.written.Load() >= written+4*int64(ports) })
		took := processorTime(t) - start
		r.eventually("all ports on the new endpoint, as read", func() bool { return r.endpointsAt(2) == ports })
		return took
	}
	few, many := replace(ports/10), replace(ports)
	// Ten times as many ports take ten times as long; work in the square of the ports takes a hundred times as long.
	if ratio := float64(many) / float64(few); ratio > 40 {
		t.Errorf("%d ports took %v of processor time, %d took %v: %.0f times as long", ports/10, few, ports, many, ratio)
	}
}

// endpointsAt counts the elements of IPv6 that lead to the endpoint with this last byte.
func (r *rig) endpointsAt(last byte) (n int) {
	for _, e := range r.content(nft.IPv6).Elements {
		if e.Set == nft.Endpoints && e.Data[15] == last {
			n++
		}
	}
	return n
}

// processorTime is what the process has used, in which other processes have no part.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What is told of a Service goes with it.
func TestLossesAreForgotten(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 1)...)
	for i := range 100 {
		thief := service(1, 0)[0].(*kube.Service)
		thief.Name.Name, thief.Created = fmt.Sprint("thief-", i), 2
		r.set(thief)
	}
	r.sync()
	r.ready()
	r.eventually("Events", func() bool { return len(r.events) == 100 })
	for i := range 100 {
		r.Sink().Delete(kube.Ref{Kind: kube.KindService, Name: kube.Name{Namespace: "default", Name: fmt.Sprint("thief-", i)}})
	}
	r.set(service(2, 1)...)
	r.eventually("later Service", func() bool { return r.count(nft.Services) == 2 })
	r.stop()
	if len(r.report.lost) != 0 {
		t.Errorf("%d Services that are gone are still known", len(r.report.lost))
	}
}

// The tables are gone and do not come back: that is not healthy, although no object changed.
func TestUnrepairedIsUnhealthy(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 1)...)
	r.sync()
	r.ready()
	r.kernel.fail.Store(true)
	r.nft("delete", "table", "ip", nft.TableName)
	r.eventually("a repair that fails", func() bool {
		r.ahead.Add(int64(time.Hour)) // the failure may have come since the last look
		return !r.healthy()
	})
	r.kernel.fail.Store(false)
	r.eventually("healthy again", r.healthy)
	if r.count(nft.Services) != 1 {
		t.Error("healthy without a table")
	}
}

// What the tables led to when we came is what they had before the first attempt, not before the last.
func TestServiceDeletedWhileDownAndFirstSyncFails(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.set(service(2, 2)...)
	r.sync()
	r.ready()
	r.stop()
	r.flows = &told{offered: map[ctsync.Frontend]ctsync.Change{}}
	r.start()
	r.kernel.lie.Store(true)
	r.set(service(1, 2)...)
	r.sync()
	r.eventually("removed", func() bool { return r.count(nft.Services) == 1 })
	r.kernel.lie.Store(false)
	r.ready()
	r.eventually("gone is told", func() bool {
		r.flows.mu.Lock()
		defer r.flows.mu.Unlock()
		return r.flows.offered[ctsync.Frontend{Addr: netip.MustParseAddr("10.96.0.2"), Port: 80, Proto: ctsync.TCP}].Removed
	})
}

// While nothing can be committed, each try reads everything: changes must not make it try all the time.
func TestFailuresAreNotRetriedWithEveryChange(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 1)...)
	r.sync()
	r.ready()
	r.kernel.fail.Store(true)
	before := r.kernel.commits.Load()
	for i := range 500 {
		r.set(service(2, 1+i%3)...)
		time.Sleep(time.Millisecond)
	}
	if n := r.kernel.commits.Load() - before; n > 20 {
		t.Errorf("%d tries within half a second", n)
	}
	r.kernel.fail.Store(false)
	r.eventually("served after all", func() bool { return r.count(nft.Services) == 2 })
}

// Endpoints go on changing while nothing can be committed.
func TestTriggersAreBounded(t *testing.T) {
	tr := newTracker(func() {}, func(kube.Kind, int, int) {})
	slice := service(1, 1)[1].(*kube.EndpointSlice)
	slice.Changed = time.Now()
	for range 3 * maxTriggers {
		tr.Set(slice)
		tr.giveBack(tr.take())
	}
	if n := len(tr.take().triggers); n != maxTriggers {
		t.Errorf("%d times are kept", n)
	}
}

// Before all kinds are listed nothing is taken, and endpoints change.
func TestTriggersAreBoundedBeforeTheFirstSync(t *testing.T) {
	tr := newTracker(func() {}, func(kube.Kind, int, int) {})
	slice := service(1, 1)[1].(*kube.EndpointSlice)
	slice.Changed = time.Now()
	for range 3 * maxTriggers {
		tr.Set(slice)
	}
	if n := len(tr.take().triggers); n != maxTriggers {
		t.Errorf("%d times are kept", n)
	}
}

// What is pending is counted as it comes, and is none once a pass has taken it.
func TestPendingChanges(t *testing.T) {
	total, pending := map[kube.Kind]int{}, map[kube.Kind]int{}
	tr := newTracker(func() {}, func(k kube.Kind, n, now int) {
		total[k] += n
		pending[k] = now
	})
	check := func(step string, services, slices, servicesPending, slicesPending int) {
		t.Helper()
		if total[kube.KindService] != services || total[kube.KindEndpointSlice] != slices ||
			pending[kube.KindService] != servicesPending || pending[kube.KindEndpointSlice] != slicesPending {
			t.Errorf("%s: total %v, pending %v", step, total, pending)
		}
	}
	for _, o := range service(1, 1) {
		tr.Set(o)
	}
	check("queued", 1, 2, 1, 2)
	work := tr.take()
	check("taken", 1, 2, 0, 0)
	tr.Delete(kube.Ref{Kind: kube.KindService, Name: kube.Name{Namespace: "default", Name: "svc-1"}})
	tr.giveBack(work)
	check("failed", 2, 2, 2, 2)
}

// The time of a trigger counts for the family of its slice only.
func TestTriggersOfOneFamily(t *testing.T) {
	p := starting(t, &scale{}, [][]kube.Object{service(1, 1)})
	p.round(t.Context())
	slice := service(1, 2)[2].(*kube.EndpointSlice) // IPv6
	slice.Changed = time.Now()
	p.Sink().Set(slice)
	p.round(t.Context())
	families, err := p.opt.Metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "kubeproxy_network_programming_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			want := uint64(0)
			if m.GetLabel()[0].GetValue() == "IPv6" {
				want = 1
			}
			if n := m.GetHistogram().GetSampleCount(); n != want {
				t.Errorf("%v: %d observations, want %d", m.GetLabel(), n, want)
			}
		}
		return
	}
	t.Error("no such metric")
}

// One Service of 20,000 ports with 10,000 endpoints, which the API server accepts, is set aside before memory is taken for it.
func TestHugeService(t *testing.T) {
	name := kube.Name{Namespace: "default", Name: "huge"}
	svc := &kube.Service{Name: name, Created: 1, ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.9.9")}}
	var slices []kube.Object
	for i := range 20_000 {
		svc.Ports = append(svc.Ports, kube.ServicePort{Name: kube.Intern(fmt.Sprint("p", i)), Proto: kube.TCP, Port: uint16(i + 1)})
	}
	for i := range 10 {
		s := &kube.EndpointSlice{Name: kube.Name{Namespace: "default", Name: fmt.Sprint("huge-", i)}, Service: name}
		for _, p := range svc.Ports {
			s.Ports = append(s.Ports, kube.SlicePort{Name: p.Name, Proto: p.Proto, Port: p.Port})
		}
		for e := range 1000 {
			s.Endpoints = append(s.Endpoints, kube.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i*4 + e>>8), byte(e)}), Ready: true, Serving: true})
		}
		slices = append(slices, s)
	}
	p := starting(t, &scale{}, [][]kube.Object{service(1, 2), {svc}, slices})
	p.opt.Config.Own.MaxServiceElements = 100_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.round(t.Context())
	runtime.ReadMemStats(&after)
	if a := p.planner.aside[name]; len(p.planner.committed) != 1 || a == nil || a.reason != tooLarge {
		t.Fatalf("%d Services are served, %+v", len(p.planner.committed), a)
	}
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 64 {
		t.Errorf("%d MiB allocated", mib)
	}
}

// A large Service that changes all the time leaves time for others: it is not built again at once.
func TestLargeServiceHasABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := starting(t, &scale{}, [][]kube.Object{service(1, 2), service(2, 2)})
		p.round(t.Context())
		name := kube.Name{Namespace: "default", Name: "svc-1"}
		p.planner.budgets[name] = time.Now().Add(time.Second) // as after a build of 250 ms
		p.Sink().Set(service(1, 3)[1])
		p.Sink().Set(service(2, 3)[1])
		wait := p.round(t.Context())
		size := func(i int) int {
			return len(p.planner.committed[kube.Name{Namespace: "default", Name: fmt.Sprint("svc-", i)}].ports[0].Cluster)
		}
		if size(1) != 2 || size(2) != 3 || wait > time.Second {
			t.Errorf("%d and %d endpoints, the next look in %v", size(1), size(2), wait)
		}
		time.Sleep(wait)
		p.round(t.Context())
		if size(1) != 3 {
			t.Error("the large Service is not built when its time has come")
		}
	})
}
