// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// fakeAPI speaks just enough of list and watch to play what is hard to provoke in a real server: outages at a chosen
// moment, versions that have expired, resources that do not exist. Real servers are e2e's.
type fakeAPI struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	stored   map[string]map[string]metav1.Object // resource, then name
	streams  map[chan event]string               // open watches and their resource
	fail     map[string]int                      // resource -> HTTP status
	noStream bool                                // like a server without KEP-3157
	lists    map[string]int                      // lists and streamed lists served, by resource
	queries  []string
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{
		version: 1, stored: map[string]map[string]metav1.Object{}, streams: map[chan event]string{},
		fail: map[string]int{}, lists: map[string]int{},
	}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.hangUp()
		f.Server.Close()
	})
	return f
}

// put stores an object, or removes it where typ is DELETED, and tells the watches.
func (f *fakeAPI) put(resource, typ string, o metav1.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o.SetResourceVersion(strconv.Itoa(f.version))
	if f.stored[resource] == nil {
		f.stored[resource] = map[string]metav1.Object{}
	}
	if f.stored[resource][o.GetName()] = o; typ == "DELETED" {
		delete(f.stored[resource], o.GetName())
	}
	for s, r := range f.streams {
		if r == resource {
			s <- event{typ, o}
		}
	}
}

// hangUp ends all watches.
func (f *fakeAPI) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		close(s)
		delete(f.streams, s)
	}
}

// set changes what goes wrong.
func (f *fakeAPI) set(change func(*fakeAPI)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeAPI) watching(resource string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.streams {
		if r == resource {
			n++
		}
	}
	return n
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	resource, q := path.Base(r.URL.Path), r.URL.Query()
	f.mu.Lock()
	f.queries = append(f.queries, fmt.Sprintf("%s labels=%s fields=%s", resource, q.Get("labelSelector"), q.Get("fieldSelector")))
	status := f.fail[resource]
	if q.Get("sendInitialEvents") == "true" && f.noStream {
		status = http.StatusUnprocessableEntity
	}
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status != 0:
		reason := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound,
			410: metav1.StatusReasonExpired, 422: metav1.StatusReasonInvalid}[status]
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: "Failure", Reason: reason, Code: int32(status)})
	case q.Get("watch") != "":
		f.serveWatch(w, r, resource)
	default:
		f.serveList(w, resource)
	}
}

func (f *fakeAPI) serveList(w http.ResponseWriter, resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists[resource]++
	items := []any{}
	for _, o := range f.stored[resource] {
		items = append(items, o)
	}
	kind, version := kindOf(resource)
	json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)}})
}

func kindOf(resource string) (kind, version string) {
	for _, r := range resources("") {
		if r.plural == resource {
			return r.kind.String(), r.group.String()
		}
	}
	panic(resource)
}

func (f *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request, resource string) {
	kind, version := kindOf(resource)
	var first []event
	f.mu.Lock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		f.lists[resource]++
		for _, o := range f.stored[resource] {
			first = append(first, event{"ADDED", o})
		}
		first = append(first, event{"BOOKMARK", map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(f.version), "annotations": map[string]string{"k8s.io/initial-events-end": "true"}}}})
	}
	stream := make(chan event, 1000)
	f.streams[stream] = resource
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.streams, stream)
	}()
	send := func(e event) {
		if o, ok := e.Object.(runtime.Object); ok {
			raw, _ := json.Marshal(o)
			var m map[string]any
			json.Unmarshal(raw, &m)
			m["kind"], m["apiVersion"] = kind, version
			e.Object = m
		}
		json.NewEncoder(w).Encode(e)
		w.(http.Flusher).Flush()
	}
	w.(http.Flusher).Flush()
	for _, e := range first {
		send(e)
	}
	for {
		select {
		case e, ok := <-stream:
			if !ok {
				return
			}
			send(e)
		case <-r.Context().Done():
			return
		}
	}
}
