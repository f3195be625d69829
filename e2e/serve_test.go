// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// target is an address of the Service "web" of a family, and how its clients are seen.
type target struct {
	name string
	addr func(lab.Family, lab.Proto) netip.AddrPort
	// masqueraded reports whether the endpoint sees the node instead of a sender.
	masqueraded func(from string) bool
}

// ports of the Service "web" by protocol.
var webPorts = map[lab.Proto]uint16{lab.TCP: 80, lab.UDP: 53, lab.SCTP: 132}
var webNodePorts = map[lab.Proto]uint16{lab.TCP: 30080, lab.UDP: 30081, lab.SCTP: 30082}

func targets() []target {
	always := func(string) bool { return true }
	return []target{
		{"ClusterIP", func(f lab.Family, p lab.Proto) netip.AddrPort { return at(lab.ClusterIP(f, 10), webPorts[p]) },
			func(from string) bool { return from != "pod" }},
		{"NodePort", func(f lab.Family, p lab.Proto) netip.AddrPort { return at(lab.NodeIP(f, 1), webNodePorts[p]) }, always},
		{"LoadBalancer", func(f lab.Family, p lab.Proto) netip.AddrPort { return at(lab.LoadBalancerIP(f, 1), webPorts[p]) }, always},
		{"external IP", func(f lab.Family, p lab.Proto) netip.AddrPort { return at(lab.ExternalIP(f, 1), webPorts[p]) }, always},
	}
}

// Every kind of address, from everywhere, over every protocol and both families, from either source of objects; then
// nothing is left.
func TestServe(t *testing.T) {
	onEachSource(t, lab.Options{}, func(t *testing.T, c *cluster) {
		backends := []*lab.Pod{c.Pod(1, 1), c.Pod(2, 1), c.Pod(2, 2)}
		c.serve(8080, backends, lab.TCP, lab.UDP, lab.SCTP)
		svc := lab.WithExternalIP(lab.WithLoadBalancer(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080),
			lab.Port(lab.UDP, 53, 8080), lab.Port(lab.SCTP, 132, 8080)), 30080, 1), 1)
		empty := lab.NewService("empty", 11, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 53, 8080))
		slices := lab.NewSlices(svc, endpoints(backends...)...)
		c.apply(svc, slices, empty)
		c.start()
		for _, f := range lab.Families() {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} {
				for _, tg := range targets() {
					for kind, from := range map[string]*lab.Host{"pod": c.Pod(1, 3).Host, "node": c.Node(1).Host, "client": c.Client(1).Host} {
						name := fmt.Sprintf("%s %s %s from %s", f, proto, tg.name, kind)
						c.checkTarget(name, lab.Probe{From: from, Proto: proto, To: tg.addr(f, proto)}, 3, tg.masqueraded(kind))
					}
				}
			}
			c.checkHairpin(f)
			c.checkRefused(f)
		}
		if err := c.Delete(t.Context(), lab.Objects(svc, slices, empty)...); err != nil {
			t.Fatal(err)
		}
		c.checkEmpty(c.Node(1))
	})
}

// checkTarget asks often enough to meet every endpoint: the chance to miss one of three in 40 is 1 in 3 million.
func (c *cluster) checkTarget(name string, p lab.Probe, endpoints int, masqueraded bool) {
	c.t.Helper()
	tally := p.Repeat(40, 4)
	if !tally.AllAnswered() || len(tally.Backends) != endpoints {
		c.t.Errorf("%s: %s", name, tally)
	}
	f := lab.FamilyOf(p.To.Addr())
	for seen := range maps.Keys(tally.Seen) {
		if own := seen.Source == p.From.IP(f); own && masqueraded && p.From != c.Node(1).Host || !own && !masqueraded {
			c.t.Errorf("%s: %s saw %s", name, seen.Backend, seen.Source)
		}
	}
}

// checkHairpin lets a pod reach itself through the Service: it must not see its own address, to which it would answer
// without going through the node.
func (c *cluster) checkHairpin(f lab.Family) {
	c.t.Helper()
	pod := c.Pod(1, 1)
	tally := lab.Probe{From: pod.Host, Proto: lab.TCP, To: at(lab.ClusterIP(f, 10), 80)}.Repeat(40, 4)
	if !tally.AllAnswered() {
		c.t.Errorf("%s hairpin: %s", f, tally)
	}
	for seen := range maps.Keys(tally.Seen) {
		if own := seen.Source == pod.IP(f); own == (seen.Backend == pod.Name) {
			c.t.Errorf("%s hairpin: %s saw %s", f, seen.Backend, seen.Source)
		}
	}
}

// checkRefused expects an answer at once where there is no endpoint, and none where there is no Service.
func (c *cluster) checkRefused(f lab.Family) {
	c.t.Helper()
	for _, from := range []*lab.Host{c.Pod(1, 3).Host, c.Node(1).Host, c.Client(1).Host} {
		for _, p := range []lab.Probe{
			{From: from, Proto: lab.TCP, To: at(lab.ClusterIP(f, 11), 80)},
			{From: from, Proto: lab.UDP, To: at(lab.ClusterIP(f, 11), 53)},
			{From: from, Proto: lab.TCP, To: at(lab.ClusterIP(f, 10), 81)},
		} {
			r := p.Send()
			// UDP refused on the way out of the node itself is EPERM from sendto, as with any nftables reject.
			if r.Verdict == lab.Dropped || r.Verdict == lab.Answered || r.Verdict == lab.Unreachable {
				c.t.Errorf("%s to %s %s: %s", from.Name, p.Proto, p.To, r)
			}
		}
	}
}

// checkEmpty waits until a node's tables hold no Service.
func (c *cluster) checkEmpty(n *lab.Node) {
	c.t.Helper()
	ofNode := []nft.SetID{nft.Pods, nft.ServiceCIDRs, nft.NodePortAddresses}
	deadline := time.Now().Add(lab.HangLimit)
	for {
		var left []nft.Element
		for _, f := range nft.Families() {
			for _, e := range c.snapshot(n, f).Elements {
				// The API server has a Service of its own.
				if !slices.Contains(ofNode, e.Set) && e.Comment != "default/kubernetes:https" && len(c.servedAt(e)) > 0 {
					left = append(left, e)
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%d elements left: %v", len(left), left)
		}
		time.Sleep(5 * time.Millisecond) // between polls
	}
}

// servedAt returns the key of an element unless it is about the API server's own Service, the first ClusterIP.
func (c *cluster) servedAt(e nft.Element) string {
	for _, f := range lab.Families() {
		own := lab.ClusterIP(f, 1).AsSlice()
		if len(e.Key) >= len(own) && e.Key[:len(own)] == string(own) {
			return ""
		}
	}
	return e.Key
}
