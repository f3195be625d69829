// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// The tests write objects in words, the same for both families: endpoint 3 is 10.1.0.3 or fd01::3.

// here is the node of all tests, in zone a.
var here = Node{Name: "here", Zone: "a", Addrs: []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00::1")}}

// address returns the n-th address of a network: of pods (1), Services (96), external IPs (2), load balancers (3).
func address(f nft.Family, network, n int) netip.Addr {
	if f == nft.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(network), byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0xfd, byte(network), 14: byte(n >> 8), 15: byte(n)})
}

// endpoint reads "3 here" and then any of: unready; draining (terminating, still serving); dead (terminating, not
// serving); published (not ready, but the Service publishes it), published-dead; serving (not ready, yet serving);
// zones=a,b; nodes=here. Instead of here any node may stand, or - for none.
func endpoint(t testing.TB, f nft.Family, text string) kube.Endpoint {
	words := strings.Fields(text)
	n, err := strconv.Atoi(words[0])
	if err != nil || len(words) < 2 {
		t.Fatalf("endpoint %q: want a number, then a node", text)
	}
	e := kube.Endpoint{Addr: address(f, 1, n), Ready: true, Serving: true}
	if words[1] != "-" {
		e.Node = kube.Intern(words[1])
	}
	var zones, nodes []string
	for _, w := range words[2:] {
		switch key, list, _ := strings.Cut(w, "="); key {
		case "zones":
			zones = strings.Split(list, ",")
		case "nodes":
			nodes = strings.Split(list, ",")
		default:
			conditions(t, &e, w)
		}
	}
	e.Hints = kube.NewHints(zones, nodes)
	return e
}

func conditions(t testing.TB, e *kube.Endpoint, word string) {
	switch word {
	case "unready":
		e.Ready, e.Serving = false, false
	case "draining":
		e.Ready, e.Terminating = false, true
	case "dead":
		e.Ready, e.Serving, e.Terminating = false, false, true
	case "published":
		e.Serving = false
	case "published-dead":
		e.Serving, e.Terminating = false, true
	case "serving":
		e.Ready = false
	default:
		t.Fatalf("endpoint condition %q is not known", word)
	}
}

// slice reads endpoints, one per text; ports are as in "http:8080" or "dns/UDP:53", or ":8080" without a name.
func slice(t testing.TB, f nft.Family, ports string, endpoints ...string) *kube.EndpointSlice {
	s := &kube.EndpointSlice{IPv6: f == nft.IPv6}
	for _, p := range strings.Fields(ports) {
		name, number, _ := strings.Cut(p, ":")
		name, proto := nameAndProto(name)
		s.Ports = append(s.Ports, kube.SlicePort{Name: kube.Intern(name), Proto: proto, Port: portNumber(t, number)})
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, endpoint(t, f, e))
	}
	return s
}

func nameAndProto(text string) (string, kube.Proto) {
	name, proto, _ := strings.Cut(text, "/")
	return name, map[string]kube.Proto{"": kube.TCP, "TCP": kube.TCP, "UDP": kube.UDP, "SCTP": kube.SCTP}[proto]
}

func portNumber(t testing.TB, text string) uint16 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatalf("port %q: %v", text, err)
	}
	return uint16(n)
}

// service reads what a Service in one family asks for: ports as in "http:80" or "http:80:30080" with a NodePort;
// internal-local, external-local, affinity; external=1,2 and lb=1,2 for addresses. Its ClusterIP is the first one.
func service(t testing.TB, f nft.Family, text string) *kube.Service {
	s := &kube.Service{Name: kube.Name{Namespace: "ns", Name: "web"}, Created: 1}
	ip := &s.ClusterIPs[0]
	if f == nft.IPv6 {
		ip = &s.ClusterIPs[1]
	}
	*ip = address(f, 96, 1)
	for _, w := range strings.Fields(text) {
		key, list, _ := strings.Cut(w, "=")
		switch key {
		case "internal-local":
			s.InternalLocal = true
		case "external-local":
			s.ExternalLocal = true
		case "external":
			s.ExternalIPs = addresses(t, f, 2, list)
		case "lb":
			s.LoadBalancerIPs = addresses(t, f, 3, list)
		default:
			s.Ports = append(s.Ports, servicePort(t, w))
		}
	}
	return s
}

func addresses(t testing.TB, f nft.Family, network int, list string) []netip.Addr {
	var out []netip.Addr
	for _, text := range strings.Split(list, ",") {
		out = append(out, address(f, network, int(portNumber(t, text))))
	}
	return out
}

func servicePort(t testing.TB, text string) kube.ServicePort {
	parts := strings.Split(text, ":")
	if len(parts) < 2 {
		t.Fatalf("service word %q is not known", text)
	}
	name, proto := nameAndProto(parts[0])
	p := kube.ServicePort{Name: kube.Intern(name), Proto: proto, Port: portNumber(t, parts[1])}
	if len(parts) > 2 {
		p.NodePort = portNumber(t, parts[2])
	}
	return p
}

// short writes endpoints as the numbers of their addresses; the port follows unless it is 8080.
func short(eps []netip.AddrPort) string {
	var out []string
	for _, e := range eps {
		b := e.Addr().AsSlice()
		text := strconv.Itoa(int(b[len(b)-2])<<8 | int(b[len(b)-1]))
		if e.Port() != 8080 {
			text += ":" + strconv.Itoa(int(e.Port()))
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// views is the canonical text of what a port's packets get: one line per list that is not empty, then one for each
// kind of frontend without an endpoint.
func views(p *Port) string {
	var out []string
	line := func(name string, eps []netip.AddrPort) {
		if len(eps) > 0 {
			out = append(out, name+" "+short(eps))
		}
	}
	line("cluster", p.Cluster)
	line("local", p.Local)
	line("hairpin", p.Hairpin)
	line("serving", p.Serving)
	switch {
	case !p.Served:
		out = append(out, "refused")
	case p.NoLocalInternal && p.NoLocalExternal:
		out = append(out, "dropped")
	case p.NoLocalInternal:
		out = append(out, "internal dropped")
	case p.NoLocalExternal:
		out = append(out, "external dropped")
	}
	return strings.Join(out, "; ")
}

// frontends is the canonical text of a port's frontends.
func frontends(p *Port) string {
	var out []string
	for _, f := range p.Frontends {
		text := [...]string{"cluster", "external", "nodeport"}[f.Kind] + " "
		if f.Kind != nft.NodePort {
			text += f.Addr.String() + " "
		}
		text += fmt.Sprintf("%s %d", p.Proto, f.Port)
		if f.Local {
			text += " local"
		}
		if f.Restricted {
			text += " from"
			for _, r := range nft.MergeRanges(f.Sources) {
				text += fmt.Sprintf(" %s-%s", r.From, r.To)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// eachFamily runs a test in both.
func eachFamily(t *testing.T, test func(t *testing.T, f nft.Family)) {
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

// only returns the one port of an output.
func only(t testing.TB, out Output) *Port {
	if len(out.Ports) != 1 {
		t.Fatalf("%d ports, want 1", len(out.Ports))
	}
	return &out.Ports[0]
}
