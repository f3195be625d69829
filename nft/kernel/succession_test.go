// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"

	. "github.com/nftproxy/nftproxy/nft"
)

// kube-proxy serves a family when it has chains of Services there, in either mode; its static chains do not count.
func TestKubeProxyServes(t *testing.T) {
	for mode, rules := range map[string]func(*namespace, *testing.T, Family){
		"nftables": func(n *namespace, t *testing.T, f Family) {
			n.nft(t, "add chain "+f.String()+" kube-proxy service-2QRHZV4L-default/kubernetes/tcp/https\n", "-f", "-")
		},
		"iptables": func(n *namespace, t *testing.T, f Family) { n.restore(t, f, kubeProxyRules(f)) },
	} {
		n := newNamespace(t)
		k := n.open(t)
		want := map[Family]bool{}
		expect := func(when string) {
			t.Helper()
			for _, f := range Families() {
				if got, err := k.KubeProxyServes(f); err != nil || got != want[f] {
					t.Errorf("%s, %s: %s is served: %t, %v", mode, when, f, got, err)
				}
			}
		}
		expect("nothing there")
		for _, f := range Families() {
			n.nft(t, "table "+f.String()+" kube-proxy { chain services { }; chain service-endpoints-check { }; }\n", "-f", "-")
			n.restore(t, f, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n")
		}
		expect("static chains")
		for _, f := range Families() {
			rules(n, t, f)
			want[f] = true
			expect("rules of " + f.String())
		}
	}
}
