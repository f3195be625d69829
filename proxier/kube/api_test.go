// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// startAPI runs the source against f until the test ends.
func startAPI(t *testing.T, f *fakeAPI) *recorder {
	t.Helper()
	r := newRecorder(t)
	a, err := NewAPI(&rest.Config{Host: f.URL}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { a.Run(ctx, r) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return r
}

func service(name, ip string) *v1.Service {
	return apiService(func(o *v1.Service) {
		o.Name, o.Spec.ClusterIP, o.Spec.ClusterIPs = name, ip, []string{ip}
	})
}

func slice(name, addr string) *discovery.EndpointSlice {
	return apiSlice(func(o *discovery.EndpointSlice) { o.Name, o.Endpoints[0].Addresses = name, []string{addr} })
}

func TestAPIListsThenFollows(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		f := newFakeAPI(t)
		f.noStream = noStream
		f.put("services", "ADDED", service("a", "10.96.0.1"))
		f.put("endpointslices", "ADDED", slice("a-1", "10.244.0.1"))
		f.put("nodes", "ADDED", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		r := startAPI(t, f)
		r.until("all kinds synced", r.allSynced)
		log := r.take()
		for _, want := range [][2]string{
			{"set Service ns/a", "synced Service"}, {"set EndpointSlice ns/a-1", "synced EndpointSlice"}, {"set Node n1", "synced Node"},
		} {
			if i := slices.Index(log, want[0]); i < 0 || i > slices.Index(log, want[1]) {
				t.Errorf("no %q before %q in %q", want[0], want[1], log)
			}
		}
		r.until("watches", func() bool { return f.watching("services") == 1 })
		f.put("services", "ADDED", service("b", "10.96.0.2"))
		f.put("services", "MODIFIED", service("a", "10.96.0.1")) // nothing that we use
		f.put("services", "MODIFIED", service("a", "10.96.0.3"))
		f.put("services", "DELETED", service("b", "10.96.0.2"))
		r.until("b gone", func() bool { return slices.Contains(r.take(), "delete Service ns/b") })
		if s := r.get(ref(KindService, "ns/a")).(*Service); s.ClusterIPs[0].String() != "10.96.0.3" {
			t.Errorf("Service a has %s", s.ClusterIPs)
		}
	}
}

func TestAPIAsksForWhatKubeProxyAsksFor(t *testing.T) {
	f := newFakeAPI(t)
	r := startAPI(t, f)
	r.until("all kinds synced", r.allSynced)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, want := range []string{
		"services labels=!service.kubernetes.io/service-proxy-name fields=spec.clusterIP!=None",
		"endpointslices labels=!service.kubernetes.io/headless fields=",
		"nodes labels= fields=metadata.name=n1",
		"servicecidrs labels= fields=",
	} {
		if !slices.Contains(f.queries, want) {
			t.Errorf("no request %q in %q", want, f.queries)
		}
	}
	slices.Sort(f.queries)
	if n := len(slices.Compact(f.queries)); n != 4 {
		t.Errorf("%d different requests: %q", n, f.queries)
	}
}

// A Service that loses its ClusterIP, or that cannot be used any more, is gone for us; what cannot be read stays out.
func TestAPITypeChangesAndProblems(t *testing.T) {
	f := newFakeAPI(t)
	f.put("services", "ADDED", service("a", "10.96.0.1"))
	r := startAPI(t, f)
	r.until("watch", func() bool { return f.watching("services") == 1 && r.count() == 1 })
	name := ref(KindService, "ns/a")

	external := service("a", "")
	external.Spec.Type, external.Spec.ClusterIPs = v1.ServiceTypeExternalName, nil
	f.put("services", "MODIFIED", external)
	r.until("gone", func() bool { return r.get(name) == nil })

	bad := service("a", "10.96.0.1")
	bad.Spec.ExternalIPs = []string{"192.0.2.1", "x"}
	f.put("services", "MODIFIED", bad)
	r.until("problem", func() bool { return r.problem(name) != "" && r.get(name) != nil })
	if want := `Service ns/a: spec.externalIPs[1]: "x": not an IP address`; r.problem(name) != want {
		t.Errorf("problem is %q, want %q", r.problem(name), want)
	}
	r.take()
	f.put("services", "MODIFIED", service("a", "10.96.0.1"))
	r.until("no problem", func() bool { return r.problem(name) == "" })
}

// While the server is away, or answers nonsense, nothing is removed; when it is back, only what is really gone is.
func TestAPIOutage(t *testing.T) {
	f := newFakeAPI(t)
	f.put("services", "ADDED", service("a", "10.96.0.1"))
	f.put("services", "ADDED", service("b", "10.96.0.2"))
	f.put("services", "ADDED", service("c", "10.96.0.3"))
	r := startAPI(t, f)
	r.until("all kinds synced", r.allSynced)
	r.take()

	asked := 0
	f.set(func(f *fakeAPI) { f.fail["services"], asked = 500, len(f.queries) })
	f.hangUp()
	r.until("a failed request", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.ContainsFunc(f.queries[asked:], func(q string) bool { return q[:8] == "services" })
	})
	f.put("services", "DELETED", service("b", "10.96.0.2")) // nobody is watching
	f.put("services", "MODIFIED", service("c", "10.96.0.4"))
	f.put("services", "ADDED", service("d", "10.96.0.5"))
	if log := r.take(); len(log) != 0 {
		t.Errorf("told during an outage: %q", log)
	}
	// The version that we saw last has expired meanwhile: the watch is refused and a new list is needed.
	lists := 0
	f.set(func(f *fakeAPI) { f.fail["services"], lists = 410, f.lists["services"] })
	r.until("a refused version", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.queries) > asked+2
	})
	f.set(func(f *fakeAPI) { delete(f.fail, "services") })
	r.until("a new list", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.lists["services"] > lists
	})
	r.until("b gone", func() bool { return r.get(ref(KindService, "ns/b")) == nil })
	log := r.take()
	slices.Sort(log[:2]) // a list has no order
	want := []string{"set Service ns/c", "set Service ns/d", "delete Service ns/b"}
	if !slices.Equal(log, want) {
		t.Errorf("told after the outage: %q, want %q", log, want)
	}
}

func TestAPIWithoutServiceCIDRs(t *testing.T) {
	for _, status := range []int{403, 404} {
		f := newFakeAPI(t)
		f.fail["servicecidrs"] = status
		r := startAPI(t, f)
		r.until("all kinds synced", r.allSynced)
	}
	f := newFakeAPI(t)
	f.fail["services"] = 403 // what is needed is waited for
	r := startAPI(t, f)
	r.until("the others synced", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.synced) == kinds-1 })
	if r.mu.Lock(); r.synced[KindService] {
		t.Error("Services synced without a list")
	}
	r.mu.Unlock()
}

// Run ends soon after its context even if the reflectors are waiting for a server that is away.
func TestAPIStops(t *testing.T) {
	f := newFakeAPI(t)
	f.Close()
	a, err := NewAPI(&rest.Config{Host: f.URL}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a.Run(ctx, newRecorder(t)) // the test's own time limit is the judge
	if _, err := NewAPI(&rest.Config{Host: f.URL}, ""); err == nil {
		t.Error("a source without a node name")
	}
}

// A watch that is stopped ends, though nobody reads what it had to say.
func TestItemWatchStops(t *testing.T) {
	in := watch.NewFakeWithChanSize(1, false)
	in.Add(service("a", "10.96.0.1"))
	w := &itemWatch{in: in, convert: converter(FromService), out: make(chan watch.Event), done: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		w.run()
		close(ended)
	}()
	w.Stop()
	w.Stop()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the watch goes on")
	}
}
