// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// buildNetwork makes the namespaces and joins them.
func buildNetwork(d dir, nodes []node) error {
	for _, ns := range append(netnsOf(nodes), d.switchNetns(), d.clientNetns()) {
		if err := run("ip", "netns", "add", ns); err != nil {
			return err
		}
		if err := sysctls(ns, hostSysctls()); err != nil {
			return err
		}
		if err := ipBatch(ns, "link set lo up"); err != nil {
			return err
		}
	}
	if err := buildSwitch(d.switchNetns()); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := sysctls(n.netns(), routerSysctls()); err != nil {
			return err
		}
		if err := attach(d, n.netns(), fmt.Sprintf("port%d", n.Index), n.ip); err != nil {
			return err
		}
		if err := ipBatch(n.netns(), routes(nodes, n.Name)...); err != nil {
			return err
		}
	}
	client := func(f lab.Family) netip.Addr { return lab.ClientIP(f, 1) }
	if err := attach(d, d.clientNetns(), "client", client); err != nil {
		return err
	}
	return ipBatch(d.clientNetns(), routes(nodes, "")...)
}

// netnsOf are the names of the nodes' namespaces.
func netnsOf(nodes []node) (names []string) {
	for _, n := range nodes {
		names = append(names, n.netns())
	}
	return names
}

// buildSwitch makes the bridge of the node network. It forwards nothing: what it has no route for is answered with ICMP
// unreachable.
func buildSwitch(ns string) error {
	if err := sysctls(ns, routerSysctls()); err != nil {
		return err
	}
	lines := []string{"link add br0 type bridge mcast_snooping 0", "link set br0 up"}
	for _, f := range lab.Families() {
		lines = append(lines, fmt.Sprintf("addr add %s/%d dev br0 nodad", lab.GatewayIP(f), lab.NodeCIDR(f).Bits()))
	}
	return ipBatch(ns, lines...)
}

// attach joins a namespace to the node network as eth0.
func attach(d dir, ns, port string, ip func(lab.Family) netip.Addr) error {
	err := ipBatch(d.switchNetns(), fmt.Sprintf("link add %s master br0 type veth peer name eth0 netns %s", port, ns),
		"link set "+port+" up")
	if err != nil {
		return err
	}
	lines := []string{"link set eth0 up"}
	for _, f := range lab.Families() {
		lines = append(lines, fmt.Sprintf("addr add %s/%d dev eth0 nodad", ip(f), lab.NodeCIDR(f).Bits()))
	}
	return ipBatch(ns, lines...)
}

// routes leads to the pods of all nodes but the one itself, and everything else to the switch.
func routes(nodes []node, self string) (lines []string) {
	for _, f := range lab.Families() {
		lines = append(lines, fmt.Sprintf("route add %s via %s dev eth0", everything(f), lab.GatewayIP(f)))
		for _, n := range nodes {
			if n.Name != self {
				lines = append(lines, fmt.Sprintf("route add %s via %s dev eth0", n.podCIDR(f), n.ip(f)))
			}
		}
	}
	return lines
}

// everything is the prefix of the default route. Its name does not give ip the family.
func everything(f lab.Family) string {
	if f == lab.IPv6 {
		return "::/0"
	}
	return "0.0.0.0/0"
}

// ipBatch runs lines of ip(8) in a namespace.
func ipBatch(ns string, lines ...string) error {
	return runInput(strings.Join(lines, "\n")+"\n", "ip", "-netns", ns, "-batch", "-")
}

// hostSysctls apply to every namespace, and to interfaces made later. Duplicate address detection takes a second, and
// addresses here are unique by plan. A redirect would lead a pod round the proxy.
func hostSysctls() (lines []string) {
	for _, scope := range []string{"all", "default"} {
		lines = append(lines,
			"net.ipv6.conf."+scope+".accept_dad=0", "net.ipv6.conf."+scope+".accept_ra=0",
			"net.ipv6.conf."+scope+".accept_redirects=0", "net.ipv4.conf."+scope+".accept_redirects=0",
			"net.ipv4.conf."+scope+".send_redirects=0", "net.ipv4.conf."+scope+".rp_filter=2")
	}
	return lines
}

// routerSysctls make a namespace forward.
func routerSysctls() []string {
	return []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.forwarding=1"}
}

// sysctls writes settings in a namespace: /proc/sys/net shows those of the reader's.
func sysctls(ns string, lines []string) error {
	return run(append([]string{"nsenter", "--net=/run/netns/" + ns, "sysctl", "-qw"}, lines...)...)
}
