// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Addresses of the frontend tests as they are in IPv4; text puts those of IPv6 in their place.
var v6Text = strings.NewReplacer("10.96.0.1", "fd60::1", "10.2.0.1", "fd02::1", "10.2.0.2", "fd02::2",
	"10.3.0.1", "fd03::1", "10.3.0.2", "fd03::2")

func inFamily(f nft.Family, text string) string {
	if f == nft.IPv6 {
		return v6Text.Replace(text)
	}
	return text
}

func TestFrontends(t *testing.T) {
	for _, tt := range []struct {
		name, service string
		want          []string // by port
	}{
		{"ClusterIP", ":80", []string{"cluster 10.96.0.1 tcp 80"}},
		{"NodePort", ":80:30080", []string{"cluster 10.96.0.1 tcp 80; nodeport tcp 30080"}},
		{"lowest and highest port", "low:1:65535 high:65535:1",
			[]string{"cluster 10.96.0.1 tcp 1; nodeport tcp 65535", "cluster 10.96.0.1 tcp 65535; nodeport tcp 1"}},
		{"external IPs", ":80 external=1,2", []string{"cluster 10.96.0.1 tcp 80; external 10.2.0.1 tcp 80; external 10.2.0.2 tcp 80"}},
		{"load balancer", ":80:30080 lb=1,2",
			[]string{"cluster 10.96.0.1 tcp 80; external 10.3.0.1 tcp 80; external 10.3.0.2 tcp 80; nodeport tcp 30080"}},
		{"load balancer without NodePort", ":80 lb=1", []string{"cluster 10.96.0.1 tcp 80; external 10.3.0.1 tcp 80"}},
		{"same port, different protocols", "t:80 u/UDP:80 s/SCTP:80",
			[]string{"cluster 10.96.0.1 tcp 80", "cluster 10.96.0.1 udp 80", "cluster 10.96.0.1 sctp 80"}},
		{"NodePort with same port number, different protocols", "t:80:30080 u/UDP:80:30080",
			[]string{"cluster 10.96.0.1 tcp 80; nodeport tcp 30080", "cluster 10.96.0.1 udp 80; nodeport udp 30080"}},
		{"internal local", ":80:30080 external=1 internal-local",
			[]string{"cluster 10.96.0.1 tcp 80 local; external 10.2.0.1 tcp 80; nodeport tcp 30080"}},
		{"external local", ":80:30080 external=1 lb=1 external-local",
			[]string{"cluster 10.96.0.1 tcp 80; external 10.2.0.1 tcp 80 local; external 10.3.0.1 tcp 80 local; nodeport tcp 30080 local"}},
		{"both local", ":80:30080 internal-local external-local", []string{"cluster 10.96.0.1 tcp 80 local; nodeport tcp 30080 local"}},
		{"no ports", "external=1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f nft.Family) {
				var got, want []string
				for _, p := range Build(Input{Service: service(t, f, tt.service), Node: here}).Ports {
					got = append(got, frontends(&p))
				}
				for _, w := range tt.want {
					want = append(want, inFamily(f, w))
				}
				if !slices.Equal(got, want) {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		})
	}
}

// TestOneAddressTwice: an address that a Service has in two ways is one frontend.
func TestOneAddressTwice(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	cluster, other := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.3.0.1")
	for _, tt := range []struct {
		name         string
		external, lb []netip.Addr
		ranges       []netip.Prefix
		want         string
	}{
		{name: "external IP and load balancer", external: []netip.Addr{other}, lb: []netip.Addr{other},
			want: "cluster 10.96.0.1 tcp 80; external 10.3.0.1 tcp 80"},
		{name: "the load balancer's ranges hold for the external IP too", external: []netip.Addr{other}, lb: []netip.Addr{other}, ranges: ranges,
			want: "cluster 10.96.0.1 tcp 80; external 10.3.0.1 tcp 80 from 172.16.0.0-172.31.255.255"},
		{name: "external IP and ClusterIP", external: []netip.Addr{cluster}, want: "cluster 10.96.0.1 tcp 80"},
		{name: "load balancer and ClusterIP", lb: []netip.Addr{cluster}, ranges: ranges,
			want: "cluster 10.96.0.1 tcp 80 from 172.16.0.0-172.31.255.255"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := service(t, nft.IPv4, ":80")
			s.ExternalIPs, s.LoadBalancerIPs, s.SourceRanges = tt.external, tt.lb, tt.ranges
			if got := frontends(only(t, Build(Input{Service: s, Node: here}))); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if got, want := len(Claims(s)), strings.Count(tt.want, ";")+1; got != want {
				t.Errorf("%d claims, want %d", got, want)
			}
		})
	}
}

// dualStack is a Service with everything in both families.
func dualStack(t testing.TB) *kube.Service {
	four := service(t, nft.IPv4, "http:80:30080 dns/UDP:53 external=1 lb=1")
	six := service(t, nft.IPv6, "http:80 external=1,2 lb=1")
	four.ClusterIPs[1] = six.ClusterIPs[1]
	four.ExternalIPs = append(six.ExternalIPs, four.ExternalIPs...)
	four.LoadBalancerIPs = append(four.LoadBalancerIPs, six.LoadBalancerIPs...)
	four.Affinity = 3 * time.Hour
	return four
}

func TestDualStack(t *testing.T) {
	out := Build(Input{Service: dualStack(t), Node: here, Slices: []*kube.EndpointSlice{
		slice(t, nft.IPv6, "http:8080 dns/UDP:53", "3 here"),
		slice(t, nft.IPv4, "http:8080 dns/UDP:53", "1 here", "2 there"),
	}})
	var got []string
	for i := range out.Ports {
		p := &out.Ports[i]
		got = append(got, strings.Join([]string{p.Family.String(), p.Name, p.Proto.String(), frontends(p), views(p), p.Affinity.String()}, " | "))
	}
	want := []string{
		"ip | ns/web:http | tcp | cluster 10.96.0.1 tcp 80; external 10.2.0.1 tcp 80; external 10.3.0.1 tcp 80; nodeport tcp 30080 | cluster 1 2; hairpin 1; serving 1 2 | 3h0m0s",
		"ip | ns/web:dns | udp | cluster 10.96.0.1 udp 53; external 10.2.0.1 udp 53; external 10.3.0.1 udp 53 | cluster 1:53 2:53; hairpin 1:53; serving 1:53 2:53 | 3h0m0s",
		"ip6 | ns/web:http | tcp | cluster fd60::1 tcp 80; external fd02::1 tcp 80; external fd02::2 tcp 80; external fd03::1 tcp 80; nodeport tcp 30080 | cluster 3; hairpin 3; serving 3 | 3h0m0s",
		"ip6 | ns/web:dns | udp | cluster fd60::1 udp 53; external fd02::1 udp 53; external fd02::2 udp 53; external fd03::1 udp 53 | cluster 3:53; hairpin 3:53; serving 3:53 | 3h0m0s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSingleStack: slices of a family in which the Service has no ClusterIP are nobody's.
func TestSingleStack(t *testing.T) {
	eachFamily(t, func(t *testing.T, f nft.Family) {
		out := Build(Input{Service: service(t, f, ":80"), Node: here, Slices: []*kube.EndpointSlice{
			slice(t, f.Other(), ":8080", "1 here"), slice(t, f, ":8080", "2 there"),
		}})
		p := only(t, out)
		if got, want := views(p), "cluster 2; serving 2"; got != want || p.Family != f {
			t.Errorf("got %s %s, want %s %s", p.Family, got, f, want)
		}
	})
}

func TestPortNames(t *testing.T) {
	long := strings.Repeat("n", 63)
	s := service(t, nft.IPv4, long+":80")
	s.Name = kube.Name{Namespace: long, Name: long}
	if got, want := only(t, Build(Input{Service: s})).Name, long+"/"+long+":"+long; got != want {
		t.Errorf("got %q", got)
	}
	if got := only(t, Build(Input{Service: service(t, nft.IPv4, ":80")})).Name; got != "ns/web" {
		t.Errorf("port without a name: got %q", got)
	}
}

func TestLostClaims(t *testing.T) {
	for _, tt := range []struct {
		name, service, lost string
		wantFrontends       string
		wantViews           string
	}{
		{"ClusterIP", ":80:30080", "tcp 10.96.0.1:80", "nodeport tcp 30080", "cluster 1 2; hairpin 1; serving 1 2"},
		{"NodePort", ":80:30080", "tcp NodePort 30080 (ip)", "cluster 10.96.0.1 tcp 80", "cluster 1 2; hairpin 1; serving 1 2"},
		{"external IP", ":80 external=1,2", "tcp 10.2.0.1:80", "cluster 10.96.0.1 tcp 80; external 10.2.0.2 tcp 80", "cluster 1 2; hairpin 1; serving 1 2"},
		{"what needs the cluster view", ":80:30080 internal-local", "tcp NodePort 30080 (ip)", "cluster 10.96.0.1 tcp 80 local", "local 1; hairpin 1; serving 1 2"},
		{"what needs the local view", ":80:30080 external-local", "tcp NodePort 30080 (ip)", "cluster 10.96.0.1 tcp 80", "cluster 1 2; hairpin 1; serving 1 2"},
		{"everything", ":80", "tcp 10.96.0.1:80", "", "serving 1 2"},
		{"the port of another protocol", ":80", "udp 10.96.0.1:80", "cluster 10.96.0.1 tcp 80", "cluster 1 2; hairpin 1; serving 1 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := only(t, Build(Input{
				Service: service(t, nft.IPv4, tt.service), Node: here,
				Slices: []*kube.EndpointSlice{slice(t, nft.IPv4, ":8080", "1 here", "2 there")},
				Lost:   func(c Claim) bool { return c.String() == tt.lost },
			}))
			if got := frontends(p); got != tt.wantFrontends {
				t.Errorf("frontends\ngot  %s\nwant %s", got, tt.wantFrontends)
			}
			if got := views(p); got != tt.wantViews {
				t.Errorf("views\ngot  %s\nwant %s", got, tt.wantViews)
			}
			if has := strings.Contains(tt.wantFrontends, "nodeport"); has != (p.NodePort != 0) {
				t.Errorf("NodePort %d", p.NodePort)
			}
		})
	}
}

func TestLocalReady(t *testing.T) {
	for _, tt := range []struct {
		name   string
		slices []part
		six    []string
		want   int
	}{
		{"none", nil, nil, 0},
		{"elsewhere", []part{{"a:8080", []string{"1 there"}}}, nil, 0},
		{"two here", []part{{"a:8080", []string{"1 here", "2 here", "3 there"}}}, nil, 2},
		{"one address on two ports is one", []part{{"a:8080 b:9090", []string{"1 here"}}}, nil, 1},
		{"ports in slices of their own", []part{{"a:8080", []string{"1 here"}}, {"b:9090", []string{"1 here", "2 here"}}}, nil, 2},
		{"one address in two slices is one", []part{{"a:8080", []string{"1 here"}}, {"a:8080", []string{"1 here"}}}, nil, 1},
		{"terminating does not count while it serves", []part{{"a:8080", []string{"1 here draining", "2 here"}}}, nil, 1},
		{"only terminating", []part{{"a:8080", []string{"1 here draining"}}}, nil, 0},
		{"unready", []part{{"a:8080", []string{"1 here unready"}}}, nil, 0},
		{"hints have no say", []part{{"a:8080", []string{"1 here zones=b", "2 there zones=a"}}}, nil, 1},
		{"a pod of two families is one", []part{{"a:8080", []string{"1 here", "2 there"}}}, []string{"1 here", "2 there"}, 1},
		{"more of the other family", []part{{"a:8080", []string{"1 here"}}}, []string{"1 here", "2 here"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := service(t, nft.IPv4, "a:80:30080 b:81:30081 external-local lb=1")
			s.ClusterIPs[1] = address(nft.IPv6, 96, 1)
			s.HealthCheckNodePort = 31000
			in := Input{Service: s, Node: here, Slices: []*kube.EndpointSlice{slice(t, nft.IPv6, "a:8080", tt.six...)}}
			for _, p := range tt.slices {
				in.Slices = append(in.Slices, slice(t, nft.IPv4, p.ports, p.endpoints...))
			}
			out := Build(in)
			if out.LocalReady != tt.want || out.HealthCheckNodePort != 31000 {
				t.Errorf("got %d at port %d, want %d", out.LocalReady, out.HealthCheckNodePort, tt.want)
			}
		})
	}
}
