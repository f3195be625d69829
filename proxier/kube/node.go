// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
)

// Node is what the proxy uses of the Node that it runs on. It is immutable.
type Node struct {
	Name Name // without a namespace
	UID  string
	// Addrs are the node's addresses, internal ones before external ones, in the order of the object. The first one
	// of a family is the node's address in it.
	Addrs []netip.Addr
	// PodCIDRs are the ranges of the pods on this node, masked.
	PodCIDRs []netip.Prefix
	// Zone is the label topology.kubernetes.io/zone.
	Zone string
	// Deleting tells that the object is being deleted, ToBeDeleted that the cluster autoscaler has chosen the node for
	// removal (taint ToBeDeletedByClusterAutoscaler).
	Deleting, ToBeDeleted bool
}

// Ref returns kind and name.
func (n *Node) Ref() Ref { return Ref{KindNode, n.Name} }

// Addr returns the node's address of a family, the zero Addr if it has none.
func (n *Node) Addr(ipv6 bool) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is6() == ipv6 {
			return a
		}
	}
	return netip.Addr{}
}

// Eligible tells whether load balancers should send traffic to the node (KEP-3836): a node that is being removed
// should get no new connections.
func (n *Node) Eligible() bool { return n != nil && !n.Deleting && !n.ToBeDeleted }

// Equal tells whether the proxy would do the same for both.
func (n *Node) Equal(o *Node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.Name == o.Name && n.UID == o.UID && n.Zone == o.Zone &&
		n.Deleting == o.Deleting && n.ToBeDeleted == o.ToBeDeleted &&
		slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

func (n *Node) same(o Object) bool {
	other, ok := o.(*Node)
	return ok && n.Equal(other)
}

// ServiceCIDR is a range, or one per family, that ClusterIPs are taken from. It is immutable.
type ServiceCIDR struct {
	Name     Name // without a namespace
	Prefixes []netip.Prefix
}

// Ref returns kind and name.
func (c *ServiceCIDR) Ref() Ref { return Ref{KindServiceCIDR, c.Name} }

// Equal tells whether the proxy would do the same for both.
func (c *ServiceCIDR) Equal(o *ServiceCIDR) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Name == o.Name && slices.Equal(c.Prefixes, o.Prefixes)
}

func (c *ServiceCIDR) same(o Object) bool {
	other, ok := o.(*ServiceCIDR)
	return ok && c.Equal(other)
}
