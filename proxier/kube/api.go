// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// API is the source that watches an API server. It needs list and watch on services, endpointslices, nodes and
// servicecidrs, all of which kube-proxy's role has.
//
// It asks for what kube-proxy asks for: Services without the label service-proxy-name and with a ClusterIP other
// than None, EndpointSlices that are not headless, the Node of the given name, and all ServiceCIDRs. The server
// streams the first list object by object (KEP-3157, Kubernetes 1.34), or sends it whole, and each object is converted
// before the next one is read: at no time are API objects kept.
//
// While the server is away nothing is removed; a reflector per kind retries, at first after 0.8 s and later every 30
// to 60 s.
type API struct {
	nodeName string
	clients  map[schema.GroupVersion]rest.Interface
	codec    runtime.ParameterCodec
	protobuf bool // is what we ask for
}

// NewAPI returns a source for the server of cfg and the Node of that name. cfg is not changed; where it says
// nothing about content types, objects are transferred as protobuf.
func NewAPI(cfg *rest.Config, nodeName string) (*API, error) {
	if nodeName == "" {
		return nil, errors.New("API source: no node name")
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, discovery.AddToScheme, networking.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("API source: types: %w", err)
		}
	}
	a := &API{
		nodeName: nodeName,
		clients:  map[schema.GroupVersion]rest.Interface{},
		codec:    runtime.NewParameterCodec(scheme),
	}
	cfg = rest.CopyConfig(cfg)
	if cfg.ContentType == "" {
		cfg.ContentType = runtime.ContentTypeProtobuf
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	a.protobuf = cfg.ContentType == runtime.ContentTypeProtobuf
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	httpClient, err := rest.HTTPClientFor(cfg) // one for all groups: one connection
	if err != nil {
		return nil, fmt.Errorf("API source: client: %w", err)
	}
	for _, r := range resources(nodeName) {
		group := rest.CopyConfig(cfg)
		group.GroupVersion, group.APIPath = &r.group, "/apis"
		if r.group.Group == "" {
			group.APIPath = "/api"
		}
		if a.clients[r.group], err = rest.RESTClientForConfigAndClient(group, httpClient); err != nil {
			return nil, fmt.Errorf("API source: client for %s: %w", r.group, err)
		}
	}
	return a, nil
}

// resource is a collection of the API and how its objects are converted.
type resource struct {
	kind      Kind
	group     schema.GroupVersion
	plural    string
	labels    string
	fields    fields.Selector
	optional  bool // a server, or a role, that does not have it is not an error
	newList   func() runtime.Object
	newObject func() message
	convert   func(runtime.Object) (Object, []error)
}

func resources(nodeName string) []resource {
	return []resource{{
		kind: KindService, group: v1.SchemeGroupVersion, plural: "services",
		labels:  "!" + serviceProxyName,
		fields:  fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone),
		newList: func() runtime.Object { return &v1.ServiceList{} }, newObject: func() message { return &v1.Service{} },
		convert: converter(FromService),
	}, {
		kind: KindEndpointSlice, group: discovery.SchemeGroupVersion, plural: "endpointslices",
		labels:  "!" + v1.IsHeadlessService,
		newList: func() runtime.Object { return &discovery.EndpointSliceList{} }, newObject: func() message { return &discovery.EndpointSlice{} },
		convert: converter(FromEndpointSlice),
	}, {
		kind: KindNode, group: v1.SchemeGroupVersion, plural: "nodes",
		fields:  fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName),
		newList: func() runtime.Object { return &v1.NodeList{} }, newObject: func() message { return &v1.Node{} },
		convert: converter(FromNode),
	}, {
		kind: KindServiceCIDR, group: networking.SchemeGroupVersion, plural: "servicecidrs", optional: true,
		newList: func() runtime.Object { return &networking.ServiceCIDRList{} }, newObject: func() message { return &networking.ServiceCIDR{} },
		convert: converter(FromServiceCIDR),
	}}
}

// converter adapts one of the From functions, whose nil pointer must become a nil interface.
func converter[T any, P interface {
	*T
	Object
}, O runtime.Object](from func(O) (P, []error)) func(runtime.Object) (Object, []error) {
	return func(o runtime.Object) (Object, []error) {
		typed, ok := o.(O)
		if !ok {
			return nil, []error{fmt.Errorf("object of type %T: %w", o, errUnknown)}
		}
		p, errs := from(typed)
		if p == nil {
			return nil, errs
		}
		return p, errs
	}
}

// Run delivers everything to sink until ctx ends. It returns after the last call to sink. It must be called once.
func (a *API) Run(ctx context.Context, sink Sink) {
	var wg sync.WaitGroup
	for _, r := range resources(a.nodeName) {
		wg.Go(func() { a.follow(ctx, &r, newFeed(r.kind, sink)) })
	}
	wg.Wait()
}

// follow lists and watches one resource until ctx ends.
func (a *API) follow(ctx context.Context, r *resource, f *feed) {
	lw := &listWatch{client: a.clients[r.group], codec: a.codec, protobuf: a.protobuf, resource: r}
	pause := retryPause()
	reflector := cache.NewReflectorWithOptions(lw.listerWatcher(), &item{}, &reflectorStore{f},
		cache.ReflectorOptions{Name: r.plural, TypeDescription: r.plural, Backoff: &pause, Clock: stoppableClock{ctx: ctx}})
	// Until never fails: the function does not, and that ctx ends is what is waited for.
	_ = pause.DelayWithReset(clock.RealClock{}, retryReset).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := reflector.ListAndWatchWithContext(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case r.optional && unavailable(err):
			klog.FromContext(ctx).V(2).Info("The API server does not serve a resource to us, going on without it",
				"resource", r.plural, "err", err)
			f.markSynced()
		default:
			klog.FromContext(ctx).Error(err, "Cannot follow a resource of the API server, keeping what is known of it",
				"resource", r.plural)
		}
		return false, nil
	})
}

// retryReset is how long a connection must have been in order for the next failure to count as the first one.
const retryReset = 2 * time.Minute

// retryPause is how long to wait before a failed request is repeated: client-go's own defaults, which API servers of
// large clusters are sized for. Six steps of doubling lead from 0.8 s beyond 30 s; the jitter doubles that at most.
func retryPause() wait.Backoff {
	return wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 6, Factor: 2, Jitter: 1}
}

// stoppableClock is a clock on which all waiting is over once ctx is done. A reflector that waits for its server
// looks at nothing but the clock.
type stoppableClock struct {
	clock.RealClock
	ctx context.Context
}

// After returns a channel that is closed after d, or when the context is done.
func (c stoppableClock) After(d time.Duration) <-chan time.Time {
	over := make(chan time.Time)
	ctx, cancel := context.WithTimeout(c.ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		close(over)
	})
	return over
}

// unavailable tells that the server does not have a resource, or that our role does not allow it.
func unavailable(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}
