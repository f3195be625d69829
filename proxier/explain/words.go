// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// markChain is the chain that asks for masquerade.
const markChain = "masquerade-mark"

// narrator puts steps into words.
type narrator struct {
	*lookups
	snapshot *nft.Snapshot
	config   nft.Config
	tables   *tables
	decoder  *nft.Decoder
	packet   Packet
	// What the packet is addressed to, nil if to no Service.
	port     *inspect.ServicePort
	frontend *inspect.Frontend
}

func newNarrator(s *nft.Snapshot, p Packet) *narrator {
	n := &narrator{
		lookups: newLookups(s), snapshot: s, config: s.Config(), tables: index(s), decoder: nft.NewDecoder(s.Family), packet: p,
	}
	return n
}

// meet notes which Service a key belongs to.
func (n *narrator) meet(d *nft.Decoded) {
	a := address{proto: d.Proto.String(), port: d.Port}
	if d.Addr.IsValid() {
		a.addr = d.Addr.String()
	}
	if e, ok := n.fronts[a]; ok && n.port == nil {
		n.port, n.frontend = e.port, e.frontend
	}
}

// steps puts those steps of a way into words that tell something.
func (n *narrator) steps(b *branch) []Step {
	all := b.steps()
	for _, s := range all {
		for i := range s.hits {
			if d, ok := n.decode(&s.hits[i]); ok && s.hits[i].found && isFront(s.hits[i].set) {
				n.meet(&d)
			}
		}
	}
	out := []Step{}
	for _, s := range all {
		text := n.words(s)
		if text == "" {
			continue
		}
		step := Step{Hook: s.hook, Chain: s.chain, Rule: s.rule + 1, Text: text}
		if h := s.decisive(); h != nil {
			step.Set, step.Element = h.set, n.element(h)
		}
		out = append(out, step)
	}
	return out
}

// isFront tells sets whose keys are frontends that have a name.
func isFront(set string) bool {
	switch id, ok := nft.ParseSet(set); {
	case !ok:
		return false
	default:
		switch id {
		case nft.Services, nft.NodePorts, nft.RejectServices, nft.DropServices, nft.RejectNodePorts, nft.DropNodePorts, nft.Restricted,
			nft.Steered, nft.HostEndpoints:
			return true
		}
		return false
	}
}

func (n *narrator) decode(h *hit) (nft.Decoded, bool) {
	id, ok := nft.ParseSet(h.set)
	if !ok {
		return nft.Decoded{}, false
	}
	return n.decoder.Decode(&nft.Element{Set: id, Key: h.key, Data: h.data})
}

// found returns the lookup in a set that matched.
func (s *step) found(set string) *hit {
	for i := range s.hits {
		if s.hits[i].set == set && s.hits[i].found {
			return &s.hits[i]
		}
	}
	return nil
}

// missed tells whether a set was looked up in vain.
func (s *step) missed(set nft.SetID) bool {
	for i := range s.hits {
		if s.hits[i].set == set.String() && !s.hits[i].found {
			return true
		}
	}
	return false
}

func (s *step) has(set nft.SetID) bool { return s.found(set.String()) != nil }

// decisive is the lookup to show: the last one that matched, or else the last.
func (s *step) decisive() *hit {
	for i := len(s.hits) - 1; i >= 0; i-- {
		if s.hits[i].found {
			return &s.hits[i]
		}
	}
	return nil
}

// words says what a rule did, in the user's words; empty for rules that only lead on.
func (n *narrator) words(s *step) string {
	a := &s.action
	switch {
	case s.has(nft.Restricted):
		return n.sourceRanges(s)
	case a.target == markChain:
		return "marked for masquerade: " + n.markReason(s)
	case s.has(nft.Services), s.has(nft.NodePorts):
		return n.program(s)
	case s.has(nft.ClusterPrograms), s.has(nft.NodePortClusterPrograms), s.has(nft.LocalPrograms), s.has(nft.NodePortLocalPrograms):
		return n.view(s)
	case isSticky(s.chain):
		return n.sticky(s)
	case s.has(nft.Steered):
		return n.steered(s)
	case s.has(nft.HostEndpoints):
		return "internalTrafficPolicy is Local, and the endpoint is a process of this node: it gets the packet at once"
	case a.dnat && n.isHandedOver(s):
		return "handed over to the balancer behind the device, which chooses the endpoint"
	case a.dnat && a.drew == 1:
		return "the one endpoint there is gets the packet"
	case a.dnat && a.drew > 1:
		return fmt.Sprintf("one of %d endpoints is drawn at random", a.drew)
	case a.dnat:
		return "the slot that was drawn is empty, so the first endpoint gets the packet"
	case a.masquerade && s.has(nft.Hairpin):
		return "masqueraded, so that the answer of an endpoint that reached itself comes back through the node"
	case a.masquerade:
		return "masqueraded: the endpoint sees an address of this node as the source"
	}
	return n.unserved(s)
}

// steered is about the rules for what the balancer behind the pod gateway serves.
func (n *narrator) steered(s *step) string {
	switch {
	case s.action.masquerade:
		return "masqueraded: the balancer sees the node's address on the device"
	case s.action.verdict == leave:
		return ""
	}
	return fmt.Sprintf("%s; internalTrafficPolicy is Local: marked, so that routing leads it to the balancer behind the pod gateway", n.addressed())
}

// isHandedOver tells whether a DNAT is to another balancer.
func (n *narrator) isHandedOver(s *step) bool {
	for _, set := range []nft.SetID{nft.Endpoints, nft.NodePortEndpoints} {
		if h := s.found(set.String()); h != nil && n.frontend != nil {
			d, _ := n.decode(h)
			return d.Endpoint.String() == n.frontend.HandedTo
		}
	}
	return false
}

// unserved is about what is refused or dropped, and about rules that are not of this version.
func (n *narrator) unserved(s *step) string {
	a := &s.action
	switch {
	case s.has(nft.RejectServices), s.has(nft.RejectNodePorts):
		return "the Service has no endpoint that could serve, on any node"
	case s.has(nft.DropServices), s.has(nft.DropNodePorts):
		return "the traffic policy is Local and the Service has no endpoint on this node, though it has some on others"
	case s.has(nft.ClusterIPs) && a.target != "":
		return fmt.Sprintf("%s is a ClusterIP, but none of its Services has port %d for %s", n.packet.To.Addr(), n.packet.To.Port(), n.packet.Proto)
	case s.has(nft.ServiceCIDRs):
		return fmt.Sprintf("%s is in the range of ClusterIPs, but no Service has it", n.packet.To.Addr())
	case a.verdict == drop:
		return fmt.Sprintf("dropped by a rule that this version does not write%s", quoted(s.comment))
	case a.verdict == reject && s.chain != "refuse":
		return fmt.Sprintf("refused by a rule that this version does not write%s", quoted(s.comment))
	}
	return ""
}

func quoted(comment string) string {
	if comment == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", comment)
}

func (n *narrator) sourceRanges(s *step) string {
	var ranges string
	if n.frontend != nil {
		ranges = strings.Join(n.frontend.SourceRanges, ", ")
	}
	if s.missed(nft.Allowed) {
		return fmt.Sprintf("only %s may reach it (loadBalancerSourceRanges), and %s is not among them", orNobody(ranges), n.packet.From.Addr())
	}
	return fmt.Sprintf("only %s may reach it (loadBalancerSourceRanges), and %s is among them", orNobody(ranges), n.packet.From.Addr())
}

func orNobody(s string) string {
	if s == "" {
		return "nobody"
	}
	return s
}

// markReason says why a packet is to be masqueraded.
func (n *narrator) markReason(s *step) string {
	switch {
	case strings.HasSuffix(s.chain, "external-local"):
		return "it comes from the node itself, whose address may differ from what the endpoint can answer to"
	case strings.HasSuffix(s.chain, "external"):
		return "under externalTrafficPolicy Cluster the endpoint may be on any node, and its answer has to come back through this one"
	case n.config.MasqueradeAll:
		return "all traffic to ClusterIPs is (masqueradeAll)"
	case n.config.Pods.Interface != "":
		return fmt.Sprintf("it does not come in by %s, so not from a pod of this node", n.config.Pods.Interface)
	}
	return fmt.Sprintf("%s is not a pod of this node, and the endpoint's answer has to come back through it", n.packet.From.Addr())
}

// program says what is addressed and which policy applies.
func (n *narrator) program(s *step) string {
	h := s.found(nft.Services.String())
	if h == nil {
		h = s.found(nft.NodePorts.String())
	}
	d, _ := n.decode(h)
	policy := "any endpoint may get the packet"
	switch d.Program.Kind() {
	case nft.KindLocal:
		policy = "internalTrafficPolicy is Local: only endpoints on this node"
	case nft.KindExternal, nft.KindNodePortExternal:
		policy = "externalTrafficPolicy is Cluster: any endpoint"
	case nft.KindExternalLocal, nft.KindNodePortExternalLocal:
		policy = "externalTrafficPolicy is Local: what comes from outside may only go to endpoints on this node"
	case nft.KindAffinity:
		policy = "sessionAffinity is ClientIP: a client stays on its endpoint"
	}
	return fmt.Sprintf("%s; %s (program %s)", n.addressed(), policy, d.Program.Chain())
}

// view says which endpoints a policy gives.
func (n *narrator) view(s *step) string {
	switch {
	case s.has(nft.LocalPrograms), s.has(nft.NodePortLocalPrograms):
		return "it comes from outside: only endpoints on this node, which see the client's address"
	case !strings.HasSuffix(s.chain, "external-local"):
		return ""
	case n.origin() == fromHost:
		return "it comes from the node itself: any endpoint, as from inside the cluster"
	}
	return "it comes from a pod of this node: any endpoint, as from inside the cluster"
}

// isSticky tells the chains of sessionAffinity, those of one Service and those that all share.
func isSticky(chain string) bool {
	chain = strings.TrimPrefix(chain, "nodeport-")
	return strings.HasPrefix(chain, "affinity-") || strings.HasPrefix(chain, "sticky-") || strings.HasPrefix(chain, "draw-")
}

// sticky is about these chains.
func (n *narrator) sticky(s *step) string {
	switch a := &s.action; {
	case a.sticky == dynsetUpdate+1:
		return fmt.Sprintf("client %s is remembered", n.packet.From.Addr())
	case a.sticky == dynsetDelete+1 && a.target == "":
		return "the endpoint remembered is gone, so the client is forgotten"
	case a.drew == 1:
		return "the client is not remembered; there is one endpoint"
	case a.drew > 1:
		return fmt.Sprintf("the client is not remembered; one of %d endpoints is drawn at random", a.drew)
	case a.sticky == dynsetAdd+1:
		return fmt.Sprintf("the client is remembered for %s after its last new connection", n.timeout(s.chain))
	case a.dnat && !s.isNew():
		return "it goes to the same endpoint as before"
	}
	return ""
}

// isNew tells whether an endpoint was chosen for the client on the way to a step.
func (s *step) isNew() bool {
	for p := s.prev; p != nil; p = p.prev {
		if p.action.sticky == dynsetAdd+1 {
			return true
		}
	}
	return false
}

func (n *narrator) timeout(chain string) time.Duration {
	for _, a := range n.snapshot.Affinities() {
		if strings.TrimPrefix(chain, "nodeport-") == nft.AffinityMap(a.ID) {
			return a.Timeout
		}
	}
	return 0
}

// element prints a key as nft does.
func (n *narrator) element(h *hit) string {
	d, ok := n.decode(h)
	if !ok {
		return ""
	}
	var parts []string
	add := func(ok bool, v any) {
		if ok {
			parts = append(parts, fmt.Sprint(v))
		}
	}
	set, _ := nft.ParseSet(h.set)
	add(d.Addr.IsValid(), d.Addr)
	add(set == nft.Hairpin, d.Range.From)
	add(d.Proto != 0, d.Proto)
	add(d.Port != 0, d.Port)
	add(set == nft.Allowed, n.packet.From.Addr())
	add(d.Slot != 0 || d.Endpoint.IsValid() || d.ID != 0, nft.Program(d.Slot))
	text := strings.Join(parts, " . ")
	switch {
	case d.Endpoint.IsValid():
		text += fmt.Sprintf(" : %s . %d", d.Endpoint.Addr(), d.Endpoint.Port())
	case d.Program != 0:
		text += " : " + d.Program.String()
	case d.ID != 0:
		text += " : " + nft.Program(d.ID).String()
	}
	return text
}
