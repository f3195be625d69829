// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// recorder is a Sink that keeps the state and a log of the calls, and reports a source
// that breaks the Sink's rules.
type recorder struct {
	t        *testing.T
	mu       sync.Mutex
	objects  map[kube.Ref]kube.Object
	problems map[kube.Ref]string
	synced   map[kube.Kind]bool
	log      []string
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, objects: map[kube.Ref]kube.Object{}, problems: map[kube.Ref]string{}, synced: map[kube.Kind]bool{}}
}

func (r *recorder) Set(o kube.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := o.Ref()
	if old := r.objects[ref]; old != nil && reflect.DeepEqual(old, o) {
		r.t.Errorf("Set %s changes nothing", ref)
	}
	r.objects[ref] = o
	r.log = append(r.log, "set "+ref.String())
}

func (r *recorder) Delete(ref kube.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects[ref] == nil {
		r.t.Errorf("Delete %s, which was not set", ref)
	}
	delete(r.objects, ref)
	r.log = append(r.log, "delete "+ref.String())
}

func (r *recorder) Synced(k kube.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.synced[k] {
		r.t.Errorf("Synced %s twice", k)
	}
	r.synced[k] = true
	r.log = append(r.log, "synced "+k.String())
}

func (r *recorder) Problem(ref kube.Ref, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if r.problems[ref] == "" {
			r.t.Errorf("Problem %s is over, and there was none", ref)
		}
		delete(r.problems, ref)
		r.log = append(r.log, "fine "+ref.String())
		return
	}
	r.problems[ref] = err.Error()
	r.log = append(r.log, "problem "+ref.String())
}

// take returns the log since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

// state describes what is known, for messages.
func (r *recorder) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("objects %v\nproblems %v\nsynced %v\nlog %s", r.objects, r.problems, r.synced, strings.Join(r.log, "; "))
}

func (r *recorder) get(ref kube.Ref) kube.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[ref]
}

func (r *recorder) problem(ref kube.Ref) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems[ref]
}

func (r *recorder) allSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.synced) == len(kube.Kinds())
}

// until waits for a condition.
func (r *recorder) until(what string, ok func() bool) {
	r.t.Helper()
	// The longest wait is a reflector's second pause, 1.6 s doubled by jitter.
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain for: %s\n%s", what, r.state())
		}
	}
}

func ref(k kube.Kind, name string) kube.Ref {
	ns, n, ok := strings.Cut(name, "/")
	if !ok {
		return kube.Ref{Kind: k, Name: kube.Name{Name: name}}
	}
	return kube.Ref{Kind: k, Name: kube.Name{Namespace: ns, Name: n}}
}
