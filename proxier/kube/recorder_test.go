// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// recorder is a Sink that keeps the state and a log of the calls, and reports a source
// that breaks the Sink's rules.
type recorder struct {
	t        *testing.T
	mu       sync.Mutex
	objects  map[Ref]Object
	problems map[Ref]string
	synced   map[Kind]bool
	log      []string
	logged   []string // at default verbosity
	api      *API
}

// logger returns a logger of which lines returns what it logged since the last call.
func (r *recorder) logger() klog.Logger {
	return funcr.New(func(_, args string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.logged = append(r.logged, args)
	}, funcr.Options{})
}

func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.logged
	r.logged = nil
	return lines
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, objects: map[Ref]Object{}, problems: map[Ref]string{}, synced: map[Kind]bool{}}
}

func (r *recorder) Set(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := o.Ref()
	if old := r.objects[ref]; old != nil && old.same(o) {
		r.t.Errorf("Set %s changes nothing", ref)
	}
	r.objects[ref] = o
	r.log = append(r.log, "set "+ref.String())
}

func (r *recorder) Delete(ref Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects[ref] == nil {
		r.t.Errorf("Delete %s, which was not set", ref)
	}
	delete(r.objects, ref)
	r.log = append(r.log, "delete "+ref.String())
}

func (r *recorder) Synced(k Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.synced[k] {
		r.t.Errorf("Synced %s twice", k)
	}
	r.synced[k] = true
	r.log = append(r.log, "synced "+k.String())
}

func (r *recorder) Problem(ref Ref, err error) {
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

func (r *recorder) get(ref Ref) Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[ref]
}

func (r *recorder) problem(ref Ref) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems[ref]
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.objects)
}

func (r *recorder) allSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.synced) == len(Kinds())
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

func ref(k Kind, name string) Ref {
	ns, n, ok := strings.Cut(name, "/")
	if !ok {
		return Ref{k, Name{"", name}}
	}
	return Ref{k, Name{ns, n}}
}
