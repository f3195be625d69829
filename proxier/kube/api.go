// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// API is the source that watches an API server. It needs list and watch on services, endpointslices, nodes and
// servicecidrs, all of which kube-proxy's role has.
//
// It selects what kube-proxy selects: Services without the label service-proxy-name and with a ClusterIP other than
// None, EndpointSlices that are not headless, the Node of the given name, and all ServiceCIDRs. A client-go reflector per
// kind streams the first list (KEP-3157, by default since Kubernetes 1.34) and converts each object as it arrives; a
// server that does not stream sends the list whole. 10,000 Services with three endpoints each take 0.1 to 0.2 s on two cores,
// 107 MiB of allocations and 65 MiB at the peak, or 165 and 125 MiB as a whole list; 10 MiB are kept.
//
// While the server is unreachable nothing is removed. Requests are repeated after [retryBackoff]; after an error of the
// credentials they are read again.
type API struct {
	nodeName string
	load     func() (*rest.Config, error)
	contact  contact

	mu      sync.Mutex
	clients *clients
	loaded  time.Time // when clients was made, or last tried
}

// NewAPI returns a source for the Node of that name and the server that load returns. load is called again after the
// server has refused the credentials, and by Reload. The configuration is not changed; without a content type objects
// are transferred as protobuf.
func NewAPI(load func() (*rest.Config, error), nodeName string) (*API, error) {
	if nodeName == "" {
		return nil, errors.New("API source: no node name")
	}
	a := &API{nodeName: nodeName, load: load}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// Reload reads the configuration of the client again and uses it at once: lists and watches start anew, without removal
// of anything that is still there. After an error the former configuration remains in use. It is safe for concurrent use.
func (a *API) Reload() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loaded = time.Now()
	c, err := newClients(a.load)
	if err != nil {
		return fmt.Errorf("API source: %w", err)
	}
	if a.clients != nil {
		close(a.clients.replaced)
		a.clients.http.CloseIdleConnections()
	}
	a.clients = c
	return nil
}

// current returns the clients in use.
func (a *API) current() *clients {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clients
}

// renew is Reload after a request failed, unless the error has another cause than the credentials or the last attempt
// was less than renewPause ago.
func (a *API) renew(log klog.Logger, used *clients, err error) {
	if !credentialError(err) {
		return
	}
	a.mu.Lock()
	early := a.clients != used || time.Since(a.loaded) < renewPause
	a.mu.Unlock()
	if early {
		return
	}
	if err := a.Reload(); err != nil {
		log.Error(err, "Cannot read the client configuration again")
	}
}

// renewPause is the least time between two readings of refused credentials. The kinds fail at about the same time, and
// each reading costs a new connection.
const renewPause = 5 * time.Second

// credentialError reports whether err may be cured by credentials or certificates that were replaced on disk.
func credentialError(err error) bool {
	var verification *tls.CertificateVerificationError
	var alert tls.AlertError
	return apierrors.IsUnauthorized(err) || errors.As(err, &verification) || errors.As(err, &alert)
}

// clients are REST clients for the groups of the resources. They share one connection.
type clients struct {
	server   string
	http     *http.Client
	byGroup  map[schema.GroupVersion]rest.Interface
	replaced chan struct{} // closed when other clients are used
}

// Scheme returns a scheme of the API types that FromService and its siblings convert.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, discovery.AddToScheme, networking.AddToScheme} {
		utilruntime.Must(add(scheme)) // which fails for types of one name only
	}
	return scheme
}

func newClients(load func() (*rest.Config, error)) (*clients, error) {
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	if cfg.ContentType == "" {
		cfg.ContentType = runtime.ContentTypeProtobuf
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	if cfg.Dial == nil && cfg.Transport == nil {
		// client-go shares transports, and the credentials in them, among equal configurations without a dialer. These are its
		// own default values.
		cfg.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(Scheme()).WithoutConversion()
	c := &clients{server: cfg.Host, byGroup: map[schema.GroupVersion]rest.Interface{}, replaced: make(chan struct{})}
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	for _, r := range resources("") {
		group := rest.CopyConfig(cfg)
		group.GroupVersion, group.APIPath = &r.group, "/apis"
		if r.group.Group == "" {
			group.APIPath = "/api"
		}
		if c.byGroup[r.group], err = rest.RESTClientForConfigAndClient(group, c.http); err != nil {
			return nil, fmt.Errorf("client for %s: %w", r.group, err)
		}
	}
	return c, nil
}

// resource is a collection of the API.
type resource struct {
	kind     Kind
	group    schema.GroupVersion
	plural   string
	labels   string
	fields   string
	object   runtime.Object
	optional bool // that the server does not have it, or the role does not allow it, is no error
}

func resources(nodeName string) []resource {
	return []resource{{
		kind: KindService, group: v1.SchemeGroupVersion, plural: "services", object: &v1.Service{},
		labels: "!" + serviceProxyName, fields: "spec.clusterIP!=" + v1.ClusterIPNone,
	}, {
		kind: KindEndpointSlice, group: discovery.SchemeGroupVersion, plural: "endpointslices", object: &discovery.EndpointSlice{},
		labels: "!" + v1.IsHeadlessService,
	}, {
		kind: KindNode, group: v1.SchemeGroupVersion, plural: "nodes", object: &v1.Node{},
		fields: metav1.ObjectNameField + "=" + nodeName,
	}, {
		kind: KindServiceCIDR, group: networking.SchemeGroupVersion, plural: "servicecidrs", object: &networking.ServiceCIDR{},
		optional: true,
	}}
}

// Run delivers everything to sink until ctx ends. It returns after the last call to sink. It must be called once.
func (a *API) Run(ctx context.Context, sink Sink) {
	log := klog.FromContext(ctx)
	var wg sync.WaitGroup
	for _, r := range resources(a.nodeName) {
		f := &follower{api: a, resource: r, log: log}
		f.store = store{NewCache(r.kind, sink), func() { a.contact.answered(r.kind) }}
		wg.Go(func() { f.run(ctx) })
	}
	wg.Wait()
}

// Status reports how each kind is connected.
func (a *API) Status() []Status { return a.contact.status() }

// follower lists and watches one resource.
type follower struct {
	api *API
	resource
	store   store
	log     klog.Logger
	pace    pacer
	streams int // streamed lists of this round
	watches int // watches of this round
}

// run follows the resource until ctx ends, in rounds of a list and the watches after it.
func (f *follower) run(ctx context.Context) {
	defer f.api.contact.setConnected(f.kind, false)
	for f.pace.wait(ctx) == nil {
		f.streams, f.watches = 0, 0
		c := f.api.current()
		err := f.round(ctx, c)
		switch {
		case ctx.Err() != nil:
		case f.optional && unavailable(err):
			f.log.V(2).Info("The API server does not serve an optional resource", "resource", f.plural, "err", err)
			f.api.contact.setConnected(f.kind, true)
			f.store.Synced()
			f.pace.long()
		case err != nil:
			f.api.contact.failed(f.log, c.server, f.kind, err)
		}
	}
}

// round runs a reflector until it fails or the clients are replaced.
func (f *follower) round(ctx context.Context, c *clients) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.replaced:
			cancel()
		case <-ctx.Done():
		}
	}()
	requests := cache.NewFilteredListWatchFromClient(c.byGroup[f.group], f.plural, "", func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = f.labels, f.fields
	})
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := requests.ListWithContext(ctx, opts)
			f.note(c, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return f.watch(ctx, c, requests, opts)
		},
	}
	// client-go logs each failed request as an error; contact logs what matters of them.
	log := logr.Discard()
	if f.log.V(2).Enabled() {
		log = f.log
	}
	// The reflector's own pauses have no end when ctx ends, and it has none where a watch ends early. The pacer has both.
	none := wait.Backoff{Duration: time.Nanosecond, Steps: 1}
	reflector := cache.NewReflectorWithOptions(listWatch, f.object, f.store,
		cache.ReflectorOptions{Name: f.plural, TypeDescription: f.plural, Backoff: &none})
	return reflector.ListAndWatchWithContext(klog.NewContext(ctx, log))
}

// listTimeout is the API server's own limit for a request (--request-timeout).
const listTimeout = time.Minute

// note records the outcome of a request.
func (f *follower) note(c *clients, err error) {
	switch {
	case err == nil:
		f.api.contact.answered(f.kind)
	case f.optional && unavailable(err):
	default:
		f.api.contact.failed(f.log, c.server, f.kind, err)
		f.api.renew(f.log, c, err)
	}
}

// watch starts a watch. The first ones of a round start at once: a streamed list, a second one if the version of the
// first has expired, and a watch. The reflector repeats them without a pause if they end early.
func (f *follower) watch(ctx context.Context, c *clients, requests *cache.ListWatch, opts metav1.ListOptions) (watch.Interface, error) {
	count, free := &f.watches, 1
	if opts.SendInitialEvents != nil {
		count, free = &f.streams, 2
	}
	if *count++; *count > free {
		if err := f.pace.wait(ctx); err != nil {
			return nil, err
		}
	}
	opened := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	w, err := requests.WatchWithContext(ctx, opts)
	if err != nil {
		cancel() // client-go does not close the body of an answer that it cannot decode
		f.note(c, err)
		return nil, err
	}
	f.api.contact.setConnected(f.kind, true)
	stop := func() {
		f.api.contact.setConnected(f.kind, false)
		if ctx.Err() == nil && time.Since(opened) < steady {
			f.api.contact.failed(f.log, c.server, f.kind, errShort)
		}
		cancel()
	}
	return &stoppable{w, stop}, nil
}

// errShort reports a watch that the server, or a proxy before it, ended at once.
var errShort = errors.New("watch ended at once")

// stoppable is a watch that calls stop when it is stopped, which a reflector does exactly once.
type stoppable struct {
	watch.Interface
	stop func()
}

func (w *stoppable) Stop() {
	w.stop()
	w.Interface.Stop()
}

// unavailable reports whether the server does not have a resource, or our role does not allow it.
func unavailable(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}

// store receives the objects of a reflector and converts them. A reflector calls it from one goroutine.
type store struct {
	*Cache
	answered func()
}

// item is a converted API object.
type item struct {
	name     Name
	object   Object // nil if the proxy does not use it
	problems []error
}

// Transformer converts the objects of a streamed list as they arrive, so that the reflector keeps no API objects.
func (s store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return convertItem(o) }
}

// convertItem converts an API object; an item is returned as it is.
func convertItem(o any) (*item, error) {
	if i, ok := o.(*item); ok {
		return i, nil
	}
	if object, isObject := o.(runtime.Object); isObject {
		if ref, converted, problems, ok := Convert(object); ok {
			return &item{ref.Name, converted, problems}, nil
		}
	}
	return nil, fmt.Errorf("object of type %T: %w", o, errUnknown)
}

// Add takes a new object.
func (s store) Add(o any) error {
	s.answered()
	i, err := convertItem(o)
	if err == nil {
		s.Set(i.name, i.object, i.problems)
	}
	return err
}

// Update takes a changed object.
func (s store) Update(o any) error { return s.Add(o) }

// Delete takes an object that is gone or no longer selected.
func (s store) Delete(o any) error {
	s.answered()
	i, err := convertItem(o)
	if err == nil {
		s.Set(i.name, nil, nil)
	}
	return err
}

// Replace takes a complete list. Additions come before removals, so that an endpoint that only moved to another slice is
// never missing.
func (s store) Replace(list []any, _ string) error {
	listed := make(map[Name]bool, len(list))
	for _, o := range list {
		i, err := convertItem(o)
		if err != nil {
			return err
		}
		s.Set(i.name, i.object, i.problems)
		listed[i.name] = true
	}
	s.Retain(listed)
	s.Synced()
	return nil
}

// Bookmark notes that the server is there, though nothing has changed.
func (s store) Bookmark(string) error {
	s.answered()
	return nil
}

// Resync does nothing: the cache forgets nothing.
func (s store) Resync() error { return nil }
