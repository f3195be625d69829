// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// upstreamTest is a test of Kubernetes v1.36.3, test/e2e/network, that is about Services.
type upstreamTest struct {
	name string // "file: name"
	// otherwise says why no scenario covers it, or what else does.
	otherwise string
}

// Reasons that several share.
const (
	apiOnly  = "about the API server and controllers: sends nothing through a proxy"
	identity = "about pods and their addresses, not about Services"
	restarts = "e2e: TestKillAtRandomPoints"
	outage   = "e2e/source: TestSourceAPIOutage"
	repairs  = "about iptables rules; e2e: TestServe and nft hold the repair of ours"
	churn    = "e2e: TestEndpointChurn"
	cidrs    = "needs a controller to make the ServiceCIDR ready; e2e: TestRoutingFollowsServiceCIDRs"
)

// upstreamTests are all of service.go, conntrack.go, networking.go, dual_stack.go, topology_hints.go, traffic_distribution.go
// and loadbalancer.go, and those of other files that send packets through a proxy.
var upstreamTests = []upstreamTest{
	{"service.go: should serve a basic endpoint from pods", ""},
	{"service.go: should serve multiport endpoints from pods", ""},
	{"service.go: should be updated after adding or deleting ports", ""},
	{"service.go: should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]", ""},
	{"service.go: should allow pods to hairpin back to themselves through services", ""},
	{"service.go: should be able to up and down services", ""},
	{"service.go: should work after the service has been recreated", ""},
	{"service.go: should work after restarting kube-proxy", restarts},
	{"service.go: should work after restarting apiserver", outage},
	{"service.go: should be able to create a functioning NodePort service", ""},
	{"service.go: should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node", ""},
	{"service.go: should be able to update service type to NodePort listening on same port number but different protocols", ""},
	{"service.go: should be able to change the type from ExternalName to ClusterIP", ""},
	{"service.go: should be able to change the type from ExternalName to NodePort", ""},
	{"service.go: should be able to change the type from ClusterIP to ExternalName", ""},
	{"service.go: should be able to change the type from NodePort to ExternalName", ""},
	{"service.go: should prevent NodePort collisions", apiOnly},
	{"service.go: should check NodePort out-of-range", apiOnly},
	{"service.go: should release NodePorts on delete", apiOnly},
	{"service.go: should create endpoints for unready pods", ""},
	{"service.go: should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true", ""},
	{"service.go: should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false", ""},
	{"service.go: should have session affinity work for service with type clusterIP [LinuxOnly]", ""},
	{"service.go: should have session affinity timeout work for service with type clusterIP [LinuxOnly]", ""},
	{"service.go: should be able to switch session affinity for service with type clusterIP [LinuxOnly]", ""},
	{"service.go: should have session affinity work for NodePort service [LinuxOnly]", ""},
	{"service.go: should have session affinity timeout work for NodePort service [LinuxOnly]", ""},
	{"service.go: should be able to switch session affinity for NodePort service [LinuxOnly]", ""},
	{"service.go: should implement service.kubernetes.io/service-proxy-name", ""},
	{"service.go: should implement service.kubernetes.io/headless", ""},
	{"service.go: should be rejected when no endpoints exist", ""},
	{"service.go: should be rejected for evicted pods (no endpoints exist)", ""},
	{"service.go: should respect internalTrafficPolicy=Local Pod to Pod", ""},
	{"service.go: should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod", ""},
	{"service.go: should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)", ""},
	{"service.go: should support externalTrafficPolicy=Local for type=NodePort", ""},
	{"service.go: should fail health check node port if there are only terminating endpoints", ""},
	{"service.go: should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster", ""},
	{"service.go: should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local", ""},
	{"service.go: should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster", ""},
	{"service.go: should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local", ""},
	{"service.go: should find a service from listing all namespaces", apiOnly},
	{"service.go: should complete a service status lifecycle", apiOnly},
	{"service.go: should delete a collection of services", apiOnly},
	{"service.go: should serve endpoints on same port and different protocols", ""},
	{"service.go: should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer", ""},
	{"service.go: should allow creating a basic SCTP service with pod and endpoints [LinuxOnly]", ""},
	{"service.go: should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes", ""},
	{"service.go: should connect to the ports exposed by restartable init containers", ""},
	{"service.go: should connect to the named ports exposed by restartable init containers", ""},
	{"service.go: should support named targetPorts that resolve to different ports on different endpoints", ""},
	{"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a NodePort service", ""},
	{"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service", ""},
	{"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service with InternalTrafficPolicy set to Local", ""},
	{"conntrack.go: should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork", ""},
	{"conntrack.go: should be able to preserve UDP traffic when initial unready endpoints get ready", ""},
	{"conntrack.go: proxy implementation should not be vulnerable to the invalid conntrack state bug [Privileged]", "a server forges packets out of window; decided by nf_conntrack_tcp_be_liberal, which proxier/sysctl sets and tests"},
	{"conntrack.go: should be able to cleanup conntrack entries when UDP service target port changes for a NodePort service", ""},
	{"networking.go: should provide Internet connection for containers", identity},
	{"networking.go: should provider Internet connection for containers using DNS", identity},
	{"networking.go: should provide unchanging, static URL paths for kubernetes api services", apiOnly},
	{"networking.go: should check kube-proxy urls", ""},
	{"networking.go: should function for pod-Service: http", ""},
	{"networking.go: should function for pod-Service: udp", ""},
	{"networking.go: should function for pod-Service: sctp", ""},
	{"networking.go: should function for node-Service: http", ""},
	{"networking.go: should function for node-Service: udp", ""},
	{"networking.go: should function for node-Service: sctp", ""},
	{"networking.go: should function for endpoint-Service: http", ""},
	{"networking.go: should function for endpoint-Service: udp", ""},
	{"networking.go: should function for endpoint-Service: sctp", ""},
	{"networking.go: should function for multiple endpoint-Services with same selector", ""},
	{"networking.go: should update endpoints: http", ""},
	{"networking.go: should update endpoints: udp", ""},
	{"networking.go: should update nodePort: http", ""},
	{"networking.go: should support basic nodePort: udp functionality", ""},
	{"networking.go: should update nodePort: udp", ""},
	{"networking.go: should function for client IP based session affinity: http [LinuxOnly]", ""},
	{"networking.go: should function for client IP based session affinity: udp [LinuxOnly]", ""},
	{"networking.go: should be able to handle large requests: http", ""},
	{"networking.go: should be able to handle large requests: udp", ""},
	{"networking.go: should function for service endpoints using hostNetwork", ""},
	{"networking.go: should recreate its iptables rules if they are deleted", repairs},
	{"networking.go: should allow creating a Pod with an SCTP HostPort [LinuxOnly]", "about host ports, which the CNI plugin makes"},
	{"dual_stack.go: should have at least one dual-stack node", identity},
	{"dual_stack.go: should create pod, add ipv6 and ipv4 ip to pod ips", identity},
	{"dual_stack.go: should create pod, add ipv6 and ipv4 ip to host ips", identity},
	{"dual_stack.go: should be able to reach pod on ipv4 and ipv6 ip", identity},
	{"dual_stack.go: should create a single stack service with cluster ip from primary service range", apiOnly},
	{"dual_stack.go: should create service with ipv4 cluster ip", ""},
	{"dual_stack.go: should create service with ipv6 cluster ip", ""},
	{"dual_stack.go: should create service with ipv4,v6 cluster ip", ""},
	{"dual_stack.go: should create service with ipv6,v4 cluster ip", ""},
	{"dual_stack.go: should function for pod-Service: http", ""},
	{"dual_stack.go: should function for pod-Service: udp", ""},
	{"dual_stack.go: should function for pod-Service: sctp", ""},
	{"dual_stack.go: should function for node-Service: http", ""},
	{"dual_stack.go: should function for node-Service: udp", ""},
	{"dual_stack.go: should function for endpoint-Service: http", ""},
	{"dual_stack.go: should function for endpoint-Service: udp", ""},
	{"dual_stack.go: should update endpoints: http", ""},
	{"dual_stack.go: should update endpoints: udp", ""},
	{"dual_stack.go: should function for client IP based session affinity: http [LinuxOnly]", ""},
	{"dual_stack.go: should function for client IP based session affinity: udp [LinuxOnly]", ""},
	{"dual_stack.go: should be able to handle large requests: http", ""},
	{"dual_stack.go: should be able to handle large requests: udp", ""},
	{"dual_stack.go: should function for service endpoints using hostNetwork", ""},
	{"topology_hints.go: should distribute endpoints evenly", ""},
	{"traffic_distribution.go: should route traffic to an endpoint in the same zone when using PreferClose", ""},
	{"traffic_distribution.go: should route traffic correctly between pods on multiple nodes when using PreferClose", ""},
	{"traffic_distribution.go: should route traffic to an endpoint in the same zone when using PreferSameZone", ""},
	{"traffic_distribution.go: should route traffic correctly between pods on multiple nodes when using PreferSameZone", ""},
	{"traffic_distribution.go: should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode", ""},
	{"traffic_distribution.go: should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable", ""},
	{"loadbalancer.go: should be able to change the type and ports of a TCP service", ""},
	{"loadbalancer.go: should be able to change the type and ports of a UDP service", ""},
	{"loadbalancer.go: should only allow access from service loadbalancer source ranges", ""},
	{"loadbalancer.go: should have session affinity work for LoadBalancer service with Local traffic policy", ""},
	{"loadbalancer.go: should be able to switch session affinity for LoadBalancer service with Local traffic policy", ""},
	{"loadbalancer.go: should have session affinity work for LoadBalancer service with Cluster traffic policy", ""},
	{"loadbalancer.go: should be able to switch session affinity for LoadBalancer service with Cluster traffic policy", ""},
	{"loadbalancer.go: should handle load balancer cleanup finalizer for service", apiOnly},
	{"loadbalancer.go: should be able to create LoadBalancer Service without NodePort and change it", ""},
	{"loadbalancer.go: should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes", ""},
	{"loadbalancer.go: should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes", ""},
	{"loadbalancer.go: should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster", churn},
	{"loadbalancer.go: should not have connectivity disruption during rolling update with externalTrafficPolicy=Local", churn},
	{"loadbalancer.go: should work for type=LoadBalancer", ""},
	{"loadbalancer.go: should only target nodes with endpoints", ""},
	{"loadbalancer.go: should target all nodes with endpoints", ""},
	{"loadbalancer.go: should work from pods", ""},
	{"service_cidrs.go: should create Services and serve on different Service CIDRs", cidrs},
	{"service_cidrs.go: should support ServiceCIDR API operations", apiOnly},
	{"service_cidrs.go: should support IPAddress API operations", apiOnly},
	{"endpointslice.go: should create and delete EndpointSlices for a Service with a selector that matches no pods", apiOnly},
	{"endpointslice.go: should create Endpoints and EndpointSlices for Pods matching a Service", apiOnly},
	{"endpointslice.go: should support creating EndpointSlice API operations", apiOnly},
	{"endpointslice.go: should support a Service with multiple ports specified in multiple EndpointSlices", ""},
	{"endpointslice.go: should support a Service with multiple endpoint IPs specified in multiple EndpointSlices", ""},
	{"kube_proxy.go: should set TCP CLOSE_WAIT timeout [Privileged]", "a sysctl, which proxier/sysctl sets and tests"},
	{"kube_proxy.go: should update metric for tracking accepted packets destined for localhost nodeports", "about an nfacct counter of the iptables mode; e2e: TestLocalhostNodePorts holds the packets"},
}

// coverage maps an upstream test to the scenarios that cover it.
func coverage(all []*setup, fill func(*setup) *plan) map[string][]string {
	by := map[string][]string{}
	for _, st := range all {
		for _, sc := range fill(st).scenarios {
			for _, name := range sc.upstream {
				if at := st.name + ": " + sc.name; !slices.Contains(by[name], at) {
					by[name] = append(by[name], at)
				}
			}
		}
	}
	return by
}

// writeUpstream writes docs/upstream.md.
func writeUpstream(w io.Writer, by map[string][]string) {
	covered := 0
	for _, t := range upstreamTests {
		if len(by[t.name]) > 0 {
			covered++
		}
	}
	fmt.Fprintf(w, `# Upstream's Service tests and the scenarios that cover them

Written by `+"`go run ./e2e/oracle -upstream`"+`; a test fails if it is out of date.

Kubernetes v1.36.3 tests Services in test/e2e/network, on clusters with kubelets. The tables list for each of these tests the scenarios
of the oracle (e2e/oracle) that cover it, or the reason why none does. The oracle sends each scenario as real packets through nftproxy
and through kube-proxy v1.36.3 in nftables mode, over TCP and UDP, IPv4 and IPv6, from pods, nodes and outside clients.
%d of %d tests are covered by scenarios.
`, covered, len(upstreamTests))
	file := ""
	for _, t := range upstreamTests {
		of, name, _ := strings.Cut(t.name, ": ")
		if of != file {
			file = of
			fmt.Fprintf(w, "\n## %s\n\n| Test | Scenarios |\n|---|---|\n", file)
		}
		text := strings.Join(by[t.name], "; ")
		if text == "" {
			text = "*" + t.otherwise + "*"
		}
		fmt.Fprintf(w, "| %s | %s |\n", name, text)
	}
}
