// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// defaultDir is the directory of the cluster that make cluster starts.
const defaultDir = "/tmp/nftproxy-cluster"

// Images that the cluster itself needs, under the names that containerd and the manifests give them.
const (
	pauseImage   = "registry.k8s.io/pause:3.10"
	corednsImage = "registry.k8s.io/coredns/coredns:v1.13.1"
	podImage     = "nftproxy.test/pod:v1" // e2e/cluster/pod
	proxyImage   = "registry.k8s.io/kube-proxy:v1.36.3"
)

// node is a machine of the cluster: a network namespace with a kubelet and a containerd of its own.
type node struct {
	Name    string
	Zone    string
	Cluster string // the cluster's name
	Index   int    // from 1; its addresses are those of the lab's node of this number
}

// netns is the name of the node's network namespace.
func (n node) netns() string { return n.Cluster + "-" + n.Name }

// cgroup is the kubelet's cgroup root, in every hierarchy.
func (n node) cgroup() string { return "/" + n.Cluster + "/" + n.Name }

// ip is the node's address in the node network.
func (n node) ip(f lab.Family) netip.Addr { return lab.NodeIP(f, n.Index) }

// podCIDR is the range of the node's pods.
func (n node) podCIDR(f lab.Family) netip.Prefix { return lab.PodCIDR(f, n.Index) }

// planNodes is one control plane node and some workers, which are spread over two zones: the first half in a, like the
// control plane, the others in b.
func planNodes(cluster string, workers int) []node {
	nodes := []node{{Name: "control-plane", Zone: "a", Cluster: cluster, Index: 1}}
	for i := range workers {
		zone := "b"
		if i < workers/2 {
			zone = "a"
		}
		nodes = append(nodes, node{Name: fmt.Sprintf("worker-%d", i+1), Zone: zone, Cluster: cluster, Index: i + 2})
	}
	return nodes
}

// dir is the cluster's directory: everything that it writes is below, but what paths lists beside it.
type dir string

// name is the cluster's, and the beginning of the name of all that it makes outside of its directory: the same directory
// gives the same names, so a later start finds what an earlier one left.
func (d dir) name() string { return filepath.Base(string(d)) }

// switchNetns and clientNetns are the namespaces beside the nodes': the switch joins them, the client is outside of the
// cluster.
func (d dir) switchNetns() string { return d.name() + "-switch" }
func (d dir) clientNetns() string { return d.name() + "-client" }

// netnsName matches the names of a cluster's namespaces, and not those of a cluster whose name goes on after this one's.
func (d dir) netnsName() *regexp.Regexp {
	return regexp.MustCompile("^" + regexp.QuoteMeta(d.name()) + `-(control-plane|worker-\d+|switch|client)$`)
}

func (d dir) file(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// socket is where a node's containerd listens. The path of a socket has 107 bytes at most.
func (d dir) socket(n node) string { return d.file(n.Name, "containerd.sock") }

// adminConfig is the kubeconfig of the administrator.
func (d dir) adminConfig() string { return d.file("admin.kubeconfig") }
