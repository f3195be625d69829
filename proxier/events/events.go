// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events (events.k8s.io/v1) about objects that the proxy cannot serve, and about itself.
//
// In: an object, a reason and a note. Out: requests to the API server, written in the background: at most 5 per second, the
// same Event once in 10 minutes, none while the server is away. The package never reads Events and never blocks its callers,
// but for WriteNow. Every Event is logged by its author anyway. It needs the verb create on events, which kube-proxy's role
// has.
//
// client-go's recorders were measured and not taken. tools/events, which kube-proxy uses, adds 11 MB to a program of 23 MB
// (the typed clientset), drops the note of a second Event of one reason about one object, and starts a goroutine per Event
// that lives for two minutes while the server is away, without bounds. tools/record writes Events of the core API without
// the action and time by which users find kube-proxy's Events.
package events

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"
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

// Controller is the reporting controller of the Events.
const Controller = "nftproxy"

const (
	// queueSize bounds the memory of Events that wait; a start with more broken objects loses Events, not log lines.
	queueSize = 256
	// perSecond and burst bound the writes: what kube-proxy may request of the API server (clientConnection.qps).
	perSecond, burst = 5, 10
	// again is how long the same Event is not repeated.
	again = 10 * time.Minute
	// maxNote and maxInstance are the API's limits, in bytes. maxName leaves room for the suffix in a name of 253 bytes.
	maxNote, maxInstance, maxName = 1024, 128, 220
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
)

// Event is one thing that happened to an object.
type Event struct {
	Object v1.ObjectReference
	// Warning is set for trouble, unset for news.
	Warning bool
	// Reason is one word for machines, Action what the proxy was doing.
	Reason, Action string
	// Note is for people; it is cut at 1,024 bytes.
	Note string
}

// Recorder writes Events. It is safe for concurrent use.
type Recorder struct {
	node   string
	queue  chan Event
	create func(context.Context, *eventsv1.Event) error
	now    func() time.Time
	limit  *rate.Limiter
}

// New returns a recorder for the API server of the configuration that load returns. load is called for each write, so that
// replaced credentials are used. node is the name of the own Node. Nothing is written before Run.
func New(load func() (*rest.Config, error), node string) (*Recorder, error) {
	scheme := runtime.NewScheme()
	if err := eventsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("events: types: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	return newRecorder(node, func(ctx context.Context, e *eventsv1.Event) error {
		cfg, err := load()
		if err != nil {
			return err
		}
		cfg = rest.CopyConfig(cfg)
		cfg.GroupVersion, cfg.APIPath, cfg.NegotiatedSerializer = &eventsv1.SchemeGroupVersion, "/apis", codecs
		client, err := rest.RESTClientFor(cfg) // equal configurations share their connections
		if err != nil {
			return err
		}
		return client.Post().Namespace(e.Namespace).Resource("events").Timeout(writeTimeout).Body(e).Do(ctx).Error()
	}, time.Now), nil
}

func newRecorder(node string, create func(context.Context, *eventsv1.Event) error, now func() time.Time) *Recorder {
	return &Recorder{node: node, queue: make(chan Event, queueSize), create: create, now: now, limit: rate.NewLimiter(perSecond, burst)}
}

// Event queues a warning about an object that a source delivered; uid may be empty. Files have no Events.
func (r *Recorder) Event(object kube.Ref, uid, reason, message string) {
	if version, ok := apiVersions[object.Kind]; ok {
		r.Emit(Event{Warning: true, Reason: reason, Action: "Sync", Note: message, Object: v1.ObjectReference{APIVersion: version,
			Kind: object.Kind.String(), Namespace: object.Name.Namespace, Name: object.Name.Name, UID: types.UID(uid)}})
	}
}

// apiVersions are those of the kinds that have Events.
var apiVersions = map[kube.Kind]string{kube.KindService: "v1", kube.KindNode: "v1",
	kube.KindEndpointSlice: "discovery.k8s.io/v1", kube.KindServiceCIDR: "networking.k8s.io/v1"}

// Node queues an Event about the own Node.
func (r *Recorder) Node(warning bool, reason, note string) {
	r.Emit(r.aboutNode(warning, reason, note))
}

// WriteNow writes a warning about the own Node at once, for a process that ends before the queue is written. It blocks until
// ctx is done at the latest.
func (r *Recorder) WriteNow(ctx context.Context, reason, note string) error {
	if err := r.create(ctx, r.object(r.aboutNode(true, reason, note))); err != nil {
		return fmt.Errorf("event %s: %w", reason, err)
	}
	return nil
}

func (r *Recorder) aboutNode(warning bool, reason, note string) Event {
	ref := v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node}
	return Event{Object: ref, Warning: warning, Reason: reason, Action: "StartKubeProxy", Note: note}
}

// Emit queues an Event, or drops it if the queue is full.
func (r *Recorder) Emit(e Event) {
	select {
	case r.queue <- e:
	default:
		klog.V(2).InfoS("Event dropped, the queue is full", "reason", e.Reason, "object", klog.KRef(e.Object.Namespace, e.Object.Name))
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
			if r.limit.Wait(ctx) != nil {
				return nil //nolint:nilerr // ctx is done
			}
			if err := r.create(ctx, r.object(e)); err != nil && ctx.Err() == nil {
				klog.V(2).ErrorS(err, "Event not written", "reason", e.Reason, "object", klog.KRef(e.Object.Namespace, e.Object.Name))
			}
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
		ReportingInstance:   cut(Controller+"-"+r.node, maxInstance),
		Action:              e.Action,
		Reason:              e.Reason,
		Regarding:           e.Object,
		Note:                cut(e.Note, maxNote),
		Type:                kind,
	}
}

// cut shortens a text to at most n bytes, between characters.
func cut(s string, n int) string {
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}
