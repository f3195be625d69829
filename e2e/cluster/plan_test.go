// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func TestNodesAreSpreadOverZones(t *testing.T) {
	zones := map[string]int{}
	for i, n := range planNodes("nftproxy-x", 3) {
		zones[n.Zone]++
		if n.Index != i+1 {
			t.Errorf("%s has index %d", n.Name, n.Index)
		}
	}
	if zones["a"] != 2 || zones["b"] != 2 {
		t.Errorf("four nodes in zones %v", zones)
	}
}

func TestMountsBelow(t *testing.T) {
	text := "22 27 0:21 / /proc rw,relatime - proc proc rw\n" +
		"31 27 0:28 / /tmp/c rw shared:1 - ext4 /dev/vda rw\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n" +
		"33 31 0:30 / /tmp/c/a\\040b rw shared:1 master:2 - tmpfs tmpfs rw\n" +
		"34 31 0:31 / /tmp/cc rw - tmpfs tmpfs rw\n"
	mounts := parseMounts(text)
	if got, want := below(mounts, "/tmp/c"), []string{"/tmp/c/a b", "/tmp/c"}; !slices.Equal(got, want) {
		t.Errorf("below /tmp/c: %q, not %q", got, want)
	}
	c, err := findCgroups(text)
	if err != nil || c.v2 || !slices.Equal(c.mounts, []string{"/sys/fs/cgroup/cpu"}) {
		t.Errorf("cgroups: %+v, %v", c, err)
	}
	if _, err := findCgroups("22 27 0:21 / /proc rw,relatime - proc proc rw\n"); err == nil {
		t.Error("no cgroup hierarchy, and no error")
	}
}

func TestLibraries(t *testing.T) {
	got := libraries("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibnftables.so.1 => /lib/x/libnftables.so.1 (0x00007f)\n\t/lib64/ld.so.2 (0x00007f)\n")
	if want := []string{"/lib/x/libnftables.so.1", "/lib64/ld.so.2"}; !slices.Equal(got, want) {
		t.Errorf("libraries: %q, not %q", got, want)
	}
}

func TestRoutesLeadToAllOthers(t *testing.T) {
	nodes := planNodes("nftproxy-x", 3)
	for _, n := range nodes {
		all := strings.Join(routes(nodes, n.Name), "\n")
		for _, other := range nodes {
			for _, f := range lab.Families() {
				if strings.Contains(all, "route add "+other.podCIDR(f).String()) == (other.Name == n.Name) {
					t.Errorf("routes of %s, pods of %s:\n%s", n.Name, other.Name, all)
				}
			}
		}
	}
}

func TestLayerHasParents(t *testing.T) {
	layer, err := writeLayer([]imageFile{{At: "a/b/c", Text: []byte("x")}, {At: "a/b/d", Link: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, head.Name)
	}
	if want := []string{"a/", "a/b/", "a/b/c", "a/b/d"}; !slices.Equal(got, want) {
		t.Errorf("layer: %q, not %q", got, want)
	}
}

// Every document of every manifest and configuration parses, for every node.
func TestTemplatesRender(t *testing.T) {
	nodes := planNodes("nftproxy-x", 3)
	texts := map[string]string{"nodes": nodeObjects(nodes)}
	for name, text := range map[string]string{"addons": addonsText, "kube-proxy": kubeProxyText, "life": lifeText} {
		out, err := render(text, nodes[0])
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = out
	}
	d := dir(t.TempDir())
	for _, n := range nodes {
		if err := d.writeNode(n); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(d.file(n.Name, "kubelet.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		texts["kubelet of "+n.Name] = string(text)
	}
	for name, text := range texts {
		for _, doc := range strings.Split(text, "\n---\n") {
			var object map[string]any
			if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
				t.Errorf("%s: %v\n%s", name, err, doc)
			}
			if object != nil && object["kind"] == nil {
				t.Errorf("%s: a document without kind:\n%s", name, doc)
			}
		}
	}
}

func TestNamesOfNamespaces(t *testing.T) {
	d := dir("/tmp/nftproxy-cluster")
	for _, n := range planNodes(d.name(), 12) {
		if !d.netnsName().MatchString(n.netns()) {
			t.Errorf("%s is not seen as ours", n.netns())
		}
	}
	other := dir("/tmp/nftproxy-cluster-2")
	for _, ns := range []string{planNodes(other.name(), 1)[1].netns(), other.clientNetns(), "nftproxy-cluster", "nftproxy-cluster-x"} {
		if d.netnsName().MatchString(ns) {
			t.Errorf("%s is seen as ours", ns)
		}
	}
}

// A wrong -dir must not cost anybody their files.
func TestDownKeepsForeignDirectories(t *testing.T) {
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "thesis"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir(at).ours(); err == nil {
		t.Error("a directory with other files counts as ours")
	}
	d := dir(filepath.Join(at, "cluster"))
	if err := errors.Join(d.ours(), d.claim(), d.ours()); err != nil {
		t.Error(err)
	}
}
