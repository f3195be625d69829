// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"sigs.k8s.io/yaml"
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
  ipFamilies:
  - IPv4
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
		fmt.Fprintf(&b, `- addresses:
  - 11.%d.%d.%d
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: node-%d
`, k>>16&255, k>>8&255, k&255, k%50)
	}
	return b.String()
}

// counter is a Sink that counts.
type counter struct{ sets, deletes, problems int }

func (c *counter) Set(Object)         { c.sets++ }
func (c *counter) Delete(Ref)         { c.deletes++ }
func (c *counter) Synced(Kind)        {}
func (c *counter) Problem(Ref, error) { c.problems++ }

// library files of the same cluster: one YAML file, one file per Service, one JSON list.
func contentsOf(tb testing.TB, shape string, services, endpoints int) (out []content) {
	var all bytes.Buffer
	for i := range services {
		one := manifest(i, endpoints)
		switch shape {
		case "one YAML file":
			fmt.Fprintf(&all, "%s---\n", one)
		case "a YAML file per Service":
			out = append(out, content{path: fmt.Sprintf("%05d.yaml", i), data: []byte(one)})
		case "a JSON list":
			for _, doc := range bytes.Split([]byte(one), []byte("---\n")) {
				item, err := yaml.YAMLToJSON(doc)
				if err != nil {
					tb.Fatal(err)
				}
				all.Write([]byte{'[', ','}[min(all.Len(), 1):][:1])
				all.Write(item)
			}
		}
	}
	switch shape {
	case "one YAML file":
		return []content{{path: "all.yaml", data: all.Bytes()}}
	case "a JSON list":
		return []content{{path: "all.json", data: fmt.Appendf(nil, `{"kind":"List","apiVersion":"v1","items":%s]}`, all.Bytes())}}
	}
	return out
}

// BenchmarkLibrary loads a cluster from files that are in memory, and then again with one Service changed.
func BenchmarkLibrary(b *testing.B) {
	for _, size := range [][2]int{{10000, 3}, {30000, 3}, {5000, 50}} {
		for _, shape := range []string{"one YAML file", "a YAML file per Service", "a JSON list"} {
			name := fmt.Sprintf("%dx%d/%s", size[0], size[1], shape)
			contents := contentsOf(b, shape, size[0], size[1])
			b.Run("load/"+name, func(b *testing.B) {
				for b.Loop() {
					var c counter
					newLibrary(&c, "n1").update(contents)
					if c.sets != 2*size[0] || c.problems != 0 {
						b.Fatalf("%+v", c)
					}
				}
			})
			b.Run("change/"+name, func(b *testing.B) {
				var c counter
				l := newLibrary(&c, "n1")
				l.update(contents)
				last := &contents[len(contents)-1]
				old := last.data
				fresh := [2][]byte{old, bytes.Replace(old, []byte("8080"), []byte("8081"), -1)}
				if shape != "a YAML file per Service" {
					at := bytes.LastIndex(old, []byte("8080"))
					fresh[1] = bytes.Clone(old)
					fresh[1][at] = '9'
				}
				i := 0
				for b.Loop() {
					i++
					last.data = fresh[i%2]
					l.update(contents[len(contents)-1:])
				}
				if c.sets != 2*size[0]+i {
					b.Fatalf("%d changes: %+v", i, c)
				}
				last.data = old
			})
		}
	}
}

// BenchmarkMemory tells what a cluster takes once it is loaded.
func BenchmarkMemory(b *testing.B) {
	for _, size := range [][2]int{{10000, 3}, {30000, 3}, {5000, 50}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			contents := contentsOf(b, "one YAML file", size[0], size[1])
			heap := func() uint64 {
				runtime.GC()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			for b.Loop() {
				before := heap()
				var c counter
				l := newLibrary(&c, "n1")
				l.update(contents)
				b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
				runtime.KeepAlive(l)
			}
		})
	}
}
