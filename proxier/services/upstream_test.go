// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Scenarios of Kubernetes' own e2e tests of Services, under the names they have there, as far as they can be told
// without packets: the objects as the controllers make them, step by step, and what this node makes of them.

// step is a state of one Service and its endpoints.
type step struct {
	service   string // empty: there is none
	endpoints []string
	want      string // of the first port
}

var upstreamTests = []struct {
	name  string
	steps []step
}{
	{"should serve a basic endpoint from pods", []step{
		{inside, nil, "refused"},
		{inside, []string{"1 here"}, "cluster 1; hairpin 1; serving 1"},
		{inside, []string{"1 here", "2 there"}, "cluster 1 2; hairpin 1; serving 1 2"},
		{inside, []string{"2 there"}, "cluster 2; serving 2"},
		{inside, nil, "refused"},
	}},
	{"should be able to up and down services", []step{
		{inside, []string{"1 there", "2 there"}, "cluster 1 2; serving 1 2"},
		{"", []string{"1 there", "2 there"}, ""},
		{inside, []string{"1 there", "2 there"}, "cluster 1 2; serving 1 2"},
	}},
	{"should be able to change the type from ExternalName to NodePort", []step{
		{"", nil, ""}, {outside, nil, "refused"}, {outside, []string{"1 there"}, "cluster 1; serving 1"},
	}},
	{"should be able to change the type from NodePort to ExternalName", []step{
		{outside, []string{"1 there"}, "cluster 1; serving 1"}, {"", []string{"1 there"}, ""},
	}},
	{"should allow pods to hairpin back to themselves through services", []step{
		{inside, []string{"1 here"}, "cluster 1; hairpin 1; serving 1"},
	}},
	{"should create endpoints for unready pods", []step{
		{inside, []string{"1 there published"}, "cluster 1; serving 1"}, // tolerated
		{inside, []string{"1 there unready"}, "refused"},                // and no more
		{inside, []string{"1 there published"}, "cluster 1; serving 1"},
		{inside, []string{"1 there published-dead"}, "cluster 1; serving 1"}, // terminating
		{inside, nil, "refused"},
	}},
	{"should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true", []step{
		{":80:30080 internal-local external-local", []string{"1 here published-dead"}, "cluster 1; local 1; hairpin 1; serving 1"},
		{outside, []string{"1 there published-dead"}, "cluster 1; serving 1"},
	}},
	{"should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false", []step{
		{outside, []string{"1 there dead"}, "refused"},
		{outsideLocal, []string{"1 here dead"}, "refused"},
	}},
	{"should be rejected when no endpoints exist", []step{{outside, nil, "refused"}}},
	{"should be rejected for evicted pods (no endpoints exist)", []step{{outside, []string{"1 there unready"}, "refused"}}},
	{"should respect internalTrafficPolicy=Local Pod to Pod", []step{
		{insideLocal, []string{"1 here"}, "local 1; hairpin 1; serving 1"},
		{insideLocal, []string{"1 there"}, "serving 1; internal dropped"},
	}},
	{"should support externalTrafficPolicy=Local for type=NodePort", []step{
		{outsideLocal, []string{"1 there"}, "cluster 1; serving 1; external dropped"},
		{outsideLocal, []string{"1 here"}, "cluster 1; local 1; hairpin 1; serving 1"},
	}},
	{"should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster", []step{
		{inside, []string{"1 there", "2 there"}, "cluster 1 2; serving 1 2"},
		{inside, []string{"1 there draining", "2 there draining"}, "cluster 1 2; serving 1 2"},
		{inside, []string{"1 there draining", "2 there draining", "3 there"}, "cluster 3; serving 1 2 3"},
	}},
	{"should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local", []step{
		{insideLocal, []string{"1 here", "2 there"}, "local 1; hairpin 1; serving 1 2"},
		{insideLocal, []string{"1 here draining", "2 there"}, "local 1; hairpin 1; serving 1 2"},
		{insideLocal, []string{"1 there draining"}, "serving 1; internal dropped"},
	}},
	{"should fallback to terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Cluster", []step{
		{outside, []string{"1 here draining", "2 there draining"}, "cluster 1 2; hairpin 1; serving 1 2"},
	}},
	{"should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local", []step{
		{outsideLocal, []string{"1 here draining", "2 there draining"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
		{outsideLocal, []string{"1 here draining", "2 there"}, "cluster 2; local 1; hairpin 1; serving 1 2"},
	}},
	{"should be able to preserve UDP traffic when server pod cycles for a ClusterIP service", []step{
		{"/UDP:80", []string{"1 there"}, "cluster 1; serving 1"},
		{"/UDP:80", []string{"1 there draining", "2 there"}, "cluster 2; serving 1 2"}, // a flow to 1 may still end in peace
		{"/UDP:80", []string{"1 there dead", "2 there"}, "cluster 2; serving 2"},
		{"/UDP:80", []string{"2 there"}, "cluster 2; serving 2"},
	}},
	{"should be able to preserve UDP traffic when initial unready endpoints get ready", []step{
		{"/UDP:80:30080", []string{"1 there unready"}, "refused"},
		{"/UDP:80:30080", []string{"1 there"}, "cluster 1; serving 1"},
	}},
	{"should route traffic to an endpoint in the same zone (PreferClose, PreferSameZone)", []step{
		{inside, []string{"1 there zones=a", "2 there zones=b", "3 there zones=c"}, "cluster 1; serving 1 2 3"},
		{inside, []string{"2 there zones=b", "3 there zones=c"}, "cluster 2 3; serving 2 3"},
	}},
	{"should route traffic to an endpoint on the same node or fall back to same zone (PreferSameNode)", []step{
		{inside, []string{"1 here zones=a nodes=here", "2 there zones=a nodes=there", "3 far zones=b nodes=far"}, "cluster 1; hairpin 1; serving 1 2 3"},
		{inside, []string{"2 there zones=a nodes=there", "3 far zones=b nodes=far"}, "cluster 2; serving 2 3"},
		{inside, []string{"3 far zones=b nodes=far"}, "cluster 3; serving 3"},
	}},
	{"should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable", []step{
		{inside, []string{"1 here zones=a nodes=here", "2 there zones=a nodes=there"}, "cluster 1; hairpin 1; serving 1 2"},
		{inside, []string{"1 here zones=a nodes=here draining", "2 there zones=a nodes=there"}, "cluster 2; serving 1 2"},
		{inside, []string{"2 there zones=a nodes=there"}, "cluster 2; serving 2"},
		{inside, []string{"1 here zones=a nodes=here", "2 there zones=a nodes=there"}, "cluster 1; hairpin 1; serving 1 2"},
	}},
	{"should distribute endpoints evenly (topology hints)", []step{
		{inside, []string{"1 there zones=a", "2 there zones=b", "3 there zones=a"}, "cluster 1 3; serving 1 2 3"},
	}},
	{"should work from pods (externalTrafficPolicy Local, load balancer)", []step{ // kubernetes issue 131765
		{":80 lb=1 external-local", []string{"1 there"}, "cluster 1; serving 1; external dropped"},
	}},
}

func TestUpstream(t *testing.T) {
	for _, tt := range upstreamTests {
		t.Run(tt.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f nft.Family) {
				for i, st := range tt.steps {
					in := Input{Node: here, Slices: []*kube.EndpointSlice{slice(t, f, ":8080 /UDP:8080", st.endpoints...)}}
					if st.service != "" {
						in.Service = service(t, f, st.service)
					}
					out, got := Build(in), ""
					if len(out.Ports) > 0 {
						got = views(&out.Ports[0])
					}
					if got != st.want {
						t.Errorf("step %d:\ngot  %s\nwant %s", i+1, got, st.want)
					}
				}
			})
		})
	}
}

// TestUpstreamPorts: "should serve multiport endpoints from pods" and "should be updated after adding or deleting ports".
func TestUpstreamPorts(t *testing.T) {
	const endpoints = "1 there"
	for _, tt := range []struct {
		service, slice string
		want           []string
	}{
		{"portname1:80 portname2:81", "portname1:100 portname2:101", []string{"cluster 1:100; serving 1:100", "cluster 1:101; serving 1:101"}},
		{"portname1:80", "portname1:100 portname2:101", []string{"cluster 1:100; serving 1:100"}},
		{"portname1:80 portname2:81 new/UDP:82", "portname1:100 portname2:101", []string{"cluster 1:100; serving 1:100", "cluster 1:101; serving 1:101", "refused"}},
		{"new/UDP:82", "new/UDP:102", []string{"cluster 1:102; serving 1:102"}},
	} {
		out := Build(Input{
			Service: service(t, nft.IPv4, tt.service), Node: here,
			Slices: []*kube.EndpointSlice{slice(t, nft.IPv4, tt.slice, endpoints)},
		})
		if len(out.Ports) != len(tt.want) {
			t.Fatalf("%s: %d ports, want %d", tt.service, len(out.Ports), len(tt.want))
		}
		for i := range out.Ports {
			if got := views(&out.Ports[i]); got != tt.want[i] {
				t.Errorf("%s: port %d: got %s, want %s", tt.service, i, got, tt.want[i])
			}
		}
	}
}

// TestUpstreamHealthCheck: "should support type=NodePort and HealthCheckNodePort when externalTrafficPolicy changes" and
// "should fail health check node port if there are only terminating endpoints".
func TestUpstreamHealthCheck(t *testing.T) {
	for _, tt := range []struct {
		name      string
		local     bool
		endpoints []string
		want      int
		views     string
	}{
		{"Local, ready here", true, []string{"1 here", "2 there"}, 1, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
		{"Cluster", false, []string{"1 here", "2 there"}, 0, "cluster 1 2; hairpin 1; serving 1 2"},
		{"Local again", true, []string{"1 here", "2 there"}, 1, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
		{"Local, only terminating: served, but not announced", true, []string{"1 here draining"}, 0, "cluster 1; local 1; hairpin 1; serving 1"},
		{"Local, none here", true, []string{"2 there"}, 0, "cluster 2; serving 2; external dropped"},
	} {
		s := service(t, nft.IPv4, ":80:30080 lb=1")
		if s.ExternalLocal = tt.local; tt.local { // as the conversion has it
			s.HealthCheckNodePort = 31000
		}
		out := Build(Input{Service: s, Node: here, Slices: slicesOf(t, tt.endpoints...)})
		if out.LocalReady != tt.want || out.HealthCheckNodePort != s.HealthCheckNodePort {
			t.Errorf("%s: %d ready at port %d, want %d", tt.name, out.LocalReady, out.HealthCheckNodePort, tt.want)
		}
		if got := views(only(t, out)); got != tt.views {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.views)
		}
	}
}

// TestUpstreamAffinity: "should be able to switch session affinity for service with type clusterIP" and for NodePort.
func TestUpstreamAffinity(t *testing.T) {
	for _, affinity := range []time.Duration{0, 3 * time.Hour, 0, time.Second} {
		s := service(t, nft.IPv4, outside)
		s.Affinity = affinity
		p := only(t, Build(Input{Service: s, Node: here, Slices: slicesOf(t, "1 there", "2 there")}))
		if p.Affinity != affinity || views(p) != "cluster 1 2; serving 1 2" {
			t.Errorf("%s: got %s and %s", affinity, p.Affinity, views(p))
		}
	}
}

// slicesOf is one IPv4 slice of a port without a name.
func slicesOf(t testing.TB, endpoints ...string) []*kube.EndpointSlice {
	return []*kube.EndpointSlice{slice(t, nft.IPv4, ":8080", endpoints...)}
}
