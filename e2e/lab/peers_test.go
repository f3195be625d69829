// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

var shared lab.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

func TestControlPlaneTime(t *testing.T) {
	start := time.Now()
	shared.ControlPlane(t)
	t.Log(time.Since(start))
}

func TestLabKubeProxy(t *testing.T) {
	ctx := context.Background()
	cp := shared.ControlPlane(t)
	n := lab.Start(t, lab.Options{})
	api := lab.Must(n.Attach(cp))(t)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080), lab.Port(lab.SCTP, 80, 8080)), 30080)
	objs := lab.Objects(svc, lab.NewSlices(svc, n.Pod(1, 1).Endpoint(), n.Pod(2, 1).Endpoint()))
	for _, node := range n.Nodes {
		objs = append(objs, lab.NewNode(node, "topology.kubernetes.io/zone", "a"))
	}
	if err := cp.Apply(ctx, objs...); err != nil {
		t.Fatal(err)
	}
	if err := cp.Apply(ctx, objs...); err != nil {
		t.Fatal(err)
	}
	lab.Must(n.Pod(1, 1).Serve("web-1", 8080, lab.TCP, lab.UDP, lab.SCTP))(t)
	lab.Must(n.Pod(2, 1).Serve("web-2", 8080, lab.TCP, lab.UDP, lab.SCTP))(t)
	start := time.Now()
	var ready []lab.Probe
	for _, node := range n.Nodes {
		for _, f := range lab.Families() {
			ready = append(ready, lab.Probe{From: node.Host, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(f, 10), 80), Timeout: 100 * time.Millisecond})
		}
	}
	lab.Must(lab.StartProxies(n, lab.ProxySpec{Kind: lab.KubeProxy, API: api, Ready: ready}))(t)
	t.Log("ready after", time.Since(start))
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} {
			for _, from := range []*lab.Host{n.Pod(1, 1).Host, n.Pod(1, 2).Host, n.Node(1).Host, n.Client(1).Host} {
				for _, to := range []netip.AddrPort{netip.AddrPortFrom(lab.ClusterIP(f, 10), 80), n.Node(1).At(f, 30080), n.Node(2).At(f, 30080)} {
					p := lab.Probe{From: from, Proto: proto, To: to, Timeout: 300 * time.Millisecond}
					if to.Port() == 30080 && proto == lab.UDP {
						p.To = netip.AddrPortFrom(to.Addr(), 30081)
					}
					if to.Port() == 30080 && proto == lab.SCTP {
						p.To = netip.AddrPortFrom(to.Addr(), 30082)
					}
					y := p.Repeat(20, 4)
					t.Log(proto, from, p.To, y, y.Sources)
				}
			}
		}
	}
	out, err := lab.NFT(n.Node(1).Host, "list", "tables")
	t.Log(out, err)
	out, err = cp.Kubectl("get", "svc,endpointslices,nodes,servicecidrs", "-o", "wide")
	t.Log(out, err)
}
