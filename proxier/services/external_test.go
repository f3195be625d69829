// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// externalInput is a LoadBalancer Service with an endpoint on this node and one on another.
func externalInput(change func(*Input)) Input {
	s := &kube.Service{Name: named("web"), Created: 1, Type: kube.LoadBalancer}
	in := Input{Service: s, Node: here}
	for i, f := range nft.Families() {
		s.ClusterIPs[i] = address(f, 96, 1)
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, address(f, 3, 1))
		in.Slices = append(in.Slices, &kube.EndpointSlice{
			IPv6: f == nft.IPv6, Ports: []kube.SlicePort{{Name: kube.Intern("p"), Proto: kube.TCP, Port: 8080}},
			Endpoints: []kube.Endpoint{
				{Addr: address(f, 1, 1), Node: kube.Intern("here"), Ready: true, Serving: true},
				{Addr: address(f, 1, 2), Node: kube.Intern("there"), Ready: true, Serving: true},
			},
		})
	}
	s.Ports = []kube.ServicePort{{Name: kube.Intern("p"), Proto: kube.TCP, Port: 80, NodePort: 30080}}
	change(&in)
	return in
}

func everythingExternal() [2]External {
	var out [2]External
	for i, f := range nft.Families() {
		out[i] = External{Steering: true, Cluster: true, Virtual: address(f, 169, 3)}
	}
	return out
}

// ownEndpoint makes the local endpoint a process of the node.
func ownEndpoint(in *Input) {
	for _, f := range nft.Families() {
		in.Node.Own = append(in.Node.Own, address(f, 1, 1))
	}
}

// TestExternal: who serves what, by policy, in both families. A view is written as the last digits of its endpoints: 1 is the
// one on this node, 2 that on another, V the virtual address with the NodePort, C the ClusterIP.
func TestExternal(t *testing.T) {
	for _, tt := range []struct {
		name             string
		change           func(*Input)
		steered, hostEnd bool
		split            bool
		cluster, local   string // of the external frontends
	}{
		{"off", func(in *Input) { in.Options.External = [2]External{} }, false, false, false, "12", ""},
		{"off, Local", func(in *Input) {
			in.Options.External = [2]External{}
			in.Service.ExternalLocal, in.Service.InternalLocal = true, true
		}, false, false, false, "12", "1"},
		{"Cluster", func(*Input) {}, false, false, true, "C", ""},
		{"Cluster, not wanted", func(in *Input) { in.Options.External[0].Cluster, in.Options.External[1].Cluster = false, false }, false, false, false, "12", ""},
		{"Cluster of a Local ClusterIP", func(in *Input) { in.Service.InternalLocal = true }, true, false, false, "12", "1"},
		{"Cluster, ClusterIP lost", func(in *Input) { in.Lost = func(c Claim) bool { return c.Addr == address(c.Family, 96, 1) } }, false, false, false, "12", ""},
		{"host", func(in *Input) {
			in.Options.External = [2]External{{HostClusterIPs: true}, {HostClusterIPs: true}}
		}, false, false, false, "12", ""},
		{"not to the host, ClusterIP Local", func(in *Input) {
			in.Options.External, in.Service.InternalLocal = [2]External{{HostClusterIPs: true}, {HostClusterIPs: true}}, true
		}, false, false, false, "12", "1"},
		{"Cluster, without endpoints", func(in *Input) { in.Slices = nil }, false, false, false, "", ""},
		{"Cluster, of the node itself", ownEndpoint, false, false, true, "C", ""},
		{"Local", func(in *Input) { in.Service.ExternalLocal = true }, false, false, true, "12", "V"},
		{"Local, none here", func(in *Input) { in.Service.ExternalLocal, in.Node.Name = true, "elsewhere" }, false, false, true, "12", "V"},
		{"Local, of the node itself", func(in *Input) { ownEndpoint(in); in.Service.ExternalLocal = true }, false, false, true, "12", "1"},
		{"Local, not wanted", func(in *Input) {
			in.Service.ExternalLocal = true
			in.Options.External[0].Virtual, in.Options.External[1].Virtual = netip.Addr{}, netip.Addr{}
		}, false, false, false, "12", "1"},
		{"Local, without NodePorts", func(in *Input) { in.Service.ExternalLocal, in.Service.NoLoadBalancerNodePorts = true, true }, false, false, false, "12", "1"},
		{"Local, NodePort lost", func(in *Input) {
			in.Service.ExternalLocal = true
			in.Lost = func(c Claim) bool { return !c.Addr.IsValid() }
		}, false, false, false, "12", "1"},
		{"both Local", func(in *Input) { in.Service.ExternalLocal, in.Service.InternalLocal = true, true }, true, false, true, "12", "V"},
		{"both Local, of the node itself", func(in *Input) {
			ownEndpoint(in)
			in.Service.ExternalLocal, in.Service.InternalLocal = true, true
		}, false, true, true, "12", "1"},
		{"ClusterIP Local, none here", func(in *Input) { in.Service.InternalLocal, in.Node.Name = true, "elsewhere" }, true, false, false, "12", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := externalInput(func(in *Input) { in.Options.External = everythingExternal(); tt.change(in) })
			out := Build(in)
			for _, f := range nft.Families() {
				inside, outside := halves(t, out, f)
				if (outside != inside) != tt.split {
					t.Fatalf("%s: split %v, want %v", f, outside != inside, tt.split)
				}
				if c := clusterIP(inside); c != nil && (c.Steered != tt.steered || c.HostEndpoint.IsValid() != tt.hostEnd) {
					t.Errorf("%s: steered %v, host endpoint %v", f, c.Steered, c.HostEndpoint)
				}
				if c := clusterIP(inside); c != nil && c.HandedOver != strings.HasPrefix(tt.name, "host") {
					t.Errorf("%s: handed over %v", f, c.HandedOver)
				}
				if got := letters(f, outside.Cluster); got != tt.cluster {
					t.Errorf("%s: cluster view %q, want %q", f, got, tt.cluster)
				}
				if got := letters(f, outside.Local); got != tt.local {
					t.Errorf("%s: local view %q, want %q", f, got, tt.local)
				}
				checkHalves(t, inside, outside)
			}
		})
	}
}

// halves returns the port of a family with the ClusterIP and the one with the other frontends, which may be the same.
func halves(t *testing.T, out Output, f nft.Family) (inside, outside *Port) {
	for i := range out.Ports {
		switch p := &out.Ports[i]; {
		case p.Family != f:
		case p.HandedOff:
			outside = p
		case inside != nil:
			t.Fatalf("%s: two ports", f)
		default:
			inside = p
		}
	}
	if outside == nil {
		outside = inside
	}
	return inside, outside
}

func clusterIP(p *Port) *nft.Frontend {
	i := slices.IndexFunc(p.Frontends, func(f nft.Frontend) bool { return f.Kind == nft.ClusterIP })
	if i < 0 {
		return nil
	}
	return &p.Frontends[i]
}

func letters(f nft.Family, eps []netip.AddrPort) string {
	var b strings.Builder
	for _, e := range eps {
		b.WriteString(map[netip.AddrPort]string{
			netip.AddrPortFrom(address(f, 1, 1), 8080): "1", netip.AddrPortFrom(address(f, 1, 2), 8080): "2",
			netip.AddrPortFrom(address(f, 169, 3), 30080): "V", netip.AddrPortFrom(address(f, 96, 1), 80): "C",
		}[e])
	}
	return b.String()
}

// checkHalves holds what is true of every split.
func checkHalves(t *testing.T, inside, outside *Port) {
	t.Helper()
	if inside == outside {
		if len(inside.External) > 0 {
			t.Errorf("not split, but external are %v", inside.External)
		}
		return
	}
	for i := range outside.Frontends {
		if outside.Frontends[i].Kind == nft.ClusterIP {
			t.Error("a ClusterIP is handed off")
		}
	}
	if len(inside.Frontends) != 1 || inside.Frontends[0].Kind != nft.ClusterIP || inside.NodePort != 0 || outside.NodePort != 30080 {
		t.Errorf("frontends %v and NodePorts %d, %d", inside.Frontends, inside.NodePort, outside.NodePort)
	}
	if inside.Name != outside.Name || outside.Affinity != 0 || len(outside.External) != 1 || !outside.Served {
		t.Errorf("handed off: %+v", outside)
	}
	if !slices.Equal(inside.Serving, outside.Serving) {
		t.Error("what serves differs")
	}
}

// TestExternalSplitsNothingElse: of random Services, hand-off and steering change who gets the traffic, and neither
// which frontends there are nor what serves.
func TestExternalSplitsNothingElse(t *testing.T) {
	forRandom(t, func(t *testing.T, _ *rand.Rand, in Input) {
		plain := Build(in)
		in.Options.External = everythingExternal()
		for _, s := range in.Slices {
			for i := range s.Endpoints {
				if i%2 == 0 {
					in.Node.Own = append(in.Node.Own, s.Endpoints[i].Addr)
				}
			}
		}
		out := Build(in)
		for i := range plain.Ports {
			was, is := &plain.Ports[i], &out.Ports[i]
			fronts := slices.Clone(is.Frontends)
			for j := len(plain.Ports); j < len(out.Ports); j++ {
				if h := &out.Ports[j]; h.Family == is.Family && h.Name == is.Name {
					fronts = append(fronts, h.Frontends...)
				}
			}
			if len(fronts) != len(was.Frontends) || !slices.Equal(was.Serving, is.Serving) {
				t.Errorf("%s: frontends %v, were %v", is.Name, fronts, was.Frontends)
			}
			for j := range fronts {
				if w := &was.Frontends[j]; fronts[j].Kind != w.Kind || fronts[j].Addr != w.Addr || fronts[j].Port != w.Port {
					t.Errorf("%s: frontend %v, was %v", is.Name, fronts[j], w)
				}
				if fronts[j].Steered && fronts[j].HostEndpoint.IsValid() {
					t.Errorf("%s: steered, and led to %v", is.Name, fronts[j].HostEndpoint)
				}
			}
		}
	})
}
