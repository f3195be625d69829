// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// A node moves from kube-proxy to nftproxy and back while clients connect: none fails, and what the other left is
// gone each time.
func TestTakeOver(t *testing.T) {
	// What a node has of kube-proxy once it serves the Service.
	for mode, served := range map[string]string{"nftables": "-default/web/tcp/", "iptables": "chain KUBE-SVC-"} {
		t.Run(mode, func(t *testing.T) { takeOver(t, mode, served) })
	}
}

func takeOver(t *testing.T, mode, served string) {
	c := fromAPI(t, lab.Options{Nodes: 1, PodsPerNode: 2})
	node := c.Node(1)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	c.apply(svc, lab.NewSlices(svc, endpoints(c.pods()...)...))
	c.serve(8080, c.pods(), lab.TCP)
	// A user's table, and chains of the kubelet, which must stay.
	if err := lab.LoadNFT(node.Host, "table ip mine { chain a { tcp dport 1 counter; }; }\n"); err != nil {
		t.Fatal(err)
	}
	lab.Must(node.RunInput(strings.NewReader("*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"),
		"iptables-nft-restore", "--noflush"))(t)

	vip := lab.Probe{From: c.Pod(1, 1).Host, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv4, 10), 80)}
	nodePort := lab.Probe{From: c.Client(1).Host, Proto: lab.TCP, To: at(node.IP(lab.IPv4), 30080)}
	theirs := lab.ProxySpec{Kind: lab.KubeProxy, API: c.spec.API, Config: map[string]any{"mode": mode}, Ready: []lab.Probe{vip, nodePort}}
	other := lab.Must(lab.StartProxy(node, theirs))(t)
	holds(t, node, []string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "table ip mine"}, nil)

	ctx, cancel := context.WithCancel(t.Context())
	tallies := make(chan *lab.Tally, 2)
	for _, p := range []lab.Probe{vip, nodePort} {
		go func() { tallies <- p.Storm(ctx, 2, nil) }()
	}
	defer cancel()

	if err := other.Stop(); err != nil {
		t.Fatal(err)
	}
	ours := c.spec
	ours.Ready = []lab.Probe{vip, nodePort}
	proxy := lab.Must(lab.StartProxy(node, ours))(t)
	kubeProxys := []string{"kube-proxy", "KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "KUBE-POSTROUTING", "KUBE-NODEPORTS"}
	holds(t, node, []string{"table ip nftproxy", "table ip6 nftproxy", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "table ip mine"}, kubeProxys)

	if err := proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	lab.Must(lab.StartProxy(node, theirs))(t)
	holds(t, node, []string{served, "table ip nftproxy"}, nil) // kube-proxy is healthy before it has written a rule
	out := lab.Must(node.Run(lab.Must(lab.NftproxyBinary())(t), "cleanup"))(t)
	if !strings.Contains(out, "removed table ip nftproxy\n") {
		t.Errorf("cleanup says %q", out)
	}
	holds(t, node, []string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "table ip mine"}, []string{"nftproxy"})
	for _, p := range []lab.Probe{vip, nodePort} {
		if r := p.Repeat(50, 4); !r.AllAnswered() {
			t.Errorf("after moving back: %s", r)
		}
	}

	cancel()
	for range cap(tallies) {
		if r := <-tallies; !r.AllAnswered() {
			t.Errorf("while moving: %s", r)
		} else {
			t.Logf("while moving: %s", r)
		}
	}
}

// holds waits until a node's ruleset has some words and lacks others.
func holds(t *testing.T, node *lab.Node, want, not []string) {
	t.Helper()
	for deadline := time.Now().Add(lab.HangLimit); ; time.Sleep(50 * time.Millisecond) {
		text := lab.Must(lab.NFT(node.Host, "list", "ruleset"))(t)
		bad := ""
		for _, w := range want {
			if !strings.Contains(text, w) {
				bad = "lacks " + w
			}
		}
		for _, w := range not {
			if strings.Contains(text, w) {
				bad = "has " + w
			}
		}
		if bad == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s:\n%s", node, bad, text)
		}
	}
}
