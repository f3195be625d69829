// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package lab builds a small cluster out of network namespaces: nodes, pods, outside clients, a real etcd and
// kube-apiserver, and a proxy on each node, nftproxy or real kube-proxy. Backends answer with their own name and the
// address they see, so that a test asserts which endpoint was reached, and as whom.
//
// # The network
//
//	                            switch: 172.18.0.1, fd00:18::1   (API server :6443)
//	       +------------------------+--------+----------------------------+
//	       |                        |                                     |
//	  eth0 172.18.0.11         eth0 172.18.0.12                      eth0 172.18.0.201
//	       fd00:18::11              fd00:18::12                           fd00:18::201
//	     node-1                   node-2                                client-1
//	  pods0 10.244.1.1         pods0 10.244.2.1                routes: pods via their nodes,
//	        fd00:244:1::1            fd00:244:2::1             ClusterIPs, LoadBalancer IPs and
//	    |     |     |            |     |     |                 external IPs via node-1 (Client.Via)
//	  veth1 veth2 veth3        veth1 veth2 veth3
//	    |     |     |            |     |     |
//	pod-1-1  -2    -3        pod-2-1  -2    -3
//	10.244.1.11 .12 .13      10.244.2.11 .12 .13
//	fd00:244:1::11 ...       fd00:244:2::11 ...
//
// More of each (Options) are numbered on. IPv6 addresses read like their IPv4 twins. Further ranges, both functions of a
// Family and an index (ClusterIP, LoadBalancerIP, ExternalIP):
//
//	ClusterIPs       10.96.0.0/16      fd00:10:96::/112   ClusterIP(f, 1) is the API server's Service
//	LoadBalancer IPs 203.0.113.0/24    fd00:113::/112
//	external IPs     198.51.100.0/24   fd00:100::/112
//	pods             10.244.0.0/16     fd00:244::/32      PodCIDR(f, n) of node n: 10.244.n.0/24, fd00:244:n::/64
//
// Nodes forward and have a default route to the switch (Options.NoDefaultRoute); the switch answers ICMP host unreachable
// for every address that does not exist. So a packet to an address of a Service that no proxy took is "unreachable", and a packet
// that a proxy dropped is "dropped": the two cannot be mixed up. ICMP rate limits, redirects and duplicate address detection
// are off; rp_filter is loose. Nothing is masqueraded by the lab itself.
//
// A pod reaches everything, its neighbours included, through its node, as with most CNIs. Options.Routed takes the bridge
// away and gives each pod a veth with a route.
//
// Namespaces have no names: they vanish with the process, also when it is killed. Host.Path gives a path for nsenter --net.
//
// # A test
//
//	n := lab.Start(t, lab.Options{})                              // 20 ms; closed by t.Cleanup
//	pod := n.Pod(2, 1)
//	lab.Must(pod.Serve("web", 8080, lab.TCP, lab.UDP))(t)         // both families
//	r := n.Client(1).Ask(lab.TCP, pod.At(lab.IPv4, 8080))         // one connection
//	if !r.SawAs("web", n.Client(1).IP(lab.IPv4)) { t.Error(r) }   // "web from 172.18.0.201:40000"
//
//	p := lab.Probe{From: n.Pod(1, 1).Host, Proto: lab.TCP, To: vip, Timeout: 300 * time.Millisecond}
//	p.Send()               // Result: Verdict Answered, Refused, Unreachable, Dropped, Broken; Backend, Source, Took
//	p.Repeat(1000, 8)      // Tally: counts by verdict, backend, source (20,000 connections a second)
//	p.Storm(ctx, 8, nil)   // until ctx ends
//	lab.SendAll(probes, 64)
//	conn, err := p.Open()  // a connection that is kept; conn.Ping(timeout)
//
// Options.Clients, Host.AddAddr, Host.Route, Client.Via, Host.Sysctl and Host.NL change the network; lab.NFT(host, args...)
// and Host.Run run programs in it; Host.Get fetches a URL from inside.
//
// A backend on a node's own address (n.Node(1).Serve) is a host-networked endpoint. SCTP works without SCTP sockets, by raw
// INIT and INIT ACK; see sctp.go. Host.AnyIP with a nameless Listen makes thousands of endpoints of one listener.
//
// # Services
//
//	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)  // ClusterIP(f, 10) port 80
//	slices := lab.NewSlices(svc, n.Pod(1, 1).Endpoint(), n.Pod(2, 1).Endpoint())             // one slice per family
//	node := lab.NewNode(n.Node(1), "topology.kubernetes.io/zone", "a")
//	err := source.Apply(ctx, lab.Objects(svc, slices, node)...)
//
// WithLoadBalancer and WithExternalIP make the other types; Endpoint.With sets conditions. A Source is either a directory,
//
//	source := lab.ManifestDir(t.TempDir())
//	proxy := lab.Must(lab.StartProxy(n.Node(1), lab.ProxySpec{Kind: lab.NFTProxy, Manifests: string(source)}))(t)
//
// or a control plane, which is the source itself:
//
//	var shared lab.Shared                                          // one per test binary; see Shared
//	cp := shared.ControlPlane(t)                                   // 2 s the first time; empty for each test
//	api := lab.Must(n.Attach(cp))(t)                               // reachable in this network; api.Cut, api.Restore
//	proxies := lab.Must(lab.StartProxies(n, lab.ProxySpec{Kind: lab.KubeProxy, API: api}))(t)   // on every node
//
// A proxy that runs from the API server needs the Node objects of the network. StartProxy returns when the proxy is healthy,
// serves the Service of the API server, and answers ProxySpec.Ready. Proxy.Stop is SIGTERM, Kill is SIGKILL, Restart starts
// it anew; logs of a failed test are shown. cp.Client is client-go's; cp.Kubectl runs kubectl.
//
// The binary under test is bin/nftproxy, or $NFTPROXY_BIN. The peers come from 'make peers', or from $NFTPROXY_PEERS.
package lab
