// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	rtnl "github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/routing"
)

// beyond is a cluster in which a balancer sits behind a device of node 1: the namespace of node 3, where a second nftproxy
// balances as node 1, and whose pods are those of node 1. There is no other way to them:
//
//	client-1, node-2 --- eth0 node-1 mp0 --- pods0 node-3 (the balancer) --- pod-3-1, pod-3-2
//	172.18.0.11, fd00:18::11      .2              .1       of 10.244.3.0/24, fd00:244:3::/64
//
// The balancer has 169.254.169.1, fd69::1 (the peer) as source towards node 1, and 169.254.169.3, fd69::3 (local ETP) as
// its address for NodePorts. Towards pods it masquerades what was sent to a ClusterIP.
type beyond struct {
	*cluster
	node, balancer *lab.Node
	proxy          *lab.Proxy // of node
	services       int
	// peer is the balancer's source towards the node, virtual its address for NodePorts, gateway where the node reaches it.
	peer, virtual, gateway map[lab.Family]netip.Addr
	// endpoints, if not nil, replaces the addresses of endpoints of the Services that are added.
	endpoints func(lab.Family) netip.Addr
	// others is how many routes the proxy does not make because there are the same ones of others.
	others int
}

// subnetIP is an address of the masquerade subnet.
func subnetIP(f lab.Family, i int) netip.Addr {
	if f == lab.IPv4 {
		return netip.MustParseAddr(fmt.Sprintf("169.254.169.%d", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("fd69::%d", i))
}

// mp0 is node 1's own address on the device.
func mp0(f lab.Family) netip.Addr { return lab.PodGateway(f, 3).Next() }

// newBeyond starts both proxies. change may change the configuration of node 1's.
func newBeyond(t *testing.T, change func(*routing.Config)) *beyond {
	t.Helper()
	b := layBeyond(t)
	for _, f := range lab.Families() {
		b.peer[f], b.virtual[f], b.gateway[f] = subnetIP(f, 1), subnetIP(f, 3), lab.PodGateway(f, 3)
	}
	b.wire()
	var gateways []routing.NextHop
	for _, f := range lab.Families() {
		gateways = append(gateways, routing.NextHop{Addr: b.gateway[f]})
	}
	config := routing.Config{
		Masquerade: routing.Masquerade{Enabled: true},
		Steering:   routing.Steering{Enabled: true, Device: "mp0", Gateways: gateways},
		HandOff:    routing.HandOff{Enabled: true, Device: "mp0", Gateways: gateways, Local: true, Cluster: true},
	}
	if change != nil {
		change(&config)
	}
	b.startBoth(config)
	return b
}

// layBeyond is the cluster with backends, before the balancer is put in its place.
func layBeyond(t *testing.T) *beyond {
	t.Helper()
	c := fromManifests(t, lab.Options{Nodes: 3, PodsPerNode: 2})
	b := &beyond{
		cluster: c, node: c.Node(1), balancer: c.Node(3), services: 20,
		peer: map[lab.Family]netip.Addr{}, virtual: map[lab.Family]netip.Addr{}, gateway: map[lab.Family]netip.Addr{},
	}
	b.serve(8080, b.pods(), lab.TCP, lab.UDP)
	for _, n := range b.Nodes[:2] {
		lab.Must(n.Serve(n.Name, 8080, lab.TCP, lab.UDP))(t)
	}
	b.apply(serviceCIDR("kubernetes", bothCIDRs()...))
	return b
}

// wire puts the balancer behind node 1.
func (b *beyond) wire() {
	b.t.Helper()
	for _, f := range lab.Families() {
		b.do(b.node.Host, "ip -%s route del %s", familyFlag(f), lab.PodCIDR(f, 3))
	}
	b.attach()
	b.do(b.balancer.Host, "ip link set eth0 down")
	for _, f := range lab.Families() {
		pods := lab.PodCIDR(f, 3)
		b.do(b.balancer.Host, "ip -%s route replace default via %s dev %s", familyFlag(f), mp0(f), lab.PodBridge)
		for device, a := range map[string]netip.Addr{lab.PodBridge: b.peer[f], "lo": b.virtual[f]} {
			if err := b.balancer.AddAddr(device, netip.PrefixFrom(a, a.BitLen())); err != nil {
				b.t.Fatal(err)
			}
		}
		for h, device := range map[*lab.Host]string{b.Switch: "br0", b.Node(2).Host: "eth0", b.Client(1).Host: "eth0"} {
			if err := h.Route(pods, lab.NodeIP(f, 1), device); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	// What the balancer sends to the node it stands behind comes from the peer address.
	lab.Must(lab.NFT(b.balancer.Host, fmt.Sprintf(`table ip peer { chain c { type nat hook postrouting priority 90;
		ip daddr %s snat to %s; }; }
		table ip6 peer { chain c { type nat hook postrouting priority 90;
		ip6 daddr %s snat to %s; }; }`, lab.NodeIP(lab.IPv4, 1), b.peer[lab.IPv4], lab.NodeIP(lab.IPv6, 1), b.peer[lab.IPv6])))(b.t)
}

// familyFlag is the option of ip for a family, without the hyphen.
func familyFlag(f lab.Family) string { return strings.ToLower(f.String())[3:] }

// do runs a command that must succeed.
func (b *beyond) do(h *lab.Host, format string, args ...any) {
	b.t.Helper()
	lab.Must(h.Run(strings.Fields(fmt.Sprintf(format, args...))...))(b.t)
}

// attach makes the device, as a CNI does.
func (b *beyond) attach() {
	b.t.Helper()
	v := &rtnl.Veth{LinkAttrs: rtnl.LinkAttrs{Name: "mp0"}, PeerName: "mp0", PeerNamespace: rtnl.NsFd(b.balancer.FD())}
	if err := b.node.NL.LinkAdd(v); err != nil {
		b.t.Fatal(err)
	}
	b.do(b.balancer.Host, "ip link set mp0 master %s up", lab.PodBridge)
	b.up()
}

// up sets the device up with its addresses and routes, as a CNI does.
func (b *beyond) up() {
	b.t.Helper()
	b.do(b.node.Host, "ip link set mp0 up")
	for _, f := range lab.Families() {
		pods, fam := lab.PodCIDR(f, 3), familyFlag(f)
		b.do(b.node.Host, "ip -%s addr replace %s/%d dev mp0 noprefixroute %s", fam, mp0(f), pods.Bits(), map[lab.Family]string{lab.IPv6: "nodad"}[f])
		// Pods are reached through the balancer and not across the bridge, as their answers come back.
		b.do(b.node.Host, "ip -%s route replace %s dev mp0", fam, lab.PodGateway(f, 3))
		b.do(b.node.Host, "ip -%s route replace %s via %s dev mp0", fam, pods, lab.PodGateway(f, 3))
	}
}

// startBoth runs the proxy of node 1 and the balancer, both from the same manifests.
func (b *beyond) startBoth(config routing.Config) {
	b.t.Helper()
	own, balancer := b.spec, b.spec
	own.Flags = append(own.Flags[:len(own.Flags):len(own.Flags)], "--nftproxy-config="+ownConfig(b.t, config))
	balancer.Config = map[string]any{
		"hostnameOverride":  b.node.Name,
		"nodePortAddresses": []string{b.virtual[lab.IPv4].String() + "/32", b.virtual[lab.IPv6].String() + "/128"},
		"nftables":          map[string]any{"masqueradeAll": true},
	}
	lab.Must(lab.StartProxy(b.balancer, balancer))(b.t)
	b.proxy = lab.Must(lab.StartProxy(b.node, own))(b.t)
	want := -b.others
	for _, on := range []bool{config.Steering.Enabled, config.HandOff.Local, config.HandOff.Cluster || config.HandOff.HostClusterIPs} {
		if on {
			want += 2 // families
		}
	}
	for end := time.Now().Add(lab.HangLimit); ; time.Sleep(5 * time.Millisecond) {
		got := lab.Must(b.node.Run("ip", "-4", "route", "show", "table", "all", "proto", "110"))(b.t) +
			lab.Must(b.node.Run("ip", "-6", "route", "show", "table", "all", "proto", "110"))(b.t)
		if strings.Count(got, " via ") == want {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("routes of the node:\n%s", got)
		}
	}
}

// here makes an endpoint of a pod behind the balancer, which is one of node 1.
func (b *beyond) here(p *lab.Pod) lab.Endpoint {
	e := p.Endpoint()
	e.Node = b.node.Name
	return e
}

// service is a Service of the lab and how to reach it.
type service struct {
	*corev1.Service
	index int
}

func (s service) vip(f lab.Family) netip.AddrPort { return at(lab.ClusterIP(f, s.index), 80) }
func (s service) nodePort(f lab.Family) netip.AddrPort {
	return at(lab.NodeIP(f, 1), uint16(30000+2*s.index))
}
func (s service) lb(f lab.Family) netip.AddrPort { return at(lab.LoadBalancerIP(f, s.index), 80) }

// add applies a LoadBalancer Service with TCP and UDP, and waits until the balancer and the node have it.
func (b *beyond) add(change func(*corev1.Service), eps ...lab.Endpoint) service {
	b.t.Helper()
	s := service{index: b.services}
	b.services++
	s.Service = lab.WithLoadBalancer(lab.NewService(fmt.Sprintf("svc-%d", s.index), s.index,
		lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)), int32(30000+2*s.index), s.index)
	s.Spec.Ports[1].NodePort = s.Spec.Ports[0].NodePort // TCP and UDP may have the same
	if change != nil {
		change(s.Service)
	}
	slices := lab.NewSlices(s.Service, eps...)
	for i, f := range lab.Families() {
		if b.endpoints != nil {
			slices[i].Endpoints[0].Addresses = []string{b.endpoints(f).String()}
		}
	}
	b.apply(s.Service, slices)
	bin := lab.Must(lab.NftproxyBinary())(b.t)
	for end := time.Now().Add(lab.HangLimit); ; time.Sleep(10 * time.Millisecond) {
		all := true
		for _, n := range []*lab.Node{b.node, b.balancer} {
			all = all && knows(lab.Must(n.Run(bin, "dump", "-o", "json"))(b.t), s.Name, 4)
		}
		if all {
			return s
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s is not served", s.Name)
		}
	}
}

// explains asserts what explain says, in part, of a packet of a sender to an address; iif is the device that it comes in
// by, empty for a process of node 1.
func (b *beyond) explains(to netip.AddrPort, from netip.Addr, iif, want string) {
	b.t.Helper()
	args := []string{lab.Must(lab.NftproxyBinary())(b.t), "explain", "tcp", to.String(), "--from", from.String()}
	if iif != "" {
		args = append(args, "--iif", iif)
	}
	if got := inquire(b.t, b.node.Host, args...); !strings.Contains(got, want) {
		b.t.Errorf("explain says, without %q:\n%s", want, got)
	}
}

// knows tells whether a dump has all ports of a Service, and nothing is wrong with them.
func knows(dump, name string, ports int) bool {
	var d struct {
		Services []struct {
			Service  string   `json:"service"`
			Problems []string `json:"problems"`
		} `json:"servicePorts"`
	}
	if json.Unmarshal([]byte(dump), &d) != nil {
		return false
	}
	n := 0
	for _, s := range d.Services {
		if s.Service == name && len(s.Problems) == 0 {
			n++
		}
	}
	return n == ports
}

func localETP(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
func localITP(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

// hop is what becomes of a connection, in names that are the same in both families (see names).
type hop struct {
	name    string
	from    *lab.Host
	to      func(lab.Family) netip.AddrPort
	verdict lab.Verdict // empty is Answered
	backend string
	source  string // as the backend sees it
	// What the connection tracking of the node and of the balancer have of it, as "original reply"; the ports of
	// clients are left out. The balancer's is empty where it has none.
	node, balancer string
	// back is what the node has of it once more, where the balancer sends it back.
	back string
}

// follow sends a connection over each protocol and family and asserts its way.
func (b *beyond) follow(s service, hops ...hop) {
	b.t.Helper()
	for _, h := range hops {
		for _, f := range lab.Families() {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
				b.t.Run(fmt.Sprintf("%s/%s/%s", h.name, f, proto), func(t *testing.T) { b.one(t, s, h, f, proto) })
			}
		}
	}
}

func (b *beyond) one(t *testing.T, s service, h hop, f lab.Family, proto lab.Proto) {
	p := lab.Probe{From: h.from, Proto: proto, To: h.to(f)}
	if h.verdict != "" {
		if h.verdict == lab.Dropped {
			p.Timeout = 300 * time.Millisecond
		}
		if r := p.Send(); r.Verdict != h.verdict {
			t.Errorf("%s, want %s", r, h.verdict)
		}
		return
	}
	conn, err := p.Open()
	if err != nil {
		t.Fatalf("%s: %v", conn.Result, err)
	}
	defer conn.Close()
	names := b.names(f, s)
	if got := names.of(conn.Source.Addr()); conn.Backend != h.backend || got != h.source {
		t.Errorf("%s saw %s (%s), want %s and %s", conn.Backend, got, conn.Source, h.backend, h.source)
	}
	if got := names.flow(t, b.node, proto, func(o, _ ends) bool { return o.src == conn.Local && o.dst == p.To }); got != h.node {
		t.Errorf("the node has %q, want %q", got, h.node)
	}
	if got := names.flow(t, b.balancer, proto, func(_, r ends) bool { return r.dst == conn.Source }); got != h.balancer {
		t.Errorf("the balancer has %q, want %q", got, h.balancer)
	}
	if got := names.flow(t, b.node, proto, func(o, _ ends) bool { return o.src == conn.Source }); h.back != "" && got != h.back {
		t.Errorf("the node has %q of the way back, want %q", got, h.back)
	}
	if r := conn.Ping(lab.DefaultTimeout); r.Verdict != lab.Answered || r.Backend != h.backend {
		t.Errorf("later: %s", r)
	}
}

// ends are those of one direction of a connection.
type ends struct{ src, dst netip.AddrPort }

// named gives addresses names.
type named map[netip.Addr]string

func (b *beyond) names(f lab.Family, s service) named {
	n := named{
		lab.ClientIP(f, 1): "client", lab.NodeIP(f, 1): "node", lab.NodeIP(f, 2): "node-2", mp0(f): "mp0",
		lab.PodGateway(f, 3): "gateway", b.peer[f]: "peer", subnetIP(f, 2): "host", b.virtual[f]: "etp",
		lab.ClusterIP(f, s.index): "vip", lab.LoadBalancerIP(f, s.index): "lb",
	}
	if b.others > 0 { // the device has both addresses, and IPv4 prefers the one in the subnet of the next hop
		n[subnetIP(f, 2)] = "mp0"
	}
	if b.endpoints != nil {
		n[lab.NodeIP(f, 61)], n[lab.NodeIP(f, 62)] = "own", "far"
	}
	for _, p := range b.pods() {
		n[p.IP(f)] = p.Name
	}
	return n
}

func (n named) of(a netip.Addr) string {
	if name, ok := n[a]; ok {
		return name
	}
	return a.String()
}

// at is an address with its port; NodePorts, which differ from Service to Service, are "np".
func (n named) at(a netip.AddrPort) string {
	if a.Port() >= 30000 && a.Port() < 30200 {
		return n.of(a.Addr()) + ":np"
	}
	return fmt.Sprintf("%s:%d", n.of(a.Addr()), a.Port())
}

// flow looks a connection up in the connection tracking of a node.
func (n named) flow(t *testing.T, node *lab.Node, proto lab.Proto, is func(original, reply ends) bool) string {
	t.Helper()
	c, err := conntrack.Dial(&netlink.Config{NetNS: node.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	flows, err := c.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	number := map[lab.Proto]uint8{lab.TCP: 6, lab.UDP: 17}[proto]
	for i := range flows {
		o, r := endsOf(&flows[i].TupleOrig), endsOf(&flows[i].TupleReply)
		if flows[i].TupleOrig.Proto.Protocol == number && is(o, r) {
			found = append(found, fmt.Sprintf("%s>%s %s>%s", n.of(o.src.Addr()), n.at(o.dst), n.at(r.src), n.of(r.dst.Addr())))
		}
	}
	return strings.Join(found, ", ")
}

func endsOf(t *conntrack.Tuple) ends {
	return ends{
		netip.AddrPortFrom(t.IP.SourceAddress, t.Proto.SourcePort),
		netip.AddrPortFrom(t.IP.DestinationAddress, t.Proto.DestinationPort),
	}
}

// show prints what there is, when a test failed and NFTPROXY_SHOW is set.
func (b *beyond) show() {
	b.t.Cleanup(func() {
		if !b.t.Failed() || os.Getenv("NFTPROXY_SHOW") == "" {
			return
		}
		for _, n := range []*lab.Node{b.node, b.balancer} {
			for _, c := range []string{"nft list ruleset", "ip addr", "ip route show table all", "ip -6 route show table all", "ip rule"} {
				text, _ := n.Run(strings.Fields(c)...)
				b.t.Logf("%s: %s\n%s", n.Name, c, text)
			}
		}
	})
}
