// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// startAPI runs the source against f until the test ends.
func startAPI(t *testing.T, f *fakeAPI) *recorder {
	t.Helper()
	r := newRecorder(t)
	a, err := NewAPI(f.client, "n1")
	if err != nil {
		t.Fatal(err)
	}
	r.api = a
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), r.logger()))
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
		synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

func TestAPIAsksForWhatKubeProxyAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// A Service that loses its ClusterIP, or that cannot be used any more, is gone for us; what cannot be read stays out.
func TestAPITypeChangesAndProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// While the server is away, or answers nonsense, nothing is removed; when it is back, only what is really gone is.
func TestAPIOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		f.put("services", "DELETED", service("b", "10.96.0.2")) // while no watch is open
		f.put("services", "MODIFIED", service("c", "10.96.0.4"))
		f.put("services", "ADDED", service("d", "10.96.0.5"))
		if log := r.take(); len(log) != 0 {
			t.Errorf("delivered during an outage: %q", log)
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
			t.Errorf("delivered after the outage: %q, want %q", log, want)
		}
	})
}

func TestAPIWithoutServiceCIDRs(t *testing.T) {
	for _, status := range []int{403, 404} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeAPI(t)
			f.fail["servicecidrs"] = status
			r := startAPI(t, f)
			r.until("all kinds synced", r.allSynced)
			time.Sleep(time.Hour)
			if n := f.requests("servicecidrs"); n > 150 {
				t.Errorf("%d requests in an hour for a resource that is not served", n)
			}
			if lines := r.lines(); len(lines) != 0 {
				t.Errorf("logged %q", lines)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI(t)
		f.fail["services"] = 403 // a required resource is waited for
		r := startAPI(t, f)
		r.until("the others synced", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.synced) == len(Kinds())-1 })
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.synced[KindService] {
			t.Error("Services synced without a list")
		}
	})
}

// Run ends soon after its context even if the reflectors are waiting for a server that is away.
func TestAPIStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI(t)
		f.broken = func(_ http.ResponseWriter, r *http.Request, _ func()) { <-r.Context().Done() }
		a, err := NewAPI(f.client, "n1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		a.Run(ctx, newRecorder(t))
		if took := time.Since(start); took != time.Minute {
			t.Errorf("Run took %s on the test's own clock", took)
		}
		if _, err := NewAPI(f.client, ""); err == nil {
			t.Error("a source without a node name")
		}
	})
}

// A server, or a proxy before it, that answers nonsense gets few requests, and no answer stays open. Nothing is removed; once
// it is well, what has changed meanwhile arrives within 5 s; the log has a line after 10 s, then ever more rarely, and one when it is back.
func TestAPIBrokenServer(t *testing.T) {
	truncated := func(w http.ResponseWriter, r *http.Request, next func()) {
		a := w.(*answer)
		a.end = io.ErrUnexpectedEOF
		_, _ = io.WriteString(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"na`)
	}
	for name, broken := range map[string]func(http.ResponseWriter, *http.Request, func()){
		"410": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			w.WriteHeader(410)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		},
		"410 as an event": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			_, _ = io.WriteString(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`)
		},
		"500": func(w http.ResponseWriter, _ *http.Request, _ func()) { w.WriteHeader(500) },
		"no answer": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			w.(*answer).refused = errors.New("connection refused")
		},
		"HTML": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>sorry")
			w.(*answer).end = io.ErrUnexpectedEOF
		},
		"HTML without end": func(w http.ResponseWriter, r *http.Request, _ func()) {
			if r.URL.Query().Get("watch") == "" {
				w.WriteHeader(500)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"truncated": truncated,
		"empty":     func(http.ResponseWriter, *http.Request, func()) {},
		"no bookmark": func(w http.ResponseWriter, r *http.Request, next func()) {
			if r.URL.Query().Get("watch") == "" {
				truncated(w, r, next)
				return
			}
			kind, version := kindOf(path.Base(r.URL.Path))
			_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":{"kind":%q,"apiVersion":%q,"metadata":{"name":"x","namespace":"ns","resourceVersion":"9"}}}`, kind, version)
		},
		"watches end at once": func(w http.ResponseWriter, r *http.Request, next func()) {
			if r.URL.Query().Get("watch") == "" {
				next()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeAPI(t)
				f.put("services", "ADDED", service("a", "10.96.0.1"))
				r := startAPI(t, f)
				r.until("all kinds synced", r.allSynced)
				r.take()
				open, before := f.open.Load(), f.requests("services")
				f.set(func(f *fakeAPI) { f.broken = broken })
				f.hangUp()
				time.Sleep(12 * time.Second)
				if n := f.requests("services") - before; n < 4 || n > 60 {
					t.Errorf("%d requests in 12 s", n)
				}
				time.Sleep(20 * time.Minute)
				if n := f.requests("services") - before; n > 3*20*60 {
					t.Errorf("%d requests in 20 minutes", n)
				}
				if n := f.open.Load(); n > open+int32(len(Kinds())) {
					t.Errorf("%d answers are open, %d before", n, open)
				}
				if log := slices.DeleteFunc(r.take(), func(s string) bool { return name == "watches end at once" }); len(log) != 0 {
					t.Errorf("sink was given %q", log)
				}
				lines := r.lines()
				if len(lines) < 4 || len(lines) > 8 || !strings.Contains(lines[0], "https://fake") || strings.Contains(lines[0], "labelSelector") {
					t.Errorf("log of 20 minutes: %d lines, %q", len(lines), lines)
				}
				f.put("services", "MODIFIED", service("a", "10.96.0.2"))
				f.set(func(f *fakeAPI) { f.broken = nil })
				time.Sleep(5 * time.Second)
				if s := r.get(ref(KindService, "ns/a")).(*Service); s.ClusterIPs[0].String() != "10.96.0.2" {
					t.Error("no change 5 s after the server was well")
				}
				time.Sleep(10 * time.Second)
				if lines := r.lines(); len(lines) != 1 || !strings.Contains(lines[0], "again") {
					t.Errorf("log when the server is back: %q", lines)
				}
				if n := f.open.Load(); n != open {
					t.Errorf("%d answers are open, %d before", n, open)
				}
				for _, s := range r.api.Status() {
					if !s.Connected || time.Since(s.LastContact) > time.Minute {
						t.Errorf("status %+v", s)
					}
				}
			})
		})
	}
}

// Credentials that the server refuses are read again; those that were replaced are used at once after Reload. Nothing is removed.
func TestAPIRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI(t)
		f.put("services", "ADDED", service("a", "10.96.0.1"))
		f.token = "token"
		r := newRecorder(t)
		var client atomic.Pointer[rest.Config]
		use := func(f *fakeAPI, token string) {
			cfg, _ := f.client()
			cfg.BearerToken = token
			client.Store(cfg)
		}
		use(f, "token")
		a, err := NewAPI(func() (*rest.Config, error) { return client.Load(), nil }, "n1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { a.Run(ctx, r) })
		defer wg.Wait()
		defer cancel()
		r.until("all kinds synced", r.allSynced)
		r.take()
		f.set(func(f *fakeAPI) { f.token = "new" })
		f.hangUp()
		time.Sleep(time.Minute)
		use(f, "new")
		f.put("services", "MODIFIED", service("a", "10.96.0.2"))
		time.Sleep(10 * time.Second)
		if log := r.take(); !slices.Equal(log, []string{"set Service ns/a"}) {
			t.Errorf("10 s after the rotation: %q", log)
		}
		other := newFakeAPI(t) // the old one goes on working, so only Reload helps
		other.put("services", "ADDED", service("a", "10.96.0.3"))
		use(other, "token")
		if err := a.Reload(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if log := r.take(); !slices.Equal(log, []string{"set Service ns/a"}) {
			t.Errorf("10 s after Reload: %q", log)
		}
	})
}
