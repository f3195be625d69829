// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events (events.k8s.io/v1) without the typed
// clientset, which would double the size of the program.
//
// Events are for people: they are written in the background, at most so many
// per second, the same one once in a while, and dropped when the API server is
// away. Every one is logged by its author anyway. It needs the verb create on
// events, which kube-proxy's role has.
package events

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Controller is how the Events name their author.
const Controller = "nftproxy"

const (
	// queueSize bounds the memory that waiting Events take; a start with more
	// broken objects than this loses Events, not log lines.
	queueSize = 256
	// gap is the least time between two writes: 5 per second, which is what
	// kube-proxy may ask of the API server (clientConnection.qps).
	gap = 200 * time.Millisecond
	// again is how long the same Event is not repeated.
	again = 10 * time.Minute
	// maxNote is the API's limit of an Event's note, in bytes.
	maxNote = 1024
	// maxName leaves room for the suffix in a name of at most 253 bytes.
	maxName = 220
)

// Event is one thing that happened to an object.
type Event struct {
	Object v1.ObjectReference
	// Warning tells trouble from news.
	Warning bool
	// Reason is one word for machines, Action what the proxy was doing.
	Reason, Action string
	// Note is for people; it is cut at 1,024 bytes.
	Note string
}

// Recorder writes Events. Its methods may be called from any goroutine and
// never block.
type Recorder struct {
	node   string
	queue  chan Event
	create func(context.Context, *eventsv1.Event) error
	now    func() time.Time
	gap    time.Duration
}

// New returns a recorder for the API server of cfg, which is not changed. node
// is the name of our Node. Nothing is written before Run runs.
func New(cfg *rest.Config, node string) (*Recorder, error) {
	scheme := runtime.NewScheme()
	if err := eventsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("events: types: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &eventsv1.SchemeGroupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("events: client: %w", err)
	}
	return newRecorder(node, func(ctx context.Context, e *eventsv1.Event) error {
		return client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	}, time.Now), nil
}

func newRecorder(node string, create func(context.Context, *eventsv1.Event) error, now func() time.Time) *Recorder {
	return &Recorder{node: node, queue: make(chan Event, queueSize), create: create, now: now, gap: gap}
}

// Event is a warning about an object that a source delivered; uid may be empty.
// It is what package proxier takes for its Recorder. Files have no Events.
func (r *Recorder) Event(object kube.Ref, uid, reason, message string) {
	ref, ok := reference(object, uid)
	if ok {
		r.Emit(Event{Object: ref, Warning: true, Reason: reason, Action: "Sync", Note: message})
	}
}

// Node is an Event about our own Node.
func (r *Recorder) Node(warning bool, reason, note string) {
	r.Emit(r.aboutNode(warning, reason, note))
}

// LastWord writes a warning about our own Node at once, for a process that is
// about to end and has no time for the queue. It blocks until ctx is done at
// the latest.
func (r *Recorder) LastWord(ctx context.Context, reason, note string) error {
	if err := r.create(ctx, r.object(r.aboutNode(true, reason, note))); err != nil {
		return fmt.Errorf("event %s: %w", reason, err)
	}
	return nil
}

func (r *Recorder) aboutNode(warning bool, reason, note string) Event {
	ref := v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node}
	return Event{Object: ref, Warning: warning, Reason: reason, Action: "StartKubeProxy", Note: note}
}

// Emit queues an Event, or drops it when the queue is full.
func (r *Recorder) Emit(e Event) {
	select {
	case r.queue <- e:
	default:
		klog.V(2).InfoS("Event dropped, too many wait", "reason", e.Reason, "object", klog.KRef(e.Object.Namespace, e.Object.Name))
	}
}

// Run writes Events until ctx is done.
func (r *Recorder) Run(ctx context.Context) error {
	written := map[Event]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-r.queue:
			if !r.due(written, e) {
				continue
			}
			if err := r.create(ctx, r.object(e)); err != nil && ctx.Err() == nil {
				klog.V(2).ErrorS(err, "Event not written", "reason", e.Reason, "object", klog.KRef(e.Object.Namespace, e.Object.Name))
			}
			pause(ctx, r.gap)
		}
	}
}

// due reports whether an Event was not written lately, and remembers it.
func (r *Recorder) due(written map[Event]time.Time, e Event) bool {
	now := r.now()
	for other, at := range written {
		if now.Sub(at) >= again {
			delete(written, other)
		}
	}
	if _, lately := written[e]; lately {
		return false
	}
	written[e] = now
	return true
}

// object makes the API object.
func (r *Recorder) object(e Event) *eventsv1.Event {
	now := r.now()
	namespace, kind := e.Object.Namespace, v1.EventTypeNormal
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if e.Warning {
		kind = v1.EventTypeWarning
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", cut(e.Object.Name, maxName), now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: Controller,
		ReportingInstance:   cut(Controller+"-"+r.node, 128), // the API's limit
		Action:              e.Action,
		Reason:              e.Reason,
		Regarding:           e.Object,
		Note:                cut(e.Note, maxNote),
		Type:                kind,
	}
}

// reference makes an object reference of what a source calls an object.
func reference(object kube.Ref, uid string) (v1.ObjectReference, bool) {
	ref := v1.ObjectReference{Namespace: object.Name.Namespace, Name: object.Name.Name, UID: types.UID(uid)}
	switch object.Kind {
	case kube.KindService:
		ref.APIVersion, ref.Kind = "v1", "Service"
	case kube.KindEndpointSlice:
		ref.APIVersion, ref.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	case kube.KindNode:
		ref.APIVersion, ref.Kind = "v1", "Node"
	case kube.KindServiceCIDR:
		ref.APIVersion, ref.Kind = "networking.k8s.io/v1", "ServiceCIDR"
	default:
		return ref, false
	}
	return ref, true
}

// cut shortens a text to at most n bytes, not within a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// pause waits, but not beyond ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
