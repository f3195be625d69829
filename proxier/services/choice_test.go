// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// Services of the choice tests, by who can reach them and under which policy.
const (
	inside       = ":80"
	insideLocal  = ":80 internal-local"
	outside      = ":80:30080"
	outsideLocal = ":80:30080 external-local"
	bothLocal    = ":80:30080 internal-local external-local"
	mixedLocal   = ":80:30080 internal-local" // the ClusterIP local, from outside anywhere
	pendingLocal = ":80 external-local"       // a load balancer that has no address yet and wants no NodePort
)

var choiceTests = []struct {
	name      string
	service   string
	endpoints []string
	want      string
}{
	{"no endpoints", outside, nil, "refused"},
	{"no endpoints, local", bothLocal, nil, "refused"},
	{"one ready elsewhere", inside, []string{"1 there"}, "cluster 1; serving 1"},
	{"one ready here is a hairpin", inside, []string{"1 here"}, "cluster 1; hairpin 1; serving 1"},
	{"an endpoint of no node is not here", insideLocal, []string{"1 -"}, "serving 1; internal dropped"},
	{"sorted by address, not by text", inside, []string{"10 there", "9 there", "300 there", "2 there"}, "cluster 2 9 10 300; serving 2 9 10 300"},

	// Conditions.
	{"unready is not used", inside, []string{"1 here", "2 there unready"}, "cluster 1; hairpin 1; serving 1"},
	{"only unready", outside, []string{"1 here unready", "2 there unready"}, "refused"},
	{"ready goes before draining", inside, []string{"1 here draining", "2 there"}, "cluster 2; serving 1 2"},
	{"all draining", inside, []string{"1 here draining", "2 there draining"}, "cluster 1 2; hairpin 1; serving 1 2"},
	{"draining and unready", inside, []string{"1 there draining", "2 there unready"}, "cluster 1; serving 1"},
	{"draining and dead", inside, []string{"1 there draining", "2 there dead"}, "cluster 1; serving 1"},
	{"only dead", outsideLocal, []string{"1 here dead", "2 there dead"}, "refused"},
	{"published though not ready", inside, []string{"1 here published", "2 there published"}, "cluster 1 2; hairpin 1; serving 1 2"},
	{"published though terminating is ready", inside, []string{"1 there published-dead", "2 there"}, "cluster 1 2; serving 1 2"},
	{"serving without being ready or terminating keeps its flows only", inside, []string{"1 there serving", "2 there"}, "cluster 2; serving 1 2"},
	{"serving without being ready or terminating is no fallback", inside, []string{"1 there serving"}, "serving 1; refused"},

	// internalTrafficPolicy Local.
	{"internal local: some here", insideLocal, []string{"1 here", "2 there", "3 here"}, "local 1 3; hairpin 1 3; serving 1 2 3"},
	{"internal local: all here", insideLocal, []string{"1 here", "2 here"}, "local 1 2; hairpin 1 2; serving 1 2"},
	{"internal local: none here", insideLocal, []string{"1 there", "2 there"}, "serving 1 2; internal dropped"},
	{"internal local: none here, elsewhere draining", insideLocal, []string{"1 there draining"}, "serving 1; internal dropped"},
	{"internal local: ready elsewhere, draining here", insideLocal, []string{"1 here draining", "2 there"}, "local 1; hairpin 1; serving 1 2"},
	{"internal local: unready here", insideLocal, []string{"1 here unready", "2 there"}, "serving 2; internal dropped"},
	{"internal local: dead here, ready elsewhere", insideLocal, []string{"1 here dead", "2 there"}, "serving 2; internal dropped"},
	{"internal local: ready and draining here", insideLocal, []string{"1 here draining", "2 here"}, "local 2; hairpin 2; serving 1 2"},

	// externalTrafficPolicy Local: pods and processes of this node get the cluster view.
	{"external local: some here", outsideLocal, []string{"1 here", "2 there"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
	{"external local: none here", outsideLocal, []string{"1 there", "2 there"}, "cluster 1 2; serving 1 2; external dropped"},
	{"external local: ready elsewhere, draining here", outsideLocal, []string{"1 here draining", "2 there"}, "cluster 2; local 1; hairpin 1; serving 1 2"},
	{"external local: all draining", outsideLocal, []string{"1 here draining", "2 there draining"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
	{"external local: all draining elsewhere", outsideLocal, []string{"1 there draining"}, "cluster 1; serving 1; external dropped"},
	{"external local without an address yet", pendingLocal, []string{"1 there"}, "cluster 1; serving 1"},
	{"both local: some here", bothLocal, []string{"1 here", "2 there"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
	{"both local: none here", bothLocal, []string{"1 there"}, "cluster 1; serving 1; dropped"},
	{"both local: none here, draining", bothLocal, []string{"1 there draining"}, "cluster 1; serving 1; dropped"},
	{"internal local, external cluster: some here", mixedLocal, []string{"1 here", "2 there"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
	{"internal local, external cluster: none here", mixedLocal, []string{"1 there"}, "cluster 1; serving 1; internal dropped"},

	// Zone hints.
	{"zone: this one's", inside, []string{"1 there zones=a", "2 there zones=b"}, "cluster 1; serving 1 2"},
	{"zone: several per endpoint", inside, []string{"1 there zones=b,a", "2 there zones=b,c", "3 here zones=a"}, "cluster 1 3; hairpin 3; serving 1 2 3"},
	{"zone: none for ours", inside, []string{"1 there zones=b", "2 there zones=c"}, "cluster 1 2; serving 1 2"},
	{"zone: one without a hint", inside, []string{"1 there zones=a", "2 there"}, "cluster 1 2; serving 1 2"},
	{"zone: one unready without a hint does not count", inside, []string{"1 there zones=a", "2 there zones=b", "3 there unready"}, "cluster 1; serving 1 2"},
	{"zone: only unready ones in ours", inside, []string{"1 there zones=a unready", "2 there zones=b"}, "cluster 2; serving 2"},
	{"zone: only draining ones in ours", inside, []string{"1 there zones=a draining", "2 there zones=b"}, "cluster 2; serving 1 2"},
	{"zone: no hints among the draining", inside, []string{"1 there zones=a draining", "2 there zones=b draining"}, "cluster 1 2; serving 1 2"},
	{"zone: a name that ours is part of", inside, []string{"1 there zones=aa", "2 there zones=b"}, "cluster 1 2; serving 1 2"},
	{"zone: no say in the local view", insideLocal, []string{"1 here zones=b", "2 there zones=a"}, "local 1; hairpin 1; serving 1 2"},
	{"zone: no say in the local view from outside", outsideLocal, []string{"1 here zones=b", "2 there zones=a"}, "cluster 2; local 1; hairpin 1; serving 1 2"},
	{"zone: a hairpin must be in a view", inside, []string{"1 here zones=b", "2 there zones=a"}, "cluster 2; serving 1 2"},

	// Node hints.
	{"node: this one's", inside, []string{"1 here nodes=here zones=a", "2 there nodes=there zones=a"}, "cluster 1; hairpin 1; serving 1 2"},
	{"node: hinted to this one, running elsewhere", inside, []string{"1 there nodes=here", "2 there nodes=there"}, "cluster 1; serving 1 2"},
	{"node: one without falls back to the zone", inside, []string{"1 here nodes=here zones=a", "2 there zones=a", "3 there zones=b"}, "cluster 1 2; hairpin 1; serving 1 2 3"},
	{"node: none for ours falls back to the zone", inside, []string{"1 there nodes=there zones=a", "2 there nodes=other zones=b"}, "cluster 1; serving 1 2"},
	{"node: none for ours, no zones", inside, []string{"1 there nodes=there", "2 there nodes=other"}, "cluster 1 2; serving 1 2"},
	{"node: only a draining one for ours", inside, []string{"1 here nodes=here zones=a draining", "2 there nodes=there zones=a", "3 there nodes=other zones=b"}, "cluster 2; serving 1 2 3"},
	{"node: an unready one without a hint does not count", inside, []string{"1 here nodes=here", "2 there unready", "3 there nodes=there"}, "cluster 1; hairpin 1; serving 1 3"},
	{"node: no say in the local view", bothLocal, []string{"1 here nodes=there", "2 there nodes=here"}, "cluster 2; local 1; hairpin 1; serving 1 2"},
}

func TestChoice(t *testing.T) {
	for _, tt := range choiceTests {
		t.Run(tt.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f nft.Family) {
				out := Build(Input{
					Service: service(t, f, tt.service), Node: here,
					Slices: []*kube.EndpointSlice{slice(t, f, ":8080", tt.endpoints...)},
				})
				if got := views(only(t, out)); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// TestNodeWithoutLabels: hints cannot be followed by a node that does not know its zone, and none is local to a node
// that does not know its name.
func TestNodeWithoutLabels(t *testing.T) {
	for _, tt := range []struct {
		name      string
		node      Node
		endpoints []string
		want      string
	}{
		{"no zone", Node{Name: "here"}, []string{"1 here zones=a", "2 there zones=b"}, "cluster 1 2; local 1; hairpin 1; serving 1 2"},
		{"no zone, but a node hint", Node{Name: "here"}, []string{"1 here zones=a nodes=here", "2 there zones=b nodes=there"}, "cluster 1; local 1; hairpin 1; serving 1 2"},
		{"no name", Node{Zone: "a"}, []string{"1 - zones=a", "2 there zones=b"}, "cluster 1; serving 1 2; external dropped"},
		{"nothing", Node{}, []string{"1 - zones=a nodes=here", "2 there zones=b nodes=there"}, "cluster 1 2; serving 1 2; external dropped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f nft.Family) {
				out := Build(Input{
					Service: service(t, f, outsideLocal), Node: tt.node,
					Slices: []*kube.EndpointSlice{slice(t, f, ":8080", tt.endpoints...)},
				})
				if got := views(only(t, out)); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// part is one slice of a Service of several.
type part struct {
	ports     string
	endpoints []string
}

var sliceTests = []struct {
	name    string
	service string
	slices  []part
	want    []string // by port
}{
	{"multiple endpoint addresses in several slices", inside,
		[]part{{":8080", []string{"1 here"}}, {":8080", []string{"2 there"}}, {":8080", nil}},
		[]string{"cluster 1 2; hairpin 1; serving 1 2"}},
	{"multiple ports in several slices", "http:80 https:443",
		[]part{{"http:8080", []string{"1 there"}}, {"https:8443", []string{"1 there", "2 there"}}},
		[]string{"cluster 1; serving 1", "cluster 1:8443 2:8443; serving 1:8443 2:8443"}},
	{"named targetPorts that resolve to different ports per endpoint", "http:80",
		[]part{{"http:8080", []string{"1 there"}}, {"http:9090", []string{"2 here"}}},
		[]string{"cluster 1 2:9090; hairpin 2:9090; serving 1 2:9090"}},
	{"one address at two ports is two endpoints", "http:80",
		[]part{{"http:8080", []string{"1 there"}}, {"http:9090", []string{"1 there"}}},
		[]string{"cluster 1 1:9090; serving 1 1:9090"}},
	{"a slice that names a port twice", "http:80",
		[]part{{"http:8080 http:9090", []string{"1 there"}}},
		[]string{"cluster 1 1:9090; serving 1 1:9090"}},
	{"one targetPort for two ports", "http:80 alt:81",
		[]part{{"http:8080 alt:8080", []string{"1 there"}}},
		[]string{"cluster 1; serving 1", "cluster 1; serving 1"}},
	{"a port that no slice has", "http:80 https:443",
		[]part{{"http:8080", []string{"1 there"}}},
		[]string{"cluster 1; serving 1", "refused"}},
	{"a slice's port that the Service does not have", "http:80",
		[]part{{"http:8080 admin:9000", []string{"1 there"}}},
		[]string{"cluster 1; serving 1"}},
	{"a slice without ports", "http:80", []part{{"", []string{"1 there"}}}, []string{"refused"}},
	{"same name, other protocol is not the port", "dns:53",
		[]part{{"dns/UDP:53", []string{"1 there"}}}, []string{"refused"}},
	{"same number, different protocols", "tcp:80 udp/UDP:80",
		[]part{{"tcp:8080 udp/UDP:8080", []string{"1 there"}}},
		[]string{"cluster 1; serving 1", "cluster 1; serving 1"}},
	{"each port falls back for itself", "a:80 b:81",
		[]part{{"a:8080", []string{"1 there"}}, {"b:8080", []string{"1 there draining"}}, {"a:8080", []string{"2 there draining"}}},
		[]string{"cluster 1; serving 1 2", "cluster 1; serving 1"}},

	// Duplicates.
	{"duplicate: the same twice", inside,
		[]part{{":8080", []string{"1 here"}}, {":8080", []string{"1 here"}}},
		[]string{"cluster 1; hairpin 1; serving 1"}},
	{"duplicate in one slice", inside, []part{{":8080", []string{"1 there", "1 there"}}}, []string{"cluster 1; serving 1"}},
	{"duplicate: an address reused while its old pod terminates", outsideLocal,
		[]part{{":8080", []string{"1 there draining"}}, {":8080", []string{"1 here"}}},
		[]string{"cluster 1; local 1; hairpin 1; serving 1"}},
	{"duplicate: the new pod is not ready yet", inside,
		[]part{{":8080", []string{"1 there draining"}}, {":8080", []string{"1 here unready"}}},
		[]string{"refused"}},
	{"duplicate: the new pod is not ready yet, the old one is published", inside,
		[]part{{":8080", []string{"1 there published-dead", "2 there"}}, {":8080", []string{"1 here unready"}}},
		[]string{"cluster 2; serving 2"}},
	{"duplicate: dead and draining", inside,
		[]part{{":8080", []string{"1 there dead"}}, {":8080", []string{"1 there draining"}}},
		[]string{"cluster 1; serving 1"}},
	{"duplicate: a hint in one of two slices", inside,
		[]part{{":8080", []string{"1 there zones=a", "2 there zones=b"}}, {":8080", []string{"1 there draining"}}},
		[]string{"cluster 1; serving 1 2"}},
}

func TestSlices(t *testing.T) {
	for _, tt := range sliceTests {
		t.Run(tt.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f nft.Family) {
				in := Input{Service: service(t, f, tt.service), Node: here}
				for _, p := range tt.slices {
					in.Slices = append(in.Slices, slice(t, f, p.ports, p.endpoints...))
				}
				out := Build(in)
				if len(out.Ports) != len(tt.want) {
					t.Fatalf("%d ports, want %d", len(out.Ports), len(tt.want))
				}
				for i := range out.Ports {
					if got := views(&out.Ports[i]); got != tt.want[i] {
						t.Errorf("port %d:\ngot  %s\nwant %s", i, got, tt.want[i])
					}
				}
			})
		})
	}
}
