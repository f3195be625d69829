// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/routing"
)

// The identity of our own configuration document.
const (
	OwnAPIVersion = "nftproxy.io/v1alpha1"
	OwnKind       = "NFTProxyConfiguration"
)

// NFTProxyConfiguration are the settings that kube-proxy does not have, as they
// stand in a file: a document of its own in the file of --config, after the
// KubeProxyConfiguration, or the file of --nftproxy-config. The doc tags are
// the text of the reference table.
type NFTProxyConfiguration struct {
	metav1.TypeMeta `json:""`

	Manifests          string            `json:"manifests" doc:"Directory of manifest files that is watched in place of an API server; same as --manifests, which wins."`
	StrictSourceRanges bool              `json:"strictSourceRanges" doc:"A Service whose loadBalancerSourceRanges are all of one family is closed to the other family. false: it is open to it, as with kube-proxy."`
	LocalhostNodePorts bool              `json:"localhostNodePorts" doc:"Serve NodePorts on loopback addresses, TCP and UDP; same as the keyword localhost in nodePortAddresses."`
	AffinityMapSize    int               `json:"affinityMapSize" doc:"Clients remembered per Service port with session affinity, per family; more are balanced without being remembered. 1 to 16777216."`
	MaxServiceElements int               `json:"maxServiceElements" doc:"Elements of the kernel's tables (some 100 bytes each) that one Service may ask for in both families, about frontends times endpoints; one that asks for more is not served. 0: no bound."`
	MaxElements        int               `json:"maxElements" doc:"The same for all Services together; the youngest that do not fit are not served. 0: no bound."`
	CountConnections   bool              `json:"countConnections" doc:"Count new connections to each address and NodePort of each Service: metric nftproxy_service_connections_total, see metrics.md for what it costs."`
	BatchWindow        metav1.Duration   `json:"batchWindow" doc:"How far apart two transactions are at least: a change that comes alone goes at once, those of a burst together. 0s to 1s."`
	StaleFlows         StaleFlowsSection `json:"staleFlows" doc:"Conntrack entries of endpoints that no longer serve; those of UDP are always deleted."`
	Routing            routing.Config    `json:"routing" doc:"Addresses, routes and rules beside the balancing; see routing.md."`
}

// StaleFlowsSection is the staleFlows section.
type StaleFlowsSection struct {
	TCP   bool `json:"tcp" doc:"Delete established TCP flows to endpoints that are gone."`
	SCTP  bool `json:"sctp" doc:"Delete SCTP flows to endpoints that are gone."`
	Reset bool `json:"reset" doc:"Answer such TCP flows with a reset, so that clients notice at once. Needs tcp."`
}

// newOwnDocument returns the document with all defaults, into which a file is
// decoded: what the file does not name keeps its default.
func newOwnDocument() *NFTProxyConfiguration {
	return &NFTProxyConfiguration{
		TypeMeta:           metav1.TypeMeta{APIVersion: OwnAPIVersion, Kind: OwnKind},
		StrictSourceRanges: true,
		// What the kernel gives a dynamic set without a size, and kube-proxy's limit.
		AffinityMapSize: 65536,
		// 100,000 endpoints behind a ClusterIP, a NodePort and two load balancer
		// addresses are 400,000 in each of two families; some 100 MB of kernel memory.
		MaxServiceElements: 1_000_000,
		// 1 GB. 30,000 Services with 30 endpoints each, reached in two ways in two
		// families, are 3,600,000.
		MaxElements: 10_000_000,
		// Long enough to catch the Service and its slices of one kubectl apply,
		// short against the 10 ms that a change may take as a whole.
		BatchWindow: metav1.Duration{Duration: 2 * time.Millisecond},
		// An SCTP association to an endpoint that is gone cannot go on: deleting
		// its entry only lets the client reach another one.
		StaleFlows: StaleFlowsSection{SCTP: true},
	}
}
