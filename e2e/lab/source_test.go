// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// readManifests decodes all documents of a directory by kind and name.
func readManifests(t *testing.T, dir string) map[string]map[string]any {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 100)
		for {
			var doc map[string]any
			err := d.Decode(&doc)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if doc != nil {
				found[doc["kind"].(string)+" "+doc["metadata"].(map[string]any)["name"].(string)] = doc
			}
		}
	}
	return found
}

// TestSources applies, changes and deletes the same objects through both sources.
func TestSources(t *testing.T) {
	ctx := context.Background()
	cp := shared.ControlPlane(t)
	n := lab.Start(t, lab.Options{Nodes: 1})
	svc := lab.WithExternalIP(lab.WithLoadBalancer(lab.NewService("web", 20, lab.Port(lab.TCP, 80, 8080)), 30090, 5), 6)
	ready, terminating := n.Pod(1, 1).Endpoint(), n.Pod(1, 2).Endpoint().With(false, true, true)
	objects := lab.Objects(svc, lab.NewSlices(svc, ready, terminating), lab.NewNode(n.Node(1), corev1.LabelTopologyZone, "a"))
	dir := lab.ManifestDir(t.TempDir())
	for _, source := range []lab.Source{cp, dir} {
		for range 2 { // the second replaces
			if err := source.Apply(ctx, objects...); err != nil {
				t.Fatal(err)
			}
		}
	}

	docs := readManifests(t, string(dir))
	for _, want := range []string{"Service web", "EndpointSlice web-ipv4", "EndpointSlice web-ipv6", "Node node-1"} {
		if docs[want] == nil {
			t.Errorf("no manifest of %s", want)
		}
	}
	got, err := cp.Client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(svc.Status.LoadBalancer, got.Status.LoadBalancer); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	slice, err := cp.Client.DiscoveryV1().EndpointSlices("default").Get(ctx, "web-ipv6", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(lab.NewSlices(svc, ready, terminating)[1].Endpoints, slice.Endpoints); d != "" {
		t.Errorf("endpoints (-want +got):\n%s", d)
	}
	node, err := cp.Client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil || len(node.Status.Addresses) != 2 || node.Labels[corev1.LabelTopologyZone] != "a" || len(node.Spec.PodCIDRs) != 2 {
		t.Errorf("got %v, %v", node, err)
	}

	for _, source := range []lab.Source{cp, dir} {
		for range 2 { // the second finds nothing
			if err := source.Delete(ctx, objects...); err != nil {
				t.Fatal(err)
			}
		}
	}
	if docs := readManifests(t, string(dir)); len(docs) != 0 {
		t.Errorf("left over: %v", docs)
	}
	if svcs, err := cp.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil || len(svcs.Items) != 1 {
		t.Errorf("left over: %v, %v", svcs, err)
	}
}

// TestBulk writes many objects at once, and asks for what the API refuses.
func TestBulk(t *testing.T) {
	ctx := context.Background()
	cp := shared.ControlPlane(t)
	var many []lab.Object
	for i := range 100 {
		svc := lab.NewService("bulk-"+string(rune('a'+i/26))+string(rune('a'+i%26)), 1000+i, lab.Port(lab.TCP, 80, 8080))
		many = append(many, lab.Objects(svc, lab.NewSlices(svc))...)
	}
	if err := cp.Apply(ctx, many...); err != nil {
		t.Fatal(err)
	}
	if err := cp.Apply(ctx, lab.NewService("taken", 1000, lab.Port(lab.TCP, 80, 8080))); err == nil {
		t.Error("two Services got the same ClusterIP")
	}
	if err := cp.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	list, err := cp.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "kubernetes" {
		t.Errorf("after Reset: %v, %v", list, err)
	}

	dir := lab.ManifestDir(t.TempDir())
	if err := dir.Write("all.yaml", many...); err != nil {
		t.Fatal(err)
	}
	if docs := readManifests(t, string(dir)); len(docs) != len(many) {
		t.Errorf("wrote %d objects, read %d", len(many), len(docs))
	}
}
