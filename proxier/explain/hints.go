// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// most is how many neighbours a hint names.
const most = 5

// hint says what may help where a packet does not reach an endpoint.
func (d *Describer) hint(out *Explanation, other *inspect.Ruleset) {
	add := func(format string, args ...any) { out.Hints = append(out.Hints, fmt.Sprintf(format, args...)) }
	if d.port != nil {
		for _, p := range d.port.Problems {
			add("elements of the table do not fit together: %s", p)
		}
		d.hintService(out.Outcome, add)
		return
	}
	if out.Outcome == Delivered {
		return
	}
	d.hintAddress(add)
	d.hintNodePort(add)
	if other != nil {
		d.hintFamily(servicesOf(other), add)
	}
}

// hintService is about a Service that is known but does not serve.
func (d *Describer) hintService(o Outcome, add func(string, ...any)) {
	slicesOf := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", d.port.Namespace, d.port.Service)
	switch {
	case o == Refused:
		add("no pod is selected, or none is ready: compare spec.selector with the pods' labels, then look at their readiness; %s", slicesOf)
	case o == Dropped && d.frontend.State == inspect.Dropped, o == Dropped && d.frontend.State == inspect.Internal:
		policy := "externalTrafficPolicy"
		if d.frontend.Kind == "ClusterIP" {
			policy = "internalTrafficPolicy"
		}
		add("set %s to Cluster, run an endpoint on this node, or send to a node that has one; %s -o wide", policy, slicesOf)
	case o == Dropped && d.frontend.Restricted:
		add("add the client's range to spec.loadBalancerSourceRanges of Service %s/%s", d.port.Namespace, d.port.Service)
	}
}

// hintAddress is about an address, or a port of it, that no Service has. The nearest Service has most of its address in
// common with it, from the beginning.
func (d *Describer) hintAddress(add func(string, ...any)) {
	to := d.packet.To
	var same, near, behind []string
	nearest, distance := "", ""
	for k, e := range d.at {
		if !k.Addr.IsValid() {
			continue
		}
		name := fmt.Sprintf("%s %s (%s)", k.Proto, k, e.port.Name)
		switch {
		case k.Addr == to.Addr():
			same = append(same, fmt.Sprintf("%s %d (%s)", k.Proto, k.Port, e.port.Name))
		case similar(k.Addr.String(), to.Addr().String()):
			near = append(near, name)
		}
		far := k.Addr.AsSlice()
		for i, b := range to.Addr().AsSlice() {
			far[i] ^= b
		}
		if x := string(far) + name; nearest == "" || x < distance {
			nearest, distance = name, x
		}
	}
	for i := range d.ports {
		p := &d.ports[i]
		if slices.Contains(p.Endpoints.Cluster, to.String()) || slices.Contains(p.Endpoints.Local, to.String()) {
			behind = append(behind, p.Name)
		}
	}
	switch {
	case len(same) > 0:
		add("%s has these ports: %s", to.Addr(), list(same))
	case len(behind) > 0:
		add("%s is an endpoint of Service %s: nftproxy does not handle packets that are sent to it directly", to, list(behind))
	case len(near) > 0:
		add("Services with a similar address: %s", list(near))
	case d.node.isLocal(to.Addr()):
		add("%s is an address of this node: the packet goes to the process that listens on port %d", to.Addr(), to.Port())
	case nearest != "" && d.find(nft.ServiceCIDRs, string(to.Addr().AsSlice())) != nil:
		add("the nearest Service is %s", nearest)
	}
}

// hintNodePort is about a NodePort that is not taken where the packet goes, and about a near miss of one.
func (d *Describer) hintNodePort(add func(string, ...any)) {
	to := d.packet.To
	if e, ok := d.at[inspect.Key{Proto: d.packet.Proto, Port: to.Port()}]; ok {
		at := d.nodePortAddresses()
		switch {
		case to.Addr().IsLoopback():
			add("%d is a NodePort of Service %s, but the tables do not serve NodePorts at loopback addresses: use %s, or list localhost in nodePortAddresses", to.Port(), e.port.Name, at)
		case d.node.isLocal(to.Addr()):
			add("%d is a NodePort of Service %s, served at %s only (nodePortAddresses)", to.Port(), e.port.Name, at)
		default:
			add("%d is a NodePort of Service %s, but %s is not an address of this node", to.Port(), e.port.Name, to.Addr())
		}
		return
	}
	if !d.node.isLocal(to.Addr()) {
		return
	}
	var near []string
	for k, e := range d.at {
		if !k.Addr.IsValid() && (k.Port == to.Port() || similar(strconv.Itoa(int(k.Port)), strconv.Itoa(int(to.Port())))) {
			near = append(near, fmt.Sprintf("%s %d (%s)", k.Proto, k.Port, e.port.Name))
		}
	}
	if len(near) > 0 {
		add("similar NodePorts: %s", list(near))
	}
}

func (d *Describer) nodePortAddresses() string {
	if d.Config.NodePortAll {
		return "any other address of the node"
	}
	if len(d.NodePortAddresses) == 0 {
		return "no address"
	}
	return list(slices.Clone(d.NodePortAddresses))
}

// hintFamily is about a Service that is there in the other family only.
func (d *Describer) hintFamily(other serviceIndex, add func(string, ...any)) {
	if len(d.ports) > 0 || len(other.ports) == 0 {
		return
	}
	var names []string
	for k, e := range other.at {
		if k.Port == d.packet.To.Port() && k.Addr.IsValid() {
			names = append(names, fmt.Sprintf("%s (%s)", k, e.port.Name))
		}
	}
	more := ""
	if len(names) > 0 {
		more = ", of this port: " + list(names)
	}
	add("no Service has an address of this family here; the other has %d Service ports%s", len(other.ports), more)
}

// list sorts names, and names the first of many.
func list(names []string) string {
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// similar returns whether one character too many, too few, wrong or out of order makes one text of the other.
func similar(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(b)-len(a) > 1 || a == b:
		return false
	case len(a) < len(b):
		return a[i:] == b[i+1:]
	case a[i+1:] == b[i+1:]:
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && cmp.Compare(a[i+2:], b[i+2:]) == 0
}
