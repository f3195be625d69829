// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// mixed returns the i-th Service of a cluster, in IPv4, with its slice. Of ten, six have a ClusterIP only, two a NodePort, one a
// LoadBalancer IP and one an external IP. One endpoint in four is on this node.
func mixed(i, endpoints int) []kube.Object {
	name := kube.Name{Namespace: fmt.Sprintf("ns-%d", i%20), Name: fmt.Sprintf("service-%d", i)}
	svc := &kube.Service{
		Name: name, UID: fmt.Sprintf("uid-%d", i), Created: int64(i),
		ClusterIPs: [2]netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})},
		Ports:      []kube.ServicePort{{Name: kube.Intern("http"), Proto: kube.TCP, Port: 80}},
	}
	switch i % 10 {
	case 6, 7, 8:
		svc.Type, svc.Ports[0].NodePort = kube.NodePort, uint16(20000+i/10*3+i%10)
		if i%10 == 8 {
			svc.Type = kube.LoadBalancer
			svc.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)})}
		}
	case 9:
		svc.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{100, 65, byte(i >> 8), byte(i)})}
	}
	slice := &kube.EndpointSlice{Name: kube.Name{Namespace: name.Namespace, Name: name.Name + "-abcde"},
		Service: name, Ports: []kube.SlicePort{{Name: kube.Intern("http"), Proto: kube.TCP, Port: 8080}}}
	for e := range endpoints {
		n := i*endpoints + e
		slice.Endpoints = append(slice.Endpoints, kube.Endpoint{
			Addr: netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}),
			Node: kube.Intern(fmt.Sprintf("node-%d", 1+e%4)), Ready: true, Serving: true,
		})
	}
	return []kube.Object{svc, slice}
}

// starting is a Proxier to which a cluster has been listed and that has done nothing yet.
func starting(t testing.TB, kernel dataplane, cluster [][]kube.Object) *Proxier {
	proxy := health.New(time.Minute, time.Now, v1.IPv4Protocol, v1.IPv6Protocol)
	listeners := health.NewListeners(proxy, func(types.NamespacedName, error) {})
	t.Cleanup(func() { listeners.Close() })
	p := New(Options{
		Config: &config.Config{NodeName: "node-1", NodeIP: netip.MustParseAddr("172.18.0.2"), MasqueradeBit: 14,
			SyncPeriod: time.Second, NodePorts: config.NodePortAddresses{Primary: true}, ExternalIPs: config.ExternalIPs{All: true}, Own: config.Own{AffinityMapSize: 1000}},
		Metrics: metrics.New(v1.IPv4Protocol, v1.IPv6Protocol), Health: proxy, Listeners: listeners,
	})
	p.tables.conns = []dataplane{kernel}
	for _, objects := range cluster {
		for _, o := range objects {
			p.Sink().Set(o)
		}
	}
	for _, k := range kube.Kinds() {
		p.Sink().Synced(k)
	}
	return p
}

// BenchmarkStart is from everything listed to everything committed: to a kernel that takes no time, to a real one that has no
// tables, and to one that has them already.
func BenchmarkStart(b *testing.B) {
	for _, size := range [][2]int{{1000, 3}, {10000, 3}, {5000, 50}} {
		var cluster [][]kube.Object
		for i := range size[0] {
			cluster = append(cluster, mixed(i, size[1]))
		}
		real := func() *kernel.Conn {
			kernel, err := kernel.Open(int(newNS(b)))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { kernel.Close() })
			return kernel
		}
		b.Run(fmt.Sprintf("own work/%dx%d", size[0], size[1]), func(b *testing.B) {
			benchmarkStart(b, cluster, func() dataplane { return &scale{} })
		})
		b.Run(fmt.Sprintf("cold/%dx%d", size[0], size[1]), func(b *testing.B) {
			benchmarkStart(b, cluster, func() dataplane { return real() })
		})
		b.Run(fmt.Sprintf("warm/%dx%d", size[0], size[1]), func(b *testing.B) {
			kernel := real()
			starting(b, kernel, cluster).round(b.Context())
			benchmarkStart(b, cluster, func() dataplane { return kernel })
		})
	}
}

func benchmarkStart(b *testing.B, cluster [][]kube.Object, kernel func() dataplane) {
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		p := starting(b, kernel(), cluster)
		b.StartTimer()
		if p.round(b.Context()); !p.tables.known || len(p.planner.committed) != len(cluster) {
			b.Fatalf("serves %d Services, want %d", len(p.planner.committed), len(cluster))
		}
	}
}

// TestCostOfAStart: what a start allocates for each Service, from everything listed to everything committed.
func TestCostOfAStart(t *testing.T) {
	const (
		services = 1000
		// Building a Service takes 10, its place among the claims 3; of elements and their encoding there is no single one.
		most = 25
	)
	var cluster [][]kube.Object
	for i := range services {
		cluster = append(cluster, mixed(i, 3))
	}
	p := starting(t, &scale{}, cluster)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if p.round(t.Context()); !p.tables.known {
		t.Fatal("not committed")
	}
	runtime.ReadMemStats(&after)
	if n := (after.Mallocs - before.Mallocs) / services; n > most {
		t.Errorf("%d allocations for each Service, want at most %d", n, most)
	}
}
