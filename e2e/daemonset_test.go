// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// daemons stand for the DaemonSet controller and the kubelets: they run on each node of the lab what the DaemonSets of the
// API server ask for, as processes, and write the status of the DaemonSets.
type daemons struct {
	t    *testing.T
	c    *cluster
	runs map[string]runner // by name of the DaemonSet

	mu   sync.Mutex
	pods map[podKey]pod
}

// podKey is a DaemonSet at a node.
type podKey struct{ set, node string }

// pod runs for one generation of its DaemonSet.
type pod struct {
	instance
	generation int64
}

// instance is what runs.
type instance interface {
	Ready() bool
	Stop() error
}

// runner starts what a DaemonSet runs on a node.
type runner func(node *lab.Node, template corev1.PodSpec) (instance, error)

// start reconciles until the test ends.
func (d *daemons) start() {
	d.pods = map[podKey]pod{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) { // a kubelet is not faster
			if err := d.reconcile(ctx); err != nil && ctx.Err() == nil {
				d.t.Errorf("DaemonSets: %v", err)
				return
			}
		}
	}()
	d.t.Cleanup(func() { cancel(); <-done })
}

func (d *daemons) reconcile(ctx context.Context) error {
	api := d.c.spec.API.ControlPlane.Client
	nodes, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	sets, err := api.AppsV1().DaemonSets("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	wanted := map[podKey]*appsv1.DaemonSet{}
	for i := range sets.Items {
		for _, n := range nodes.Items {
			if eligible(sets.Items[i].Spec.Template.Spec, n.Labels) {
				wanted[podKey{sets.Items[i].Name, n.Name}] = &sets.Items[i]
			}
		}
	}
	if err := d.stopOthers(wanted); err != nil {
		return err
	}
	if err := d.startMissing(wanted); err != nil {
		return err
	}
	for i := range sets.Items {
		if err := d.report(ctx, &sets.Items[i], wanted); err != nil {
			return err
		}
	}
	return nil
}

// stopOthers ends what is not wanted, and what is of a former generation.
func (d *daemons) stopOthers(wanted map[podKey]*appsv1.DaemonSet) error {
	for key, p := range d.pods {
		if set := wanted[key]; set == nil || set.Generation != p.generation {
			if err := p.Stop(); err != nil {
				return fmt.Errorf("stop %v: %w", key, err)
			}
			delete(d.pods, key)
		}
	}
	return nil
}

func (d *daemons) startMissing(wanted map[podKey]*appsv1.DaemonSet) error {
	for key, set := range wanted {
		if _, runs := d.pods[key]; runs {
			continue
		}
		i := slices.IndexFunc(d.c.Nodes, func(n *lab.Node) bool { return n.Name == key.node })
		p, err := d.runs[key.set](d.c.Nodes[i], set.Spec.Template.Spec)
		if err != nil {
			return fmt.Errorf("start %v: %w", key, err)
		}
		d.pods[key] = pod{p, set.Generation}
	}
	return nil
}

// report writes the status that kubectl rollout reads.
func (d *daemons) report(ctx context.Context, set *appsv1.DaemonSet, wanted map[podKey]*appsv1.DaemonSet) error {
	now := appsv1.DaemonSetStatus{ObservedGeneration: set.Generation}
	for key := range wanted {
		if key.set != set.Name {
			continue
		}
		now.DesiredNumberScheduled++
		now.CurrentNumberScheduled++
		now.UpdatedNumberScheduled++
		if d.pods[key].Ready() {
			now.NumberReady++
			now.NumberAvailable++
		}
	}
	now.NumberUnavailable = now.DesiredNumberScheduled - now.NumberAvailable
	if was := set.Status; was.ObservedGeneration == now.ObservedGeneration && was.NumberAvailable == now.NumberAvailable &&
		was.DesiredNumberScheduled == now.DesiredNumberScheduled {
		return nil
	}
	set.Status = now
	_, err := d.c.spec.API.ControlPlane.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if ignorable(err) {
		return nil // it has changed since it was listed
	}
	return err
}

// eligible reports whether a node may run a pod, by node selector and required node affinity.
func eligible(pod corev1.PodSpec, labels map[string]string) bool {
	for k, v := range pod.NodeSelector {
		if labels[k] != v {
			return false
		}
	}
	if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
		return true
	}
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return slices.Contains(r.Values, labels[r.Key]) != (r.Operator == corev1.NodeSelectorOpIn)
		})
	})
}
