// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nftproxy/nftproxy/routing"
)

// The identity of the document with nftproxy's own settings.
const (
	OwnAPIVersion = "nftproxy.io/v1alpha1"
	OwnKind       = "NFTProxyConfiguration"
)

// Own are the settings that kube-proxy does not have, as they are written in a file: in a document of their own after
// the KubeProxyConfiguration, or in the file of --nftproxy-config. The doc tags are the text of the reference table.
type Own struct {
	metav1.TypeMeta `json:""`

	Manifests          string             `json:"manifests" doc:"Directory of manifest files that replaces the API server as the source of objects; --manifests takes precedence."`
	StrictSourceRanges bool               `json:"strictSourceRanges" doc:"If all loadBalancerSourceRanges of a Service are of one family, the Service is closed to clients of the other family. false: it is open to them, as with kube-proxy."`
	LocalhostNodePorts bool               `json:"localhostNodePorts" doc:"Serve NodePorts on loopback addresses, TCP and UDP; the same as the keyword localhost in nodePortAddresses."`
	AffinityMapSize    int                `json:"affinityMapSize" doc:"Number of clients remembered per Service port with session affinity and per family; further clients are balanced without being remembered. 1 to 16777216."`
	MaxServiceElements int                `json:"maxServiceElements" doc:"Number of set elements (some 100 bytes of kernel memory each) that one Service may use in both families, about frontends times endpoints; a Service that needs more keeps what it has, or is not served. 0: no limit."`
	MaxElements        int                `json:"maxElements" doc:"The same limit for all Services together, half of it for those of one namespace; a Service keeps what it has, and the oldest that wait are next. 0: no limit."`
	CountConnections   bool               `json:"countConnections" doc:"Count new connections to each address and NodePort of each Service: metric nftproxy_service_connections_total; see metrics.md for its cost."`
	BatchWindow        metav1.Duration    `json:"batchWindow" doc:"Shortest time between two transactions: a single change is committed at once, the changes of a burst together. 0s to 1s."`
	ExternalIPs        ExternalIPsSection `json:"externalIPs" doc:"Which addresses Services may have in spec.externalIPs."`
	StaleFlows         StaleFlows         `json:"staleFlows" doc:"Conntrack entries of endpoints that no longer serve; those of UDP are always deleted."`
	Routing            routing.Config     `json:"routing" doc:"Addresses, routes and rules beside the load balancing; see routing.md."`
}

// ExternalIPsSection is the externalIPs section.
type ExternalIPsSection struct {
	Allow []string `json:"allow" doc:"CIDRs from which Services may take external IPs, or the keyword all or none. An external IP outside of them is not served, and an Event of the Service says so."`
}

// StaleFlows is the staleFlows section: what happens to flows of endpoints that no longer serve. UDP flows are always
// deleted.
type StaleFlows struct {
	TCP   bool   `json:"tcp" doc:"Delete established TCP flows to endpoints that are gone: that no EndpointSlice lists any more."`
	SCTP  bool   `json:"sctp" doc:"Delete SCTP flows to endpoints that are gone."`
	Reset bool   `json:"reset" doc:"Answer such TCP flows with a reset, so that clients notice at once. Needs tcp."`
	Zone  uint16 `json:"zone" doc:"Conntrack zone of the flows; entries of other zones, such as those of Open vSwitch, stay."`
}

// newOwn returns the document with all defaults, into which a file is decoded: what the file does not name keeps its
// default.
func newOwn() *Own {
	return &Own{
		TypeMeta:           metav1.TypeMeta{APIVersion: OwnAPIVersion, Kind: OwnKind},
		StrictSourceRanges: true,
		// What the kernel gives a dynamic set without a size, and kube-proxy's limit.
		AffinityMapSize: 65536,
		// 12,500 endpoints behind a ClusterIP, a NodePort and two load balancer addresses are 50,000 in each of two
		// families: some 10 MB of kernel memory, and 30 MB in the process while the Service is built.
		MaxServiceElements: 100_000,
		// 1 GB. 30,000 Services with 30 endpoints each, reached in two ways in two families, are 3,600,000.
		MaxElements: 10_000_000,
		// Long enough to catch the Service and its slices of one kubectl apply, short against the 10 ms that a change
		// may take as a whole.
		BatchWindow: metav1.Duration{Duration: 2 * time.Millisecond},
		ExternalIPs: ExternalIPsSection{Allow: []string{keywordAll}},
		// An SCTP association to an endpoint that is gone cannot continue: deleting its entry only lets the client
		// reach another one.
		StaleFlows: StaleFlows{SCTP: true},
	}
}

// Limits of the own settings.
const (
	// maxAffinityMapSize keeps one map below some 2 GB of kernel memory (about 128 bytes per element).
	maxAffinityMapSize = 1 << 24
	maxBatchWindow     = time.Second
	// maxElements is what some 100 GB of kernel memory hold: a limit above it is a mistake.
	maxElements = 1_000_000_000
)

// own checks the document, fills in the defaults of routing, and returns the parsed external IPs.
func (c *checks) own(o *Own, root *field.Path) ExternalIPs {
	c.between(o.AffinityMapSize, 1, maxAffinityMapSize, root.Child("affinityMapSize"))
	c.between(o.MaxServiceElements, 0, maxElements, root.Child("maxServiceElements"))
	c.between(o.MaxElements, 0, maxElements, root.Child("maxElements"))
	w := o.BatchWindow.Duration
	c.that(w >= 0 && w <= maxBatchWindow, root.Child("batchWindow"), w.String(), "must be from 0s to 1s")
	c.that(o.StaleFlows.TCP || !o.StaleFlows.Reset, root.Child("staleFlows", "reset"), true, "needs staleFlows.tcp")
	routes, err := o.Routing.Normalize()
	if err != nil {
		c.that(false, root.Child("routing"), field.OmitValueType{}, err.Error())
	} else {
		o.Routing = routes
	}
	return c.externalIPs(o.ExternalIPs.Allow, root.Child("externalIPs", "allow"))
}
