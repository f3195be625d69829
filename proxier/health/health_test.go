// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

const (
	v4    = v1.IPv4Protocol
	v6    = v1.IPv6Protocol
	limit = time.Minute
)

// fakeClock is a clock that the test turns.
type fakeClock struct{ t time.Time }

func (c *fakeClock) now() time.Time          { return c.t }
func (c *fakeClock) advance(d time.Duration) { c.t = c.t.Add(d) }

func newTestProxy(t *testing.T) (*Proxy, *fakeClock) {
	t.Helper()
	clock := &fakeClock{t: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	p := New(limit, clock.now, v4, v6)
	p.SetNode(Node{Known: true})
	return p, clock
}

// get asks a path of the handler.
func get(t *testing.T, h http.Handler, path string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: content type %q", path, got)
	}
	if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("%s: X-Content-Type-Options %q", path, got)
	}
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %q", path, err, w.Body.String())
	}
	return w.Code, body
}

// step is one thing that happens to the proxy and what it then answers.
type step struct {
	name           string
	do             func(p *Proxy, c *fakeClock)
	healthz, livez int
}

func TestHealthOverTime(t *testing.T) {
	for name, steps := range map[string][]step{
		"first sync of every family": {
			{"at start", func(*Proxy, *fakeClock) {}, 503, 200},
			{"one family queued", func(p *Proxy, _ *fakeClock) { p.Queued(v4) }, 503, 200},
			{"late before the first sync", func(_ *Proxy, c *fakeClock) { c.advance(2 * limit) }, 503, 200},
			{"one family synced", func(p *Proxy, _ *fakeClock) { p.Synced(v4) }, 503, 200},
			{"both synced", func(p *Proxy, _ *fakeClock) { p.Synced(v6) }, 200, 200},
			{"nothing happens for a day", func(_ *Proxy, c *fakeClock) { c.advance(24 * time.Hour) }, 200, 200},
		},
		"a change that is not applied": {
			{"synced", func(p *Proxy, _ *fakeClock) { p.Synced(v4); p.Synced(v6) }, 200, 200},
			{"queued", func(p *Proxy, _ *fakeClock) { p.Queued(v6) }, 200, 200},
			{"just in time", func(_ *Proxy, c *fakeClock) { c.advance(limit - 1) }, 200, 200},
			{"late", func(_ *Proxy, c *fakeClock) { c.advance(1) }, 503, 503},
			{"the other family's sync does not help", func(p *Proxy, _ *fakeClock) { p.Synced(v4) }, 503, 503},
			{"a newer change does not make it younger", func(p *Proxy, _ *fakeClock) { p.Queued(v6) }, 503, 503},
			{"applied", func(p *Proxy, _ *fakeClock) { p.Synced(v6) }, 200, 200},
		},
		"a change queued while a batch runs": {
			{"synced", func(p *Proxy, _ *fakeClock) { p.Synced(v4); p.Synced(v6) }, 200, 200},
			{"batch takes a change", func(p *Proxy, _ *fakeClock) { p.Queued(v4); p.Taken(v4) }, 200, 200},
			{"another one comes in", func(p *Proxy, c *fakeClock) { c.advance(limit / 2); p.Queued(v4) }, 200, 200},
			{"batch ends", func(p *Proxy, _ *fakeClock) { p.Synced(v4) }, 200, 200},
			{"the other one is not yet late", func(_ *Proxy, c *fakeClock) { c.advance(limit - 1) }, 200, 200},
			{"now it is", func(_ *Proxy, c *fakeClock) { c.advance(1) }, 503, 503},
			{"taken again after failures", func(p *Proxy, _ *fakeClock) { p.Taken(v4); p.Taken(v4) }, 503, 503},
			{"applied", func(p *Proxy, _ *fakeClock) { p.Synced(v4) }, 200, 200},
		},
		"the node": {
			{"synced", func(p *Proxy, _ *fakeClock) { p.Synced(v4); p.Synced(v6) }, 200, 200},
			{"unknown", func(p *Proxy, _ *fakeClock) { p.SetNode(Node{}) }, 503, 200},
			{"deleting", func(p *Proxy, _ *fakeClock) { p.SetNode(Node{Known: true, Deleting: true}) }, 503, 200},
			{"scaled down", func(p *Proxy, _ *fakeClock) { p.SetNode(Node{Known: true, ScaledDown: true}) }, 503, 200},
			{"back", func(p *Proxy, _ *fakeClock) { p.SetNode(Node{Known: true}) }, 200, 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, clock := newTestProxy(t)
			h := p.Handler(Counter{})
			for _, s := range steps {
				s.do(p, clock)
				if code, _ := get(t, h, "/healthz"); code != s.healthz {
					t.Errorf("%s: /healthz says %d, want %d", s.name, code, s.healthz)
				}
				if code, _ := get(t, h, "/livez"); code != s.livez {
					t.Errorf("%s: /livez says %d, want %d", s.name, code, s.livez)
				}
			}
		})
	}
}

// TestAnswer holds the JSON: kube-proxy's keys and formats, and ours.
func TestAnswer(t *testing.T) {
	p, clock := newTestProxy(t)
	counts := map[string]int{}
	h := p.Handler(Counter{
		Healthz: func(status int) { counts["healthz "+http.StatusText(status)]++ },
		Livez:   func(status int) { counts["livez "+http.StatusText(status)]++ },
	})
	p.Synced(v4)
	const first, later, now = "2026-11-20T12:00:00Z", "2026-11-20T12:00:01Z", "2026-11-20T12:02:01Z"
	_, body := get(t, h, "/healthz")
	if d := cmp.Diff(map[string]any{
		"lastUpdated": first, "currentTime": first, "nodeEligible": true, "healthy": false, "synced": false,
		"status": map[string]any{"IPv4": map[string]any{"lastUpdated": first, "healthy": true}},
	}, body); d != "" {
		t.Errorf("before the first sync of IPv6 (-want +got):\n%s", d)
	}
	clock.advance(time.Second)
	p.Synced(v6)
	p.Queued(v4)
	clock.advance(2 * limit)
	_, body = get(t, h, "/livez")
	if d := cmp.Diff(map[string]any{
		"lastUpdated": later, "currentTime": now, "healthy": false, "synced": true,
		"status": map[string]any{
			"IPv4": map[string]any{"lastUpdated": first, "healthy": false},
			"IPv6": map[string]any{"lastUpdated": later, "healthy": true},
		},
	}, body); d != "" {
		t.Errorf("IPv4 late (-want +got):\n%s", d)
	}
	p.Synced(v4)
	p.SetDegraded("configuration", "invalid")
	code, body := get(t, h, "/healthz")
	if d := cmp.Diff([]any{"configuration: invalid"}, body["degraded"]); d != "" || code != http.StatusOK {
		t.Errorf("degraded: status %d (-want +got):\n%s", code, d)
	}
	p.SetDegraded("configuration", "")
	clock.advance(time.Hour)
	if _, body = get(t, h, "/healthz"); body["lastUpdated"] != "2026-11-20T13:02:01Z" {
		t.Errorf("a good answer says lastUpdated %v, want the current time", body["lastUpdated"])
	}
	want := map[string]int{"healthz Service Unavailable": 1, "livez Service Unavailable": 1, "healthz OK": 2}
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("counted (-want +got):\n%s", d)
	}
}

// TestUnknownFamily: a family that the proxy does not run must not keep it
// from being ready.
func TestUnknownFamily(t *testing.T) {
	p := New(limit, time.Now, v4)
	p.Queued(v6)
	p.Taken(v6)
	p.Synced(v6)
	if p.snapshot().ready {
		t.Error("ready by the sync of a family that is not run")
	}
	p.Synced(v4)
	if st := p.snapshot(); !st.ready || !st.healthy {
		t.Error("not ready after the only family has synced")
	}
}
