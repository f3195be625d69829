// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// toBeDeleted is the taint with which the cluster autoscaler marks a node that it is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// FromNode converts a Node. Each error is a *FieldError, whose field was left out. The object is not kept nor changed.
func FromNode(o *v1.Node) (*Node, []error) {
	p := problems{ref: Ref{KindNode, Name{"", o.Name}}}
	n := Node{
		Name:        Name{"", o.Name},
		UID:         string(o.UID),
		Zone:        o.Labels[v1.LabelTopologyZone],
		Deleting:    o.DeletionTimestamp != nil,
		ToBeDeleted: slices.ContainsFunc(o.Spec.Taints, func(t v1.Taint) bool { return t.Key == toBeDeleted }),
	}
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, in := range o.Status.Addresses {
			if in.Type != kind {
				continue
			}
			a, err := parseAddr(in.Address)
			if err != nil {
				p.add(err, in.Address, "status.addresses[%d].address", i)
				continue
			}
			n.Addrs = appendNew(n.Addrs, a)
		}
	}
	list := o.Spec.PodCIDRs
	if len(list) == 0 && o.Spec.PodCIDR != "" {
		list = []string{o.Spec.PodCIDR}
	}
	for i, text := range list {
		prefix, err := parsePrefix(text)
		if err != nil {
			p.add(err, text, "spec.podCIDRs[%d]", i)
			continue
		}
		n.PodCIDRs = appendNew(n.PodCIDRs, prefix)
	}
	return &n, p.errs
}

// FromServiceCIDR converts a ServiceCIDR. Each error is a *FieldError, whose field was left out. The object is not
// kept nor changed.
func FromServiceCIDR(o *networking.ServiceCIDR) (*ServiceCIDR, []error) {
	p := problems{ref: Ref{KindServiceCIDR, Name{"", o.Name}}}
	c := ServiceCIDR{Name: Name{"", o.Name}}
	for i, text := range o.Spec.CIDRs {
		prefix, err := parsePrefix(text)
		if err != nil {
			p.add(err, text, "spec.cidrs[%d]", i)
			continue
		}
		c.Prefixes = appendNew(c.Prefixes, prefix)
	}
	return &c, p.errs
}
