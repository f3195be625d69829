// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// beyondServices are what a balancer behind a device serves in part.
func beyondServices(f nft.Family) []*nft.Service {
	vip := func(n int, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.ClusterIP, Addr: in(f, fmt.Sprintf("10.96.0.%d", n)), Port: 80, Local: local}
	}
	steered, host := vip(1, true), vip(2, true)
	steered.Steered, host.HostEndpoint = true, ap(f, "172.18.0.2:8080")
	handed := vip(5, false)
	handed.HandedOver = true
	own := eps(f, "10.244.0.1:8080")
	np := func(p uint16, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.NodePort, Port: p, Local: local}
	}
	return []*nft.Service{
		{Name: "default/steered:http", Proto: nft.TCP, Served: true, Local: own, Frontends: []nft.Frontend{steered}},
		{Name: "default/host:http", Proto: nft.TCP, Served: true, Local: own, Frontends: []nft.Frontend{host}},
		{Name: "default/handed:http", Proto: nft.TCP, Served: true, Cluster: own, Frontends: []nft.Frontend{vip(3, false)}},
		{Name: "default/handed:http", Proto: nft.TCP, Served: true, Cluster: eps(f, "10.96.0.3:80"), Frontends: []nft.Frontend{np(30003, false)}},
		{Name: "default/host-handed:http", Proto: nft.TCP, Served: true, Cluster: own, Frontends: []nft.Frontend{handed}},
		{Name: "default/local:http", Proto: nft.TCP, Served: true, Cluster: own, Frontends: []nft.Frontend{vip(4, false)}},
		{Name: "default/local:http", Proto: nft.TCP, Served: true, Cluster: own, Local: eps(f, "169.254.169.3:30004"),
			Frontends: []nft.Frontend{np(30004, true)}},
	}
}

// TestExplainBeyond: what is left to the balancer behind a device.
func TestExplainBeyond(t *testing.T) {
	for _, f := range nft.Families() {
		cfg := config()
		hop := in(f, "10.244.0.99")
		cfg.External = nft.ExternalBalancer{Steering: true, Mark: 0x1745ec, Mask: ^uint32(0), HandOff: true, HostClusterIPs: true,
			SteeringHop: hop, HandOffHop: hop, Virtual: in(f, "169.254.169.3"),
			Subnet: netip.PrefixFrom(in(f, "169.254.169.0"), in(f, "0.0.0.0").BitLen()-3), Device: "mp0"}
		s := nft.Model(f, cfg, beyondServices(f), nodeElements(f))
		for _, c := range []scenario{
			{nft.TCP, "10.96.0.1:80", nodeIP, "", Steered, "", "", "default/steered:http", "marked, so that routing leads it to the balancer"},
			{nft.TCP, "10.96.0.1:80", pod, "veth0", Delivered, "none", "10.244.0.1:8080", "default/steered:http", "only endpoints on this node"},
			{nft.TCP, "10.96.0.2:80", nodeIP, "", Delivered, "none", "172.18.0.2:8080", "default/host:http", "a process of this node"},
			{nft.TCP, "10.96.0.3:80", nodeIP, "", Delivered, "all", "10.244.0.1:8080", "default/handed:http", "the only endpoint"},
			{nft.TCP, "10.96.0.5:80", nodeIP, "", Steered, "", "", "default/host-handed:http", "left to the balancer behind the device, which handOff.hostClusterIPs"},
			{nft.TCP, "10.96.0.5:80", pod, "veth0", Delivered, "none", "10.244.0.1:8080", "default/host-handed:http", "the only endpoint"},
			{nft.TCP, "172.18.0.2:30003", client, "eth0", Delivered, "all", "10.96.0.3:80", "default/handed:http", "handed over to the balancer"},
			{nft.TCP, "172.18.0.2:30004", client, "eth0", Delivered, "none", "169.254.169.3:30004", "default/local:http", "handed over to the balancer"},
			{nft.TCP, "172.18.0.2:30004", pod, "veth0", Delivered, "none", "10.244.0.1:8080", "default/local:http", "as from inside the cluster"},
		} {
			e := Explain(inspect.Read(s), nil, c.packet(f), node(f))
			t.Run(fmt.Sprintf("%s/%s %s from %s", f, c.proto, c.to, c.from), func(t *testing.T) { c.check(t, f, e) })
			led := node(f)
			led.NextHop = func(netip.Addr, uint32) netip.Addr { return hop }
			e = Explain(inspect.Read(s), nil, c.packet(f), led)
			t.Run(fmt.Sprintf("%s/%s %s from %s, led there", f, c.proto, c.to, c.from), func(t *testing.T) { c.check(t, f, e) })
		}
		away := node(f)
		away.NextHop = func(netip.Addr, uint32) netip.Addr { return in(f, "172.18.0.1") }
		for _, c := range []scenario{
			{nft.TCP, "10.96.0.1:80", nodeIP, "", Refused, "", "", "default/steered:http", "no route to the balancer behind the device"},
			{nft.TCP, "10.96.0.5:80", nodeIP, "", Refused, "", "", "default/host-handed:http", "no route to the balancer behind the device"},
			{nft.TCP, "172.18.0.2:30003", client, "eth0", Refused, "none", "10.96.0.3:80", "default/handed:http", "no route to the balancer behind the device"},
			{nft.TCP, "172.18.0.2:30004", client, "eth0", Refused, "none", "169.254.169.3:30004", "default/local:http", "no route to the balancer behind the device"},
			{nft.TCP, "10.96.0.3:80", nodeIP, "", Delivered, "all", "10.244.0.1:8080", "default/handed:http", "the only endpoint"},
		} {
			e := Explain(inspect.Read(s), nil, c.packet(f), away)
			t.Run(fmt.Sprintf("%s/%s %s from %s, device away", f, c.proto, c.to, c.from), func(t *testing.T) { c.check(t, f, e) })
		}
	}
}
