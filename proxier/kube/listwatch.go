// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// item is what passes through a reflector in place of an API object: what has been made of it, and the little
// metadata that the reflector asks for. While it gathers the first list it keeps one per object.
type item struct {
	// Object satisfies the reflector's type; it is nil, and only the methods below may be called.
	metav1.Object
	name        Name
	version     string
	annotations map[string]string // of bookmarks only: one of them ends the first list
	object      Object            // nil if the proxy has no use for it
	problems    []error
}

func (i *item) GetNamespace() string              { return i.name.Namespace }
func (i *item) GetName() string                   { return i.name.Name }
func (i *item) GetResourceVersion() string        { return i.version }
func (i *item) GetAnnotations() map[string]string { return i.annotations }

// GetObjectKind says that there is nothing to say: kinds are known by the reflector.
func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the item itself, which nobody changes.
func (i *item) DeepCopyObject() runtime.Object { return i }

// itemList is a list of *item.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns the list itself, which nobody changes.
func (l *itemList) DeepCopyObject() runtime.Object { return l }

// listWatch lists and watches a resource and yields items. Its errors are as they come: the reflector adds the name
// of the resource, and looks at what they are.
type listWatch struct {
	client   rest.Interface
	codec    runtime.ParameterCodec
	protobuf bool
	resource *resource
}

// listerWatcher returns what a reflector takes.
func (lw *listWatch) listerWatcher() *cache.ListWatch {
	return &cache.ListWatch{ListWithContextFunc: lw.list, WatchFuncWithContext: lw.watch}
}

func (lw *listWatch) request(opts *metav1.ListOptions) *rest.Request {
	opts.LabelSelector = lw.resource.labels
	if lw.resource.fields != nil {
		opts.FieldSelector = lw.resource.fields.String()
	}
	return lw.client.Get().Resource(lw.resource.plural).VersionedParams(opts, lw.codec)
}

// list returns an *itemList.
func (lw *listWatch) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if lw.protobuf {
		list, err := lw.stream(ctx, opts)
		if !errors.Is(err, errNoProtobuf) && !apierrors.IsNotAcceptable(err) {
			return list, err
		}
	}
	return lw.whole(ctx, opts)
}

// stream reads a list object by object.
func (lw *listWatch) stream(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	body, err := lw.request(&opts).SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list, err := readList(body, lw.resource)
	if err != nil {
		return nil, err // not a nil *itemList
	}
	return list, nil
}

// whole reads a list at once.
func (lw *listWatch) whole(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	list := lw.resource.newList()
	if err := lw.request(&opts).Do(ctx).Into(list); err != nil {
		return nil, err
	}
	listMeta, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	out := &itemList{Items: make([]runtime.Object, 0, meta.LenList(list))}
	out.ResourceVersion, out.Continue = listMeta.GetResourceVersion(), listMeta.GetContinue()
	err = meta.EachListItem(list, func(o runtime.Object) error {
		i, err := newItem(o)
		if err == nil {
			i.object, i.problems = lw.resource.convert(o)
			out.Items = append(out.Items, i)
		}
		return err
	})
	return out, err
}

// newItem returns an item with the metadata of o.
func newItem(o runtime.Object) (*item, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	return &item{name: Name{m.GetNamespace(), m.GetName()}, version: m.GetResourceVersion()}, nil
}

// watch returns a watch whose events carry an *item, or for an error a *metav1.Status.
func (lw *listWatch) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	in, err := lw.request(&opts).Watch(ctx)
	if err != nil {
		return nil, err
	}
	w := &itemWatch{in: in, convert: lw.resource.convert, out: make(chan watch.Event), done: make(chan struct{})}
	go w.run()
	return w, nil
}

// itemWatch turns the API objects of a watch into items one at a time.
type itemWatch struct {
	in      watch.Interface
	convert func(runtime.Object) (Object, []error)
	out     chan watch.Event
	done    chan struct{}
	once    sync.Once
}

// ResultChan returns the events; it is closed when the watch ends.
func (w *itemWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop ends the watch. It may be called more than once, and nobody needs to drain the channel afterwards.
func (w *itemWatch) Stop() {
	w.once.Do(func() { close(w.done) })
	w.in.Stop()
}

func (w *itemWatch) run() {
	defer close(w.out)
	for e := range w.in.ResultChan() {
		select {
		case w.out <- w.event(e):
		case <-w.done:
			return
		}
	}
}

// event converts one event. What has no metadata is passed on as it is: the reflector reports its type.
func (w *itemWatch) event(e watch.Event) watch.Event {
	if e.Type == watch.Error {
		return e
	}
	i, err := newItem(e.Object)
	if err != nil {
		return e
	}
	switch e.Type {
	case watch.Bookmark:
		if m, err := meta.Accessor(e.Object); err == nil {
			i.annotations = m.GetAnnotations()
		}
	case watch.Added, watch.Modified:
		i.object, i.problems = w.convert(e.Object)
	}
	e.Object = i
	return e
}

// reflectorStore is where a reflector puts items: they go straight to the feed. A reflector calls it from one
// goroutine.
type reflectorStore struct{ feed *feed }

func (s *reflectorStore) take(o any) error {
	i, ok := o.(*item)
	if !ok {
		return fmt.Errorf("reflector stores %T: %w", o, errUnknown)
	}
	s.feed.set(i.name, i.object, i.problems)
	return nil
}

// Add takes a new object.
func (s *reflectorStore) Add(o any) error { return s.take(o) }

// Update takes a changed object.
func (s *reflectorStore) Update(o any) error { return s.take(o) }

// Delete takes an object that is gone, or whose labels or fields are no longer what we watch.
func (s *reflectorStore) Delete(o any) error {
	i, ok := o.(*item)
	if !ok {
		return fmt.Errorf("reflector deletes %T: %w", o, errUnknown)
	}
	s.feed.remove(i.name)
	return nil
}

// Replace takes a complete list. What is new comes before what is gone, so that what only moved (an endpoint from one
// slice to another) is never missing.
func (s *reflectorStore) Replace(list []any, _ string) error {
	listed := make(map[Name]bool, len(list))
	for _, o := range list {
		if err := s.take(o); err != nil {
			return err
		}
		listed[o.(*item).name] = true
	}
	s.feed.retain(func(n Name) bool { return listed[n] })
	s.feed.markSynced()
	return nil
}

// Resync does nothing: the feed forgets nothing.
func (s *reflectorStore) Resync() error { return nil }
