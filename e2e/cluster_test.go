// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// cluster is a lab with nftproxy on every node and a source of objects.
type cluster struct {
	*lab.Net
	lab.Source
	t    *testing.T
	spec lab.ProxySpec
}

// onEachSource runs a scenario from manifests and from the API server: one behaviour.
func onEachSource(t *testing.T, o lab.Options, scenario func(*testing.T, *cluster)) {
	lab.RequireRoot(t)
	t.Run("manifests", func(t *testing.T) { scenario(t, fromManifests(t, o)) })
	t.Run("api", func(t *testing.T) { scenario(t, fromAPI(t, o)) })
}

func fromManifests(t *testing.T, o lab.Options) *cluster {
	lab.RequireRoot(t)
	c := &cluster{Net: lab.Start(t, o), t: t}
	dir := lab.ManifestDir(t.TempDir())
	c.Source = dir
	// The limit on entries belongs to the host, a namespace cannot set it.
	c.spec = lab.ProxySpec{Kind: lab.NFTProxy, Manifests: string(dir), Flags: []string{
		"--conntrack-max-per-core=0", "--cluster-cidr=" + lab.ClusterCIDR(lab.IPv4).String() + "," + lab.ClusterCIDR(lab.IPv6).String()}}
	c.addNodes()
	return c
}

func fromAPI(t *testing.T, o lab.Options) *cluster {
	c := &cluster{Net: lab.Start(t, o), t: t}
	cp := shared.ControlPlane(t)
	c.Source = cp
	c.spec = lab.ProxySpec{Kind: lab.NFTProxy, API: lab.Must(c.Attach(cp))(t)}
	c.addNodes()
	return c
}

func (c *cluster) addNodes() {
	for _, n := range c.Nodes {
		c.apply(lab.NewNode(n))
	}
}

// start runs the proxies.
func (c *cluster) start() []*lab.Proxy {
	c.t.Helper()
	return lab.Must(lab.StartProxies(c.Net, c.spec))(c.t)
}

func (c *cluster) apply(parts ...any) {
	c.t.Helper()
	if err := c.Apply(c.t.Context(), lab.Objects(parts...)...); err != nil {
		c.t.Fatal(err)
	}
}

// serve starts a backend named after each pod.
func (c *cluster) serve(port uint16, pods []*lab.Pod, protos ...lab.Proto) {
	c.t.Helper()
	for _, p := range pods {
		lab.Must(p.Serve(p.Name, port, protos...))(c.t)
	}
}

// pods returns all pods, node by node.
func (c *cluster) pods() (out []*lab.Pod) {
	for _, n := range c.Nodes {
		out = append(out, n.Pods...)
	}
	return out
}

// snapshot reads a table of a node.
func (c *cluster) snapshot(n *lab.Node, f nft.Family) *nft.Snapshot {
	c.t.Helper()
	k, err := kernel.Open(n.FD())
	if err != nil {
		c.t.Fatal(err)
	}
	defer k.Close()
	s, err := k.Snapshot(f)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func endpoints(pods ...*lab.Pod) (out []lab.Endpoint) {
	for _, p := range pods {
		out = append(out, p.Endpoint())
	}
	return out
}
