// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// markChain is the chain that marks packets for masquerade.
const markChain = "masquerade-mark"

// Describer describes paths through the table of one family. It decodes the table once, for many packets. Not safe for
// concurrent use.
type Describer struct {
	*evaluator
	serviceIndex
	decoder *nft.Decoder
	packet  Packet
	// The destination, nil if it is no Service's.
	port     *inspect.ServicePort
	frontend *inspect.Frontend
}

// serviceIndex has the Service ports of a table, by frontend.
type serviceIndex struct {
	ports []inspect.ServicePort
	at    map[inspect.Key]destination
}

type destination struct {
	port     *inspect.ServicePort
	frontend *inspect.Frontend
}

func servicesOf(r *inspect.Ruleset) serviceIndex {
	s := serviceIndex{r.ServicePorts(nil), map[inspect.Key]destination{}}
	for i := range s.ports {
		p := &s.ports[i]
		proto, _ := nft.ParseProto(p.Protocol)
		for j := range p.Frontends {
			addr, _ := netip.ParseAddr(p.Frontends[j].Address) // a NodePort has none
			s.at[inspect.Key{Addr: addr, Proto: proto, Port: p.Frontends[j].Port}] = destination{p, &p.Frontends[j]}
		}
	}
	return s
}

// NewDescriber returns the Describer of a family's table.
func NewDescriber(r *inspect.Ruleset) *Describer {
	return &Describer{evaluator: newEvaluator(r), serviceIndex: servicesOf(r), decoder: nft.NewDecoder(r.Family)}
}

// start begins with another packet.
func (d *Describer) start(p Packet) { d.packet, d.port, d.frontend = p, nil, nil }

// note keeps the destination that a key belongs to.
func (d *Describer) note(k inspect.Key) {
	if to, ok := d.at[k]; ok && d.port == nil {
		d.port, d.frontend = to.port, to.frontend
	}
}

// Place is a rule of a chain, counted from 0.
type Place struct {
	Chain string
	Rule  int
}

// Description is the path that a packet took.
type Description struct {
	// Service is "namespace/service:port" of the destination, empty if it is no Service's.
	Service string
	// Steps has Set, Element and Text for each of the places, empty where there is nothing to say.
	Steps []Step
	// Masqueraded says for each of the places whether the rule chose the source.
	Masqueraded []bool
	// Foreseen is true when the path is one that Explain finds.
	Foreseen bool
}

// Describe describes the path that the first packet of a connection took: took are the rules that matched it, in order,
// until it left the chains of the table or a table of others dropped it. to is its translated destination, not valid if
// that is unknown.
func (d *Describer) Describe(p Packet, node Node, took []Place, to netip.AddrPort) *Description {
	d.start(p)
	without := node
	without.Client = nil // the client may not have been remembered at that time
	list := d.paths(p, without)
	if node.Client != nil {
		list = append(list, d.paths(p, node)...)
	}
	// The path that fits best has most rules in common, and the same end.
	best, most, others := 0, -1, false
	for i := range list {
		way := list[i].places()
		score := 4 * common(way, took)
		if to.IsValid() && list[i].state.to == to {
			score += 2
		}
		if len(way) == len(took) {
			score++
		}
		switch {
		case score > most:
			best, most, others = i, score, false
		case score == most && list[i].state.to != list[best].state.to:
			others = true
		}
	}
	b := &list[best]
	out := &Description{
		Foreseen: common(b.places(), took) == len(took), Steps: make([]Step, len(took)), Masqueraded: make([]bool, len(took)),
	}
	texts, did := map[Place]Step{}, map[Place]action{}
	for _, s := range d.steps(b) {
		texts[Place{s.Chain, s.Rule - 1}] = s
	}
	for _, s := range b.steps() {
		did[Place{s.chain, s.rule}] = s.action
	}
	for i, p := range took {
		step := texts[p]
		if others && did[p].drew > 0 {
			step.Set, step.Element = "", "" // which one was drawn is unknown
		}
		out.Steps[i], out.Masqueraded[i] = step, did[p].masquerade
	}
	d.note(inspect.Key{Addr: p.To.Addr(), Proto: p.Proto, Port: p.To.Port()})
	if d.port != nil {
		out.Service = d.port.Name
	}
	return out
}

// common is the number of places that two paths have in common at their beginning.
func common(a, b []Place) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i
}

// places are the rules that matched, the only ones that a trace of the kernel has.
func (b *branch) places() (out []Place) {
	for _, s := range b.steps() {
		if s.action.verdict != mismatch {
			out = append(out, Place{s.chain, s.rule})
		}
	}
	return out
}

// steps describes those steps of a branch that decided something.
func (d *Describer) steps(b *branch) []Step {
	all := b.steps()
	frontends := []nft.SetID{nft.Services, nft.NodePorts, nft.RejectServices, nft.DropServices, nft.RejectNodePorts, nft.DropNodePorts,
		nft.Restricted, nft.Steered, nft.HandedOver, nft.HostEndpoints}
	for _, s := range all {
		for i := range s.hits {
			id, ok := nft.ParseSet(s.hits[i].set)
			if k, decoded := d.decode(&s.hits[i]); ok && decoded && s.hits[i].found && slices.Contains(frontends, id) {
				d.note(inspect.Key{Addr: k.Addr, Proto: k.Proto, Port: k.Port})
			}
		}
	}
	out := []Step{}
	for _, s := range all {
		text := d.text(s)
		if text == "" {
			continue
		}
		step := Step{Hook: s.hook, Chain: inspect.Printable(s.chain), Rule: s.rule + 1, Text: text}
		for i := range s.hits { // the last that matched decided
			if s.hits[i].found {
				step.Set, step.Element = inspect.Printable(s.hits[i].set), d.element(&s.hits[i])
			}
		}
		out = append(out, step)
	}
	return out
}

func (d *Describer) decode(h *hit) (nft.Decoded, bool) {
	id, ok := nft.ParseSet(h.set)
	if !ok {
		return nft.Decoded{}, false
	}
	return d.decoder.Decode(&nft.Element{Set: id, Key: h.key, Data: h.data})
}

// found returns the lookup in one of the sets that matched.
func (s *step) found(sets ...nft.SetID) *hit {
	for i := range s.hits {
		if id, ok := nft.ParseSet(s.hits[i].set); ok && s.hits[i].found && slices.Contains(sets, id) {
			return &s.hits[i]
		}
	}
	return nil
}

func (s *step) has(sets ...nft.SetID) bool { return s.found(sets...) != nil }

// text describes what a rule did; it is empty for rules that only lead on.
func (d *Describer) text(s *step) string {
	a := &s.action
	switch {
	case s.chain == "source-ranges" && (a.verdict == drop || s.admitted()):
		return d.sourceRanges(s)
	case s.has(nft.Restricted):
		return ""
	case a.target == markChain:
		return "marked for masquerade: " + d.markReason(s)
	case s.has(nft.Services, nft.NodePorts):
		return d.program(s)
	case s.has(nft.LocalPrograms, nft.NodePortLocalPrograms):
		return "it comes from outside: only endpoints on this node, which see the client's address"
	case s.has(nft.ClusterPrograms, nft.NodePortClusterPrograms):
		if !strings.HasSuffix(s.chain, "external-local") {
			return ""
		}
		return "it comes from " + d.sender() + ": any endpoint, as from inside the cluster"
	case isSticky(s.chain):
		return d.sticky(s)
	case s.comment == nft.NoBalancer:
		return "the node has no route to the balancer behind the device, which is down or missing: refused, so that the packet does not leave by another device"
	case s.has(nft.Steered, nft.HandedOver):
		return d.steered(s)
	case s.has(nft.HostEndpoints):
		return "internalTrafficPolicy is Local, and the endpoint is a process of this node, which gets the packet directly"
	case a.dnat && d.isHandedOver(s):
		return "handed over to the balancer behind the device, which chooses the endpoint"
	case a.dnat && a.drew == 1:
		return "the only endpoint gets the packet"
	case a.dnat && a.drew > 1:
		return fmt.Sprintf("one of %d endpoints is drawn at random", a.drew)
	case a.dnat:
		return "the slot that was drawn is empty, so the first endpoint gets the packet"
	case a.masquerade && s.has(nft.Hairpin):
		return "masqueraded, so that the reply of an endpoint that reached itself comes back through the node"
	case a.masquerade:
		return "masqueraded: the endpoint sees an address of this node as the source"
	case s.has(nft.RejectServices, nft.RejectNodePorts):
		return "the Service has no endpoint that could serve, on any node"
	case s.has(nft.DropServices, nft.DropNodePorts):
		return "the traffic policy is Local and the Service has no endpoint on this node, though it has some on others"
	case s.has(nft.ClusterIPs) && a.target != "":
		return fmt.Sprintf("%s is a ClusterIP, but none of its Services has port %d for %s", d.packet.To.Addr(), d.packet.To.Port(), d.packet.Proto)
	case s.has(nft.ServiceCIDRs):
		return fmt.Sprintf("%s is in the range of ClusterIPs, but no Service has it", d.packet.To.Addr())
	case a.verdict == drop:
		return "dropped by a rule that this version does not write" + quoted(s.comment)
	case a.verdict == reject && s.chain != "refuse":
		return "refused by a rule that this version does not write" + quoted(s.comment)
	}
	return ""
}

func quoted(comment string) string {
	if comment == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", comment)
}

// steered is about the rules for what is left to the balancer behind a device.
func (d *Describer) steered(s *step) string {
	switch {
	case s.action.masquerade:
		return "masqueraded: the balancer sees the node's address on the device"
	case s.chain == "nat-output" && s.has(nft.HandedOver):
		return fmt.Sprintf("%s: left to the balancer behind the device, which handOff.hostClusterIPs sends it to", d.addressed())
	case s.action.verdict == leave:
		return ""
	}
	return fmt.Sprintf("%s; internalTrafficPolicy is Local: marked, so that routing leads it to the balancer behind the pod gateway", d.addressed())
}

// isHandedOver returns whether a DNAT is to another balancer.
func (d *Describer) isHandedOver(s *step) bool {
	h := s.found(nft.Endpoints, nft.NodePortEndpoints)
	if h == nil || d.frontend == nil {
		return false
	}
	e, _ := d.decode(h)
	return e.Endpoint.String() == d.frontend.HandedTo
}

// admitted returns whether the source is in a source range.
func (s *step) admitted() bool {
	return slices.ContainsFunc(s.hits, func(h hit) bool {
		id, ok := nft.ParseSet(h.set)
		return ok && h.found && id.Group() == nft.Allowed
	})
}

func (d *Describer) sourceRanges(s *step) string {
	ranges, is := "nobody", "is"
	if d.frontend != nil && len(d.frontend.SourceRanges) > 0 {
		ranges = strings.Join(d.frontend.SourceRanges, ", ")
	}
	if !s.admitted() {
		is = "is not"
	}
	return fmt.Sprintf("only %s may reach it (loadBalancerSourceRanges), and %s %s among them", ranges, d.packet.From.Addr(), is)
}

// Origins of packets.
const (
	fromHost    = "host"
	fromPod     = "pod"
	fromOutside = "outside"
)

// origin returns which kind of sender a packet has.
func (d *Describer) origin() string {
	pods := d.Config.Pods
	switch {
	case d.packet.IIF == "":
		return fromHost
	case pods.CIDRs && d.find(nft.Pods, string(d.packet.From.Addr().AsSlice())) != nil,
		pods.Interface != "" && (pods.Interface == d.packet.IIF || pods.Prefix && strings.HasPrefix(d.packet.IIF, pods.Interface)):
		return fromPod
	}
	return fromOutside
}

// sender is the origin in words. Ranges of pods may be those of all nodes: that it is a pod of this node is known only where
// pods are recognized by their interface.
func (d *Describer) sender() string {
	switch d.origin() {
	case fromHost:
		return "a process on this node"
	case fromPod:
		if d.Config.Pods.Interface != "" {
			return "a pod of this node"
		}
		return "a pod of the cluster"
	}
	return "a client from outside"
}

// markReason says why a packet is masqueraded.
func (d *Describer) markReason(s *step) string {
	switch {
	case strings.HasSuffix(s.chain, "external-local"):
		return "it comes from the node itself, whose address may differ from what the endpoint can answer to"
	case strings.HasSuffix(s.chain, "external"):
		return "under externalTrafficPolicy Cluster the endpoint may be on any node, and its reply has to come back through this one"
	case d.Config.MasqueradeAll:
		return "all traffic to ClusterIPs is (masqueradeAll)"
	case d.Config.Pods.Interface != "":
		return fmt.Sprintf("it does not come in by %s, so not from a pod of this node", inspect.Printable(d.Config.Pods.Interface))
	}
	return fmt.Sprintf("%s is not in the ranges of the pods, and the endpoint's reply has to come back through this node", d.packet.From.Addr())
}

// program names the destination and its policy.
func (d *Describer) program(s *step) string {
	e, _ := d.decode(s.found(nft.Services, nft.NodePorts))
	policy := "any endpoint may get the packet"
	switch e.Program.Kind() {
	case nft.KindLocal:
		policy = "internalTrafficPolicy is Local: only endpoints on this node"
	case nft.KindExternal, nft.KindNodePortExternal:
		policy = "externalTrafficPolicy is Cluster: any endpoint"
	case nft.KindExternalLocal, nft.KindNodePortExternalLocal:
		policy = "externalTrafficPolicy is Local: packets from outside may only go to endpoints on this node"
	case nft.KindAffinity:
		policy = "sessionAffinity is ClientIP: a client stays on its endpoint"
	}
	return fmt.Sprintf("%s; %s (program %s)", d.addressed(), policy, e.Program.Chain())
}

// addressed names the destination.
func (d *Describer) addressed() string {
	to := fmt.Sprintf("%s %s", d.packet.Proto, d.packet.To)
	if d.port == nil {
		return to
	}
	kind := map[string]string{"External": "an external address", "NodePort": "a NodePort", "ClusterIP": "the ClusterIP"}[d.frontend.Kind]
	return fmt.Sprintf("%s is %s of Service %s", to, kind, d.port.Name)
}

// isSticky returns whether a chain is one of session affinity, of one Service or shared.
func isSticky(chain string) bool {
	chain = strings.TrimPrefix(chain, "nodeport-")
	return strings.HasPrefix(chain, "affinity-") || strings.HasPrefix(chain, "sticky-") || strings.HasPrefix(chain, "draw-")
}

// sticky is about these chains.
func (d *Describer) sticky(s *step) string {
	switch a := &s.action; {
	case a.sticky == dynsetUpdate+1:
		return fmt.Sprintf("client %s is remembered", d.packet.From.Addr())
	case a.sticky == dynsetDelete+1 && a.target == "":
		return "the remembered endpoint is gone, so the client is forgotten"
	case a.drew == 1:
		return "the client is not remembered; there is one endpoint"
	case a.drew > 1:
		return fmt.Sprintf("the client is not remembered; one of %d endpoints is drawn at random", a.drew)
	case a.sticky == dynsetAdd+1:
		return fmt.Sprintf("the client is remembered for %s after its last new connection", d.timeout(s.chain))
	case a.dnat:
		for p := s.prev; p != nil; p = p.prev {
			if p.action.sticky == dynsetAdd+1 {
				return "" // the endpoint was chosen a moment ago
			}
		}
		return "it goes to the same endpoint as before"
	}
	return ""
}

func (d *Describer) timeout(chain string) time.Duration {
	for _, a := range d.Affinities() {
		if strings.TrimPrefix(chain, "nodeport-") == nft.AffinityMap(a.ID) {
			return a.Timeout
		}
	}
	return 0
}

// element prints an element as nft does.
func (d *Describer) element(h *hit) string {
	e, ok := d.decode(h)
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
	add(e.Addr.IsValid(), e.Addr)
	add(set == nft.Hairpin, e.Range.From)
	add(e.Proto != 0, e.Proto)
	add(e.Port != 0, e.Port)
	add(set.Group() == nft.Allowed, e.Range.From)
	add(e.Slot != 0 || e.Endpoint.IsValid() || e.ID != 0, nft.Program(e.Slot))
	text := strings.Join(parts, " . ")
	switch {
	case e.Endpoint.IsValid():
		text += fmt.Sprintf(" : %s . %d", e.Endpoint.Addr(), e.Endpoint.Port())
	case e.Program != 0:
		text += " : " + e.Program.String()
	case e.ID != 0:
		text += " : " + nft.Program(e.ID).String()
	}
	return text
}
