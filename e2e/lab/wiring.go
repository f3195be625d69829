// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// build makes all namespaces, then joins them. The order is from the middle outwards: an interface needs its bridge.
func (n *Net) build(o Options) error {
	names := []string{"switch"}
	for i := range o.Nodes {
		names = append(names, fmt.Sprintf("node-%d", i+1))
		for p := range o.PodsPerNode {
			names = append(names, fmt.Sprintf("pod-%d-%d", i+1, p+1))
		}
	}
	for k := range o.Clients {
		names = append(names, fmt.Sprintf("client-%d", k+1))
	}
	hosts, err := n.hosts(names)
	if err != nil {
		return err
	}
	n.assign(o, hosts)
	if err := n.wireSwitch(); err != nil {
		return err
	}
	for _, node := range n.Nodes {
		if err := n.wireNode(o, node); err != nil {
			return err
		}
	}
	for _, c := range n.Clients {
		if err := n.wireClient(c); err != nil {
			return err
		}
	}
	return nil
}

// assign gives the hosts, in the order of their names, their place in the Net.
func (n *Net) assign(o Options, hosts []*Host) {
	next := func() *Host {
		h := hosts[0]
		hosts = hosts[1:]
		return h
	}
	n.Switch = next()
	for i := range o.Nodes {
		node := &Node{Host: next(), Index: i + 1, PodCIDR: map[Family]netip.Prefix{}}
		for p := range o.PodsPerNode {
			node.Pods = append(node.Pods, &Pod{Host: next(), Node: node, Index: p + 1, Link: fmt.Sprintf("veth%d", p+1)})
		}
		n.Nodes = append(n.Nodes, node)
	}
	for k := range o.Clients {
		n.Clients = append(n.Clients, &Client{Host: next(), Index: k + 1})
	}
	for _, f := range Families() {
		n.Switch.addr[f] = GatewayIP(f)
		for _, node := range n.Nodes {
			node.addr[f] = NodeIP(f, node.Index)
			node.PodCIDR[f] = PodCIDR(f, node.Index)
			for _, pod := range node.Pods {
				pod.addr[f] = PodIP(f, node.Index, pod.Index)
			}
		}
		for _, c := range n.Clients {
			c.addr[f] = ClientIP(f, c.Index)
		}
	}
}

// wireSwitch makes the bridge of the node network.
func (n *Net) wireSwitch() error {
	if err := n.Switch.sysctls(routerSettings()); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := n.Switch.bridge("br0"); err != nil {
		return err
	}
	for _, f := range Families() {
		if err := n.Switch.addAddr("br0", netlink.Addr{IPNet: ipNet(netip.PrefixFrom(GatewayIP(f), NodeCIDR(f).Bits()))}); err != nil {
			return err
		}
		for _, node := range n.Nodes {
			// The route waits for no carrier and no neighbour: it may come before the node does.
			if err := n.Switch.Route(node.PodCIDR[f], node.IP(f), "br0"); err != nil {
				return err
			}
		}
	}
	return n.Switch.refuseForwarding("br0")
}

// attach joins a host to the node network as eth0.
func (n *Net) attach(h *Host) error {
	if err := n.Switch.veth(h.Name, "br0", h); err != nil {
		return err
	}
	for _, f := range Families() {
		if err := h.addAddr("eth0", netlink.Addr{IPNet: ipNet(netip.PrefixFrom(h.IP(f), NodeCIDR(f).Bits()))}); err != nil {
			return err
		}
	}
	return nil
}

func (n *Net) wireNode(o Options, node *Node) error {
	if err := node.sysctls(routerSettings()); err != nil {
		return fmt.Errorf("%s: %w", node.Name, err)
	}
	if err := n.attach(node.Host); err != nil {
		return err
	}
	for _, f := range Families() {
		if !o.NoDefaultRoute {
			if err := node.Route(everything(f), GatewayIP(f), "eth0"); err != nil {
				return err
			}
		}
		for _, peer := range n.Nodes {
			if peer == node {
				continue
			}
			if err := node.Route(peer.PodCIDR[f], peer.IP(f), "eth0"); err != nil {
				return err
			}
		}
	}
	return node.wirePods(o)
}

// wirePods attaches the pods of a node. A pod has its address as a single one and reaches everything, its neighbours
// included, through the node: on a shared segment the answer of a pod to its neighbour would not pass the node again, and
// so not be translated back. (Other clusters have br_netfilter for that; see Options.BridgeNetfilter.)
func (node *Node) wirePods(o Options) error {
	if o.BridgeNetfilter {
		if err := node.sysctls(bridgeNetfilter("1")); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	if !o.Routed {
		if err := node.bridge(PodBridge); err != nil {
			return err
		}
		for _, f := range Families() {
			own := netip.PrefixFrom(PodGateway(f, node.Index), node.PodCIDR[f].Bits())
			if err := node.addAddr(PodBridge, netlink.Addr{IPNet: ipNet(own)}); err != nil {
				return err
			}
		}
	}
	for _, pod := range node.Pods {
		if err := node.wirePod(pod, o); err != nil {
			return err
		}
	}
	return nil
}

func (node *Node) wirePod(pod *Pod, o Options) error {
	master := PodBridge
	if o.Routed {
		master = ""
	}
	if err := node.veth(pod.Link, master, pod.Host); err != nil {
		return err
	}
	if o.BridgeNetfilter {
		if err := node.hairpin(pod.Link); err != nil {
			return err
		}
	}
	for _, f := range Families() {
		gateway := PodGateway(f, node.Index)
		if o.Routed {
			if err := node.addAddr(pod.Link, netlink.Addr{IPNet: ipNet(single(gateway))}); err != nil {
				return err
			}
			if err := node.Route(single(pod.IP(f)), netip.Addr{}, pod.Link); err != nil {
				return err
			}
		}
		if err := pod.addAddr("eth0", netlink.Addr{IPNet: ipNet(single(pod.IP(f)))}); err != nil {
			return err
		}
		if err := pod.Route(single(gateway), netip.Addr{}, "eth0"); err != nil {
			return err
		}
		if err := pod.Route(everything(f), gateway, "eth0"); err != nil {
			return err
		}
	}
	return nil
}

// wireClient gives an outside client routes to the pods and, through the first node, to all addresses of Services.
func (n *Net) wireClient(c *Client) error {
	if err := n.attach(c.Host); err != nil {
		return err
	}
	for _, f := range Families() {
		if err := c.Route(everything(f), GatewayIP(f), "eth0"); err != nil {
			return err
		}
		for _, node := range n.Nodes {
			if err := c.Route(node.PodCIDR[f], node.IP(f), "eth0"); err != nil {
				return err
			}
		}
	}
	return c.Via(n.Nodes[0])
}

// Via makes a node the client's way to ClusterIPs, LoadBalancer IPs and external IPs.
func (c *Client) Via(node *Node) error {
	for _, f := range Families() {
		for _, dst := range []netip.Prefix{ServiceCIDR(f), LoadBalancerCIDR(f), ExternalCIDR(f)} {
			if err := c.Route(dst, node.IP(f), "eth0"); err != nil {
				return err
			}
		}
	}
	return nil
}

// bridge makes a bridge that is up.
func (h *Host) bridge(name string) error {
	// Snooping wants a multicast querier, which is missing here, to not lose neighbour solicitations.
	snooping := false
	b := &netlink.Bridge{LinkAttrs: linkAttrs(name), MulticastSnooping: &snooping}
	if err := h.NL.LinkAdd(b); err != nil {
		return fmt.Errorf("%s: bridge %s: %w", h.Name, name, err)
	}
	return h.up(name)
}

// hairpin lets a bridge port send frames back to where they came from.
func (h *Host) hairpin(port string) error {
	l, err := h.NL.LinkByName(port)
	if err != nil {
		return fmt.Errorf("%s: link %s: %w", h.Name, port, err)
	}
	if err := h.NL.LinkSetHairpin(l, true); err != nil {
		return fmt.Errorf("%s: hairpin mode of %s: %w", h.Name, port, err)
	}
	return nil
}

// veth makes a pair of interfaces: name on h, in the bridge master unless that is empty, and eth0 on peer. It is made in
// place, since moving an interface between namespaces waits for two RCU grace periods.
func (h *Host) veth(name, master string, peer *Host) error {
	v := &netlink.Veth{LinkAttrs: linkAttrs(name), PeerName: "eth0", PeerNamespace: netlink.NsFd(peer.FD())}
	if master != "" {
		m, err := h.NL.LinkByName(master)
		if err != nil {
			return fmt.Errorf("%s: bridge %s: %w", h.Name, master, err)
		}
		v.MasterIndex = m.Attrs().Index
	}
	if err := h.NL.LinkAdd(v); err != nil {
		return fmt.Errorf("%s: veth %s: %w", h.Name, name, err)
	}
	return peer.up("eth0")
}

func linkAttrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	a.Flags = net.FlagUp
	return a
}
