// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// collect runs a recorder until n Events were created and returns them. What
// was queued beyond them must not come within the rest of the test.
func collect(t *testing.T, r *Recorder, n int, create chan *eventsv1.Event) []*eventsv1.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var out []*eventsv1.Event
	for range n {
		select {
		case e := <-create:
			out = append(out, e)
		case <-ctx.Done():
			t.Fatalf("%d Events, want %d", len(out), n)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	return out
}

func newTest(fail error) (*Recorder, chan *eventsv1.Event) {
	created := make(chan *eventsv1.Event, queueSize)
	r := newRecorder("node-1", func(_ context.Context, e *eventsv1.Event) error {
		created <- e
		return fail
	}, func() time.Time { return time.Unix(1700000000, 0).UTC() })
	r.limit.SetLimit(rate.Inf)
	return r, created
}

func ref(kind kube.Kind, namespace, name string) kube.Ref {
	return kube.Ref{Kind: kind, Name: kube.Name{Namespace: namespace, Name: name}}
}

func TestObjects(t *testing.T) {
	r, created := newTest(errors.New("server is away")) // does not stop the others
	r.Event(ref(kube.KindService, "ns1", "web"), "uid-1", "FailedToProgramService", "no")
	r.Event(ref(kube.KindService, "ns1", "web"), "uid-1", "FailedToProgramService", "no") // the same: once
	r.Event(ref(kube.KindFile, "", "/x.yaml"), "", "InvalidField", "no Event for a file")
	r.Event(ref(kube.KindEndpointSlice, "ns1", "web-abc"), "", "InvalidField", strings.Repeat("ä", 1000))
	r.Node(false, "Starting", "")
	got := collect(t, r, 3, created)
	if len(created) > 0 {
		t.Errorf("one more Event: %+v", <-created)
	}
	type summary struct{ Namespace, Name, Regarding, Type, Reason, Action, Instance string }
	var sums []summary
	for _, e := range got {
		sums = append(sums, summary{e.Namespace, e.Name, e.Regarding.APIVersion + " " + e.Regarding.Kind + " " + e.Regarding.Name,
			e.Type, e.Reason, e.Action, e.ReportingController + " " + e.ReportingInstance})
	}
	const who, stamp = "nftproxy nftproxy-node-1", ".17979cfe362a0000"
	want := []summary{
		{"ns1", "web" + stamp, "v1 Service web", "Warning", "FailedToProgramService", "Sync", who},
		{"ns1", "web-abc" + stamp, "discovery.k8s.io/v1 EndpointSlice web-abc", "Warning", "InvalidField", "Sync", who},
		{"default", "node-1" + stamp, "v1 Node node-1", "Normal", "Starting", "StartKubeProxy", who},
	}
	if d := cmp.Diff(want, sums); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if note := got[1].Note; note != strings.Repeat("ä", 512) {
		t.Errorf("note has %d bytes, want 1024 and whole characters", len(note))
	}
	if got[0].Regarding.UID != "uid-1" {
		t.Errorf("UID %q", got[0].Regarding.UID)
	}
}

// TestWriteNow: written at once, without Run, and its error is returned.
func TestWriteNow(t *testing.T) {
	away := errors.New("server is away")
	for _, fail := range []error{nil, away} {
		r, created := newTest(fail)
		if err := r.WriteNow(t.Context(), "FailedToStartMetricServer", "port taken"); !errors.Is(err, fail) {
			t.Errorf("error %v, want %v", err, fail)
		}
		if e := <-created; e.Type != "Warning" || e.Reason != "FailedToStartMetricServer" || e.Regarding.Kind != "Node" {
			t.Errorf("wrote %+v", e)
		}
	}
}

// TestRepeats: the same Event comes again after a while.
func TestRepeats(t *testing.T) {
	r, _ := newTest(nil)
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	written := map[Event]time.Time{}
	e := Event{Reason: "x"}
	for _, step := range []struct {
		after time.Duration
		due   bool
	}{{0, true}, {again - 1, false}, {1, true}, {0, false}} {
		now = now.Add(step.after)
		if got := r.due(written, e); got != step.due {
			t.Errorf("after %v more: due %v", step.after, got)
		}
	}
}

// TestFull: a full queue drops Events and does not block.
func TestFull(t *testing.T) {
	r, created := newTest(nil)
	for i := range queueSize + 10 {
		r.Node(true, "X", string(rune('a'+i%26))+strings.Repeat("x", i))
	}
	collect(t, r, queueSize, created)
	if len(created) > 0 {
		t.Error("more Events than the queue holds")
	}
}

// TestWire: what reaches an API server.
func TestWire(t *testing.T) {
	type request struct {
		path string
		body map[string]any
	}
	got := make(chan request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req request
		req.path = r.Method + " " + r.URL.Path
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &req.body)
		}
		if err != nil {
			t.Error(err)
		}
		got <- req
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	defer server.Close()
	r, err := New(func() (*rest.Config, error) {
		return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, nil
	}, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	r.Node(false, "Starting", "")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { _ = r.Run(ctx) }()
	select {
	case req := <-got:
		if req.path != "POST /apis/events.k8s.io/v1/namespaces/default/events" ||
			req.body["kind"] != "Event" || req.body["apiVersion"] != "events.k8s.io/v1" || req.body["reason"] != "Starting" {
			t.Errorf("got %s %v", req.path, req.body)
		}
	case <-ctx.Done():
		t.Fatal("nothing was written")
	}
}
