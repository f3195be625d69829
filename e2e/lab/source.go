// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Source is where a proxy gets its objects from: the API server or a directory of manifests. The same scenario runs on both.
type Source interface {
	// Apply creates the objects, or replaces them. Their status counts: addresses of Nodes and load balancers.
	Apply(ctx context.Context, objects ...Object) error
	// Delete removes them; absent is success.
	Delete(ctx context.Context, objects ...Object) error
}

// Objects makes one list of Services, slices and whatever else, for Apply and Delete.
func Objects(lists ...any) []Object {
	var all []Object
	for _, l := range lists {
		switch l := l.(type) {
		case Object:
			all = append(all, l)
		case []*discoveryv1.EndpointSlice:
			for _, o := range l {
				all = append(all, o)
			}
		case []*corev1.Service:
			for _, o := range l {
				all = append(all, o)
			}
		case []Object:
			all = append(all, l...)
		default:
			panic(fmt.Sprintf("lab.Objects: %T is no object and no known list", l))
		}
	}
	return all
}

// ManifestDir is a directory of manifests, one file per object.
type ManifestDir string

// Apply writes the objects. A file appears and changes in one step, by rename.
func (d ManifestDir) Apply(_ context.Context, objects ...Object) error {
	for _, o := range objects {
		name, err := d.file(o)
		if err != nil {
			return err
		}
		if err := d.Write(name, o); err != nil {
			return err
		}
	}
	return nil
}

// Delete removes the objects' files.
func (d ManifestDir) Delete(_ context.Context, objects ...Object) error {
	for _, o := range objects {
		name, err := d.file(o)
		if err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(string(d), name)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("manifest: %w", err)
		}
	}
	return nil
}

// Write writes a file of many objects, separated by "---".
func (d ManifestDir) Write(name string, objects ...Object) error {
	var b bytes.Buffer
	for _, o := range objects {
		text, err := manifest(o)
		if err != nil {
			return err
		}
		b.WriteString("---\n")
		b.Write(text) // JSON is YAML
	}
	// Not in the directory itself, where a reader might take the half of it for a manifest.
	tmp, err := os.CreateTemp(filepath.Dir(string(d)), ".manifest-")
	if err != nil {
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b.Bytes())
	if err := errors.Join(err, tmp.Close(), os.Chmod(tmp.Name(), 0o644)); err != nil {
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	if err := os.Rename(tmp.Name(), filepath.Join(string(d), name)); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return nil
}

func (d ManifestDir) file(o Object) (string, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return "", fmt.Errorf("manifest of %s: %w", o.GetName(), err)
	}
	parts := []string{strings.ToLower(kinds[0].Kind), o.GetNamespace(), o.GetName()}
	return strings.Join(parts, "_") + ".yaml", nil
}

// manifest is the object as JSON, with apiVersion and kind.
func manifest(o Object) ([]byte, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", o.GetName(), err)
	}
	c := o.DeepCopyObject()
	c.GetObjectKind().SetGroupVersionKind(kinds[0])
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", o.GetName(), err)
	}
	return append(text, '\n'), nil
}

// bulkWriters is how many API writes Apply has under way at once. The server takes 4 ms for one, most of it waiting.
const bulkWriters = 16

// Apply writes the objects to the API server; many objects concurrently, so in no order.
func (cp *ControlPlane) Apply(ctx context.Context, objects ...Object) error {
	return each(objects, func(o Object) error { return cp.apply(ctx, o) })
}

// Delete deletes them.
func (cp *ControlPlane) Delete(ctx context.Context, objects ...Object) error {
	return each(objects, func(o Object) error {
		err := cp.delete(ctx, o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// each calls f for all objects, concurrently when there are many, and joins the errors.
func each(objects []Object, f func(Object) error) error {
	if len(objects) <= bulkWriters {
		for _, o := range objects {
			if err := f(o); err != nil {
				return fmt.Errorf("%T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
			}
		}
		return nil
	}
	errs := make([]error, len(objects))
	slots := make(chan struct{}, bulkWriters)
	var wg sync.WaitGroup
	for i, o := range objects {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(o); err != nil {
				errs[i] = fmt.Errorf("%T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (cp *ControlPlane) apply(ctx context.Context, o Object) error {
	switch o := o.(type) {
	case *corev1.Service:
		api := cp.Client.CoreV1().Services(o.Namespace)
		return put(ctx, api, api.UpdateStatus, o, len(o.Status.LoadBalancer.Ingress) > 0)
	case *discoveryv1.EndpointSlice:
		return put(ctx, cp.Client.DiscoveryV1().EndpointSlices(o.Namespace), nil, o, false)
	case *corev1.Node:
		api := cp.Client.CoreV1().Nodes()
		return put(ctx, api, api.UpdateStatus, o, true)
	case *corev1.Namespace:
		return put(ctx, cp.Client.CoreV1().Namespaces(), nil, o, false)
	case *networkingv1.ServiceCIDR:
		return put(ctx, cp.Client.NetworkingV1().ServiceCIDRs(), nil, o, false)
	}
	return fmt.Errorf("apply %T: not among the kinds that proxies read", o)
}

func (cp *ControlPlane) delete(ctx context.Context, o Object) error {
	var now int64
	opts := metav1.DeleteOptions{GracePeriodSeconds: &now}
	switch o := o.(type) {
	case *corev1.Service:
		return cp.Client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, opts)
	case *discoveryv1.EndpointSlice:
		return cp.Client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, opts)
	case *corev1.Node:
		return cp.Client.CoreV1().Nodes().Delete(ctx, o.Name, opts)
	case *networkingv1.ServiceCIDR:
		return cp.Client.NetworkingV1().ServiceCIDRs().Delete(ctx, o.Name, opts)
	}
	return fmt.Errorf("delete %T: not among the kinds that proxies read", o)
}

// client is the part of client-go's typed clients that put needs.
type client[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// put creates the object or replaces it, then its status if that counts: the API takes the two apart. The argument itself
// is not changed.
func put[T Object](ctx context.Context, api client[T],
	updateStatus func(context.Context, T, metav1.UpdateOptions) (T, error), o T, status bool,
) error {
	want := o.DeepCopyObject().(T)
	got, err := api.Create(ctx, want, metav1.CreateOptions{})
	// A Service that exists is refused as invalid, since its ClusterIP is taken, before its name is looked at.
	if apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
		old, missing := api.Get(ctx, o.GetName(), metav1.GetOptions{})
		if missing != nil {
			return err
		}
		want.SetResourceVersion(old.GetResourceVersion())
		got, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil || !status {
		return err
	}
	want = o.DeepCopyObject().(T)
	want.SetResourceVersion(got.GetResourceVersion())
	_, err = updateStatus(ctx, want, metav1.UpdateOptions{})
	return err
}

// Reset deletes all Services, EndpointSlices, Nodes and ServiceCIDRs but the API server's own.
func (cp *ControlPlane) Reset(ctx context.Context) error {
	others := metav1.ListOptions{FieldSelector: "metadata.name!=kubernetes"}
	slices, err := cp.Client.DiscoveryV1().EndpointSlices("").List(ctx, others)
	if err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	services, err := cp.Client.CoreV1().Services("").List(ctx, others)
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	nodes, err := cp.Client.CoreV1().Nodes().List(ctx, others)
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	cidrs, err := cp.Client.NetworkingV1().ServiceCIDRs().List(ctx, others)
	if err != nil {
		return fmt.Errorf("list service CIDRs: %w", err)
	}
	// One by one: the API has no deletion of a collection over all namespaces, and none of Services at all.
	all := Objects(pointers(slices.Items), pointers(services.Items), pointers(nodes.Items), pointers(cidrs.Items))
	return cp.Delete(ctx, all...)
}

// pointers makes Objects of the items of a list.
func pointers[T any, P interface {
	*T
	Object
}](items []T) []Object {
	var all []Object
	for i := range items {
		all = append(all, P(&items[i]))
	}
	return all
}
