// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// fakeAPI speaks just enough of list and watch to play what is hard to provoke in a real server: outages at a chosen
// moment, versions that have expired, resources that do not exist. Real servers are e2e's.
type fakeAPI struct {
	open     atomic.Int32 // bodies of answers that are not closed
	mu       sync.Mutex
	version  int
	stored   map[string]map[string]metav1.Object              // resource, then name
	streams  map[chan event]string                            // open watches and their resource
	fail     map[string]int                                   // resource -> HTTP status
	broken   func(http.ResponseWriter, *http.Request, func()) // if not nil, answers in place of what would be served
	token    string                                           // if not empty, the only one that is accepted
	noStream bool                                             // like a server without KEP-3157
	lists    map[string]int                                   // lists and streamed lists served, by resource
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
	t.Cleanup(f.hangUp)
	return f
}

// client returns how to reach the server: without sockets, so that a test can run on a clock of its own (testing/synctest).
func (f *fakeAPI) client() (*rest.Config, error) {
	return &rest.Config{Host: "https://fake", Transport: f, BearerToken: "token"}, nil
}

// RoundTrip implements http.RoundTripper. Like a connection it is in use until the answer's body is closed or the request's
// context ends.
func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	w := &answer{PipeWriter: writer, header: http.Header{}, ready: make(chan struct{})}
	go func() {
		defer cancel()
		f.serve(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		writer.CloseWithError(w.end)
	}()
	body := &answerBody{PipeReader: reader, close: sync.OnceFunc(func() {
		f.open.Add(-1)
		cancel()
		reader.Close()
	})}
	f.open.Add(1)
	context.AfterFunc(r.Context(), body.close)
	select {
	case <-w.ready:
		if w.refused != nil {
			body.close()
			return nil, w.refused
		}
		return &http.Response{StatusCode: w.status, Header: w.header, Body: body, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// answer is an http.ResponseWriter.
type answer struct {
	*io.PipeWriter
	header http.Header
	status int
	ready  chan struct{}
	end    error // how the body ends; nil is io.EOF
	// refused is an error in place of an answer.
	refused error
}

func (w *answer) Header() http.Header { return w.header }
func (w *answer) Flush()              { w.WriteHeader(http.StatusOK) }
func (w *answer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		close(w.ready)
	}
}

func (w *answer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.PipeWriter.Write(b)
}

type answerBody struct {
	*io.PipeReader
	close func()
}

func (b *answerBody) Close() error {
	b.close()
	return nil
}

// put stores an object, or removes it where typ is DELETED, and sends it to the watches.
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
	f.mu.Lock()
	broken := f.broken
	if f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
		status = http.StatusUnauthorized
	}
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if broken != nil {
		broken(w, r, func() { f.answer(w, r, resource, status) })
		return
	}
	f.answer(w, r, resource, status)
}

func (f *fakeAPI) answer(w http.ResponseWriter, r *http.Request, resource string, status int) {
	q := r.URL.Query()
	switch {
	case status != 0:
		reason := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound,
			401: metav1.StatusReasonUnauthorized, 410: metav1.StatusReasonExpired, 422: metav1.StatusReasonInvalid}[status]
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

// requests counts the requests for a resource.
func (f *fakeAPI) requests(resource string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queries {
		if strings.HasPrefix(q, resource+" ") {
			n++
		}
	}
	return n
}
