// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// manifest returns Service i with a slice of n endpoints as YAML.
func manifest(i, n int) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata:
  name: svc-%d
  namespace: ns-%d
  labels:
    app: svc-%[1]d
spec:
  type: ClusterIP
  clusterIP: 10.%[3]d.%[4]d.%[5]d
  clusterIPs:
  - 10.%[3]d.%[4]d.%[5]d
  ports:
  - name: http
    port: 80
    protocol: TCP
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-%[1]d-abcde
  namespace: ns-%[2]d
  labels:
    kubernetes.io/service-name: svc-%[1]d
addressType: IPv4
ports:
- name: http
  port: 8080
  protocol: TCP
endpoints:
`, i, i%20, 96+i>>16, i>>8&255, i&255)
	for e := range n {
		k := i*n + e
		fmt.Fprintf(&b, "- addresses:\n  - 11.%d.%d.%d\n  conditions: {ready: true}\n  nodeName: node-%d\n", k>>16&255, k>>8&255, k&255, k%50)
	}
	return b.String()
}

// counter is a Sink that counts.
type counter struct{ sets, deletes, problems int }

func (c *counter) Set(kube.Object)         { c.sets++ }
func (c *counter) Delete(kube.Ref)         { c.deletes++ }
func (c *counter) Synced(kube.Kind)        {}
func (c *counter) Problem(kube.Ref, error) { c.problems++ }

func newReader(tb testing.TB, dir string, sink kube.Sink) *reader {
	s, err := New(dir, "n1")
	if err != nil {
		tb.Fatal(err)
	}
	return s.newReader(klog.Background(), sink)
}

// BenchmarkRead loads a cluster of 10,000 Services with three endpoints each, and then reads it again with one changed.
func BenchmarkRead(b *testing.B) {
	const services = 10000
	for _, perFile := range []int{1, services} {
		dir := b.TempDir()
		var all bytes.Buffer
		for i := range services {
			fmt.Fprintf(&all, "---\n%s", manifest(i, 3))
			if (i+1)%perFile == 0 {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.yaml", i)), all.Bytes(), 0o644); err != nil {
					b.Fatal(err)
				}
				all.Reset()
			}
		}
		b.Run(fmt.Sprintf("load/files=%d", services/perFile), func(b *testing.B) {
			for b.Loop() {
				var c counter
				newReader(b, dir, &c).read()
				if c.sets != 2*services || c.problems != 0 {
					b.Fatalf("%+v", c)
				}
			}
		})
		b.Run(fmt.Sprintf("change/files=%d", services/perFile), func(b *testing.B) {
			var c counter
			r := newReader(b, dir, &c)
			r.read()
			path := filepath.Join(dir, fmt.Sprintf("%05d.yaml", services-1))
			text, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				text = append(text, '#', '\n')
				if err := os.WriteFile(path, text, 0o644); err != nil {
					b.Fatal(err)
				}
				r.read()
			}
		})
	}
}

// FuzzFile: no text makes the decoder panic, each definition has a name, and a second look at the same text changes nothing.
func FuzzFile(f *testing.F) {
	f.Add("a.yaml", []byte(manifest(1, 2)+"---\n"+svc("a", "10.96.0.1")))
	f.Add("a.json", []byte(`{"kind":"List","apiVersion":"v1","items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}]}`))
	f.Add("a.yaml", []byte("kind: List\nitems:\n- x\n- {kind: Service, apiVersion: v1, metadata: {name: [1]}}\n"))
	d := newDecoder()
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		var file file
		for range 2 {
			file.take(name, d.file(name, data))
		}
		for _, def := range file.definitions {
			if def.ref.Name.Name == "" || def.object != nil && def.object.Ref() != def.ref {
				t.Errorf("%q defines %+v", data, def)
			}
			for _, err := range def.problems {
				if text := err.Error(); strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text) {
					t.Errorf("%q: problem %q", data, text)
				}
			}
		}
		before := len(file.definitions)
		file.take(name, d.file(name, nil))
		if len(file.definitions) != before {
			t.Errorf("%q: an empty file removed %d definitions", data, before-len(file.definitions))
		}
	})
}
