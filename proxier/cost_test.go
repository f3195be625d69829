// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// scale counts what would be written to a kernel that starts empty.
type scale struct{ elements, transactions int }

func (k *scale) CommitAll(batches []*nft.Batch, _ func(kernel.Committed)) error {
	for _, b := range batches {
		if !b.Empty() {
			k.transactions++
			k.elements += b.Elements()
		}
	}
	return nil
}

func (k *scale) Read(nft.Family) (*nft.Content, error) { return &nft.Content{}, nil }

func (k *scale) PortID() uint32 { return 0 }

// at is a Proxier that serves n Services of three endpoints, with a change to it and what that writes.
func at(t testing.TB, n int) (change func(), kernel *scale) {
	proxy := health.New(time.Minute, time.Now, v1.IPv4Protocol, v1.IPv6Protocol)
	listeners := health.NewListeners(proxy, func(types.NamespacedName, error) {})
	t.Cleanup(func() { listeners.Close() })
	p := New(Options{
		Config: &config.Config{NodeName: "node-1", NodeIP: netip.MustParseAddr("172.18.0.2"), MasqueradeBit: 14,
			SyncPeriod: time.Second, NodePorts: config.NodePortAddresses{Primary: true}, ExternalIPs: config.ExternalIPs{All: true}, Own: config.Own{AffinityMapSize: 1000}},
		Metrics: metrics.New(v1.IPv4Protocol, v1.IPv6Protocol), Health: proxy, Listeners: listeners,
	})
	kernel = &scale{}
	p.tables.conns = []dataplane{kernel}
	for i := range n {
		for _, o := range service(i, 3) {
			p.Sink().Set(o)
		}
	}
	for _, k := range kube.Kinds() {
		p.Sink().Synced(k)
	}
	if p.round(t.Context()); !p.tables.known || len(p.planner.committed) != n {
		t.Fatalf("serves %d Services, want %d", len(p.planner.committed), n)
	}
	*kernel = scale{}
	slices := [2]*kube.EndpointSlice{service(n/2, 3)[1].(*kube.EndpointSlice), service(n/2, 4)[1].(*kube.EndpointSlice)}
	slices[1].Endpoints = slices[1].Endpoints[1:]
	turn := 0
	return func() {
		turn++
		p.Sink().Set(slices[turn%2])
		p.round(t.Context())
	}, kernel
}

// TestCostOfAChange: what one endpoint replaced allocates and writes, from the source's event to the transaction, and that
// neither follows the number of Services.
func TestCostOfAChange(t *testing.T) {
	const (
		// A ClusterIP and a NodePort: two elements each.
		elements = 4
		// Building and comparing one Service of one port with two frontends in two families; metrics and health that are told of it.
		most = 250
	)
	for _, n := range []int{100, 1_000, 5_000} {
		change, kernel := at(t, n)
		change()
		if *kernel != (scale{elements, 1}) {
			t.Errorf("%d Services: %+v for one change, want %d elements in one transaction", n, *kernel, elements)
		}
		if got := testing.AllocsPerRun(50, change); got > most {
			t.Errorf("%d Services: %v allocations for one change, want at most %d", n, got, most)
		}
	}
}

func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 30_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			change, _ := at(b, n)
			b.ReportAllocs()
			for b.Loop() {
				change()
			}
		})
	}
}
