// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// reporter turns what the loop decides and does into metrics, Events and log lines. It remembers what it last reported.
type reporter struct {
	metrics  *metrics.Metrics // nil reports nothing, as in a dry run
	recorder Recorder         // nil writes no Events
	families []nft.Family

	lost    map[kube.Name]string // the frontends that each Service does not get
	cidrs   map[kube.Name]string // the ServiceCIDRs that are refused
	invalid map[kube.Ref]bool    // the objects with invalid fields
	counts  map[kube.Kind]int    // how many of them there are of each kind
	noPorts string               // families without an address for NodePorts
	noNode  bool                 // there is no Node object
	noLocal [2]struct{ internal, external int }
}

func newReporter(m *metrics.Metrics, r Recorder, families []nft.Family) *reporter {
	return &reporter{metrics: m, recorder: r, families: families, lost: map[kube.Name]string{}, invalid: map[kube.Ref]bool{}, counts: map[kube.Kind]int{}}
}

func ipFamily(f nft.Family) v1.IPFamily {
	if f == nft.IPv4 {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// family returns the metrics of one family.
func (r *reporter) family(f nft.Family) *metrics.Family { return r.metrics.Family(ipFamily(f)) }

func (r *reporter) event(about kube.Ref, uid, reason, message string) {
	if r.recorder != nil {
		r.recorder.Event(about, uid, reason, message)
	}
}

// maxLosses is how many frontends an Event names; its note has room for no more.
const maxLosses = 16

// losses logs, and writes an Event about, frontends that a Service does not get, when they change: those that others have, and
// refused ones that no Service gets. There may be more of the latter than are described.
func (r *reporter) losses(svc *kube.Service, index *services.Index, refused []string, n int) {
	if r.metrics == nil {
		return
	}
	for _, l := range index.Losses(svc.Name) {
		if n++; len(refused) < maxLosses {
			refused = append(refused, fmt.Sprintf("%s belongs to Service %s", l.Claim, l.Winner))
		}
	}
	if more := n - len(refused); more > 0 {
		refused = append(refused, fmt.Sprintf("and %d more", more))
	}
	text := strings.Join(refused, "; ")
	if text == r.lost[svc.Name] {
		return
	}
	if text == "" {
		delete(r.lost, svc.Name)
		return
	}
	r.lost[svc.Name] = text
	klog.InfoS("Service does not get all addresses that it asks for", "service", svc.Name, "addresses", text)
	r.event(svc.Ref(), svc.UID, "FrontendTaken", text)
}

// forget forgets a Service that is gone.
func (r *reporter) forget(n kube.Name) { delete(r.lost, n) }

// setAside reports a Service that is not served as its objects ask; n are set aside in all.
func (r *reporter) setAside(ctx context.Context, u *update, reason string, n int, retry time.Duration, err error) {
	if r.metrics == nil {
		return
	}
	klog.FromContext(ctx).Error(err, "Set a Service aside, all others are served", "service", u.name, "reason", reason,
		"served", u.next != nil, "retryIn", retry)
	r.metrics.SetAside(u.name.Namespace, u.name.Name, reason, n)
	if u.service != nil {
		r.event(u.service.Ref(), u.service.UID, asideEvents[reason], err.Error())
	}
}

// asideEnded reports that a Service is served as its objects ask, or is gone.
func (r *reporter) asideEnded(n kube.Name, left int) {
	if r.metrics != nil {
		r.metrics.SetAside(n.Namespace, n.Name, "", left)
	}
}

// changes counts new and pending changes of a kind of object.
func (r *reporter) changes(kind kube.Kind, changes, pending int) {
	if kind == kube.KindService {
		r.metrics.ServiceChanges(changes, pending)
	} else {
		r.metrics.EndpointChanges(changes, pending)
	}
}

// problems logs and counts what sources found wrong with objects, and writes Events. uid returns the UID of a Service.
func (r *reporter) problems(problems map[kube.Ref]error, uid func(kube.Name) string) {
	for ref, err := range problems {
		switch known := r.invalid[ref]; {
		case err != nil && !known:
			r.invalid[ref] = true
			r.counts[ref.Kind]++
		case err == nil && known:
			delete(r.invalid, ref)
			r.counts[ref.Kind]--
		}
		r.metrics.Invalid(ref.Kind.String(), r.counts[ref.Kind])
		if err == nil {
			klog.InfoS("An object or file that was invalid is corrected or gone", "object", ref)
			continue
		}
		if ref.Kind == kube.KindFile {
			klog.ErrorS(err, "A manifest file is invalid; Services that it defined before stay as they were", "object", ref)
		} else {
			klog.ErrorS(err, "An object has invalid fields; the others are used", "object", ref)
		}
		id := ""
		if ref.Kind == kube.KindService {
			id = uid(ref.Name)
		}
		r.event(ref, id, "InvalidField", err.Error())
	}
}

// node reports what of the node's state limits the service, when it changes. missing is set if there is no Node object.
func (r *reporter) node(s *nodeState, missing bool) {
	switch {
	case missing && !r.noNode:
		klog.InfoS("There is no Node object of this name: NodePorts, Local policies and /healthz depend on it; check --hostname-override", "node", s.facts.Name)
	case r.noNode && !missing:
		klog.InfoS("The Node object is there now", "node", s.facts.Name)
	}
	r.noNode = missing
	for name, text := range s.refused {
		if r.cidrs[name] != text {
			klog.InfoS("ServiceCIDR is not used", "serviceCIDR", name.Name, "reason", text)
			r.event(kube.Ref{Kind: kube.KindServiceCIDR, Name: name}, "", "ServiceCIDRRefused", text)
		}
	}
	r.cidrs = s.refused
	var missingFamilies []string
	for _, f := range r.families {
		if s := s.of(f); !s.config.NodePortAll && len(s.nodePorts) == 0 {
			missingFamilies = append(missingFamilies, string(ipFamily(f)))
		}
	}
	none := strings.Join(missingFamilies, ", ")
	if none != r.noPorts && none != "" {
		klog.InfoS("NodePorts are not served: the Node object has no address for them; see nodePortAddresses", "families", none)
	}
	r.noPorts = none
}

// synced reports a successful pass.
func (r *reporter) synced(work *pending, start time.Time, full bool) {
	now := time.Now()
	for _, f := range r.families {
		m := r.family(f)
		m.Synced(metrics.Synced{Full: full, Took: now.Sub(start), At: now})
		for _, t := range work.triggers {
			if t.ipv6 == (f == nft.IPv6) {
				m.NetworkProgrammed(now.Sub(t.at))
			}
		}
	}
}

// endlessRepairs reports that the tables change or fail so often that they are not repaired at once any more.
func (r *reporter) endlessRepairs(node string) {
	const text = "the tables change or fail all the time, they are compared once in a second only; is there a second nftproxy, or kube-proxy, on this node?"
	klog.InfoS("Repairs are delayed", "reason", text)
	r.event(kube.Ref{Kind: kube.KindNode, Name: kube.Name{Name: node}}, "", "TablesChangeAllTheTime", text)
}

// failed counts a failed pass in the family that it is about, or in all.
func (r *reporter) failed(err error) {
	var op *kernel.OpError
	for _, f := range r.families {
		if !errors.As(err, &op) || op.Family == f {
			r.family(f).SyncFailed()
		}
	}
}

// countNoLocal follows the Service ports whose Local policy finds no endpoint on this node.
func (r *reporter) countNoLocal(updates []*update) {
	add := func(ports []services.Port, by int) {
		for i := range ports {
			n := &r.noLocal[familyIndex(ports[i].Family)]
			if ports[i].NoLocalInternal {
				n.internal += by
			}
			if ports[i].NoLocalExternal {
				n.external += by
			}
		}
	}
	for _, u := range updates {
		add(u.prevPorts(), -1)
		add(u.nextPorts(), 1)
	}
	for _, f := range r.families {
		n := r.noLocal[familyIndex(f)]
		r.family(f).NoLocalEndpoints(n.internal, n.external)
	}
}
