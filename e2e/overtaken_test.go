// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// A packet may have been sent to a balancer by the state before a commit, and look for its endpoint in the state after
// it. That takes nanoseconds, too short to be met by chance; here it is held still: the program says three slots,
// and two of them are gone. Whoever draws one of these must get the endpoint that is left.
func TestOvertakenPacketFallsBack(t *testing.T) {
	lab.RequireRoot(t)
	for _, affinity := range []time.Duration{0, time.Hour} {
		n := lab.Start(t, lab.Options{Nodes: 1, PodsPerNode: 3})
		kernel := lab.Must(kernel.Open(n.Node(1).FD()))(t)
		defer kernel.Close()
		for _, p := range n.Node(1).Pods {
			lab.Must(p.Serve(p.Name, 8080, lab.TCP))(t)
		}
		for i, f := range nft.Families() {
			lf := lab.Families()[i]
			svc := &nft.Service{Name: "default/web", Proto: nft.TCP, Served: true, Affinity: affinity, AffinitySize: 100,
				Frontends: []nft.Frontend{
					{Kind: nft.ClusterIP, Addr: lab.ClusterIP(lf, 10), Port: 80}, {Kind: nft.NodePort, Port: 30080}}}
			for _, p := range n.Node(1).Pods {
				svc.Cluster = append(svc.Cluster, at(p.IP(lf), 8080))
			}
			program(t, kernel, f, svc, []netip.Addr{lab.NodeIP(lf, 1)})
			less := *svc
			less.Cluster = svc.Cluster[:1]
			// The programs stay, the slots go.
			b := &nft.Batch{}
			b.Change(f, nft.DiffElements(endpointsOf(svc), endpointsOf(&less)))
			if err := kernel.Commit(b); err != nil {
				t.Fatal(err)
			}
			for _, to := range []netip.AddrPort{at(lab.ClusterIP(lf, 10), 80), at(lab.NodeIP(lf, 1), 30080)} {
				tally := lab.Probe{From: n.Client(1).Host, Proto: lab.TCP, To: to}.Repeat(100, 4)
				if !tally.AllAnswered() || len(tally.Backends) != 1 {
					t.Errorf("affinity %s, %s: %s", affinity, to, tally)
				}
			}
		}
	}
}

// program makes a table with one Service.
func program(t *testing.T, k *kernel.Conn, f nft.Family, s *nft.Service, nodePorts []netip.Addr) {
	t.Helper()
	c, err := k.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	table := nft.NewTable(c)
	table.Number(s)
	for _, b := range table.Reconcile(c, nft.Config{MasqueradeBit: 14}, []*nft.Service{s}, nft.AddrElements(nft.NodePortAddresses, f, nodePorts)) {
		if err := k.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

// endpointsOf returns the elements that lead from slots to endpoints.
func endpointsOf(s *nft.Service) (out []nft.Element) {
	for _, e := range nft.Elements(s) {
		switch e.Set {
		case nft.Endpoints, nft.NodePortEndpoints, nft.EndpointIDs, nft.NodePortEndpointIDs, nft.EndpointsByID, nft.NodePortEndpointsByID:
			out = append(out, e)
		}
	}
	return out
}
