// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Key identifies a frontend. Addr is the zero value for a NodePort; Port is in host order.
type Key struct {
	Addr  netip.Addr
	Proto nft.Proto
	Port  uint16
}

func (k Key) String() string {
	if !k.Addr.IsValid() {
		return fmt.Sprintf("NodePort %d", k.Port)
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String()
}

// Ruleset is one family's table with its elements decoded. It is not changed after Read and safe for concurrent use.
type Ruleset struct {
	*nft.Snapshot
	Config nft.Config
	// Pods, ServiceCIDRs and NodePortAddresses are the elements of these sets, sorted as text.
	Pods, ServiceCIDRs, NodePortAddresses []string

	decoder    *nft.Decoder
	frontends  map[Key]*frontend
	clusterIPs map[netip.Addr]bool
	hairpin    map[Key]bool // endpoints
	affinities map[uint32]nft.Affinity
	counts     map[string]int // elements by set
}

// frontend has all elements of one address and port.
type frontend struct {
	Key
	name                                  string
	program                               nft.Program
	views                                 [2]nft.Program // of a policy
	refused, dropped, restricted, steered bool
	sources                               []nft.Range
	slots                                 []slotted // sorted by slot
	ids, byID                             []slotted // of session affinity: slot to id, id to endpoint
	hostEndpoint                          netip.AddrPort
}

// slotted is an endpoint or the id of one by slot, or an endpoint by id.
type slotted struct {
	slot, id uint32
	addr     netip.AddrPort
}

// Read decodes a table.
func Read(s *nft.Snapshot) *Ruleset {
	r := &Ruleset{
		Snapshot: s, Config: s.Config(), decoder: nft.NewDecoder(s.Family), frontends: make(map[Key]*frontend, len(s.Elements)/6),
		clusterIPs: map[netip.Addr]bool{}, hairpin: map[Key]bool{}, affinities: map[uint32]nft.Affinity{}, counts: map[string]int{},
	}
	for _, a := range s.Affinities() {
		r.affinities[a.ID] = a
	}
	for i := range s.Elements {
		e := &s.Elements[i]
		r.counts[e.Set.Group().String()]++
		if d, ok := r.decoder.Decode(e); ok {
			r.add(e, &d)
		}
	}
	for _, f := range r.frontends {
		f.resolve()
	}
	for _, list := range [][]string{r.Pods, r.ServiceCIDRs, r.NodePortAddresses} {
		slices.Sort(list) // the kernel lists in no order
	}
	return r
}

func (r *Ruleset) add(e *nft.Element, d *nft.Decoded) {
	k := Key{d.Addr, d.Proto, d.Port}
	switch e.Set {
	case nft.ClusterIPs:
		r.clusterIPs[d.Addr] = true
	case nft.Hairpin:
		r.hairpin[k] = true
	case nft.NodePortAddresses:
		r.NodePortAddresses = append(r.NodePortAddresses, d.Addr.String())
	case nft.Pods:
		r.Pods = append(r.Pods, prefixes(d.Range)...)
	case nft.ServiceCIDRs:
		r.ServiceCIDRs = append(r.ServiceCIDRs, prefixes(d.Range)...)
	case nft.StickyDraws: // part of the affinity
	default:
		f, ok := r.frontends[k]
		if !ok {
			f = &frontend{Key: k}
			r.frontends[k] = f
		}
		f.add(e, d)
	}
}

func (f *frontend) add(e *nft.Element, d *nft.Decoded) {
	if e.Comment != "" {
		f.name = Printable(e.Comment)
	}
	switch e.Set.Group() {
	case nft.Services, nft.NodePorts:
		f.program = d.Program
	case nft.ClusterPrograms, nft.NodePortClusterPrograms:
		f.views[nft.ClusterView] = d.Program
	case nft.LocalPrograms, nft.NodePortLocalPrograms:
		f.views[nft.LocalView] = d.Program
	case nft.Endpoints, nft.NodePortEndpoints:
		f.slots = append(f.slots, slotted{slot: d.Slot, addr: d.Endpoint})
	case nft.EndpointIDs, nft.NodePortEndpointIDs:
		f.ids = append(f.ids, slotted{slot: d.Slot, id: d.ID})
	case nft.EndpointsByID, nft.NodePortEndpointsByID:
		f.byID = append(f.byID, slotted{id: d.Slot, addr: d.Endpoint})
	case nft.RejectServices, nft.RejectNodePorts:
		f.refused = true
	case nft.DropServices, nft.DropNodePorts:
		f.dropped = true
	case nft.Restricted:
		f.restricted = true
	case nft.Steered, nft.HandedOver:
		f.steered = true
	case nft.HostEndpoints:
		f.hostEndpoint = d.Endpoint
	case nft.Allowed:
		f.sources = append(f.sources, d.Range)
	}
}

// resolve finds the endpoints of session affinity by their ids, and sorts.
func (f *frontend) resolve() {
	byID := make(map[uint32]netip.AddrPort, len(f.byID))
	for _, s := range f.byID {
		byID[s.id] = s.addr
	}
	for _, s := range f.ids {
		f.slots = append(f.slots, slotted{slot: s.slot, addr: byID[s.id]})
	}
	slices.SortFunc(f.slots, func(a, b slotted) int { return cmp.Compare(a.slot, b.slot) })
	slices.SortFunc(f.sources, func(a, b nft.Range) int { return a.From.Compare(b.From) })
}

// endpoints returns the endpoints of a view in the order of slots; an empty slot has the zero value.
func (f *frontend) endpoints(v nft.View) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range f.slots {
		if slot := nft.Slot(s.slot); slot.View() == v {
			for len(out) < slot.Index() {
				out = append(out, netip.AddrPort{})
			}
			out = append(out, s.addr)
		}
	}
	return out
}

func (f *frontend) state() State {
	switch {
	case f.program != 0 && f.dropped:
		return Internal
	case f.program != 0:
		return Served
	case f.refused && !f.dropped:
		return Refused
	}
	return Dropped // also when no element decides: then no chain handles the packet
}

// kind returns which kind of frontend it is.
func (r *Ruleset) kind(f *frontend) nft.FrontendKind {
	switch {
	case !f.Addr.IsValid():
		return nft.NodePort
	case r.clusterIPs[f.Addr]:
		return nft.ClusterIP
	}
	return nft.External
}

// kindName is the name of a kind in a Dump.
func kindName(k nft.FrontendKind) string { return [...]string{"ClusterIP", "External", "NodePort"}[k] }

// policy is the traffic policy as far as the elements show it: packets are dropped only under the Local policy.
func (r *Ruleset) policy(f *frontend) string {
	local := f.dropped
	switch k := f.program.Kind(); {
	case f.program == 0 && !f.dropped:
		return ""
	case k.IsAffinity():
		local = r.affinities[f.program.Arg()].View == nft.LocalView
	case k == nft.KindLocal, k == nft.KindExternalLocal, k == nft.KindNodePortExternalLocal:
		local = true
	}
	if local {
		return "Local"
	}
	return "Cluster"
}

// handedTo returns the destination that a frontend's packets get for another balancer, not valid if there is none: the
// ClusterIP, or an address with the Service's NodePort.
func (r *Ruleset) handedTo(f *frontend, all []*frontend) netip.AddrPort {
	if !r.Config.External.HandOff || r.kind(f) == nft.ClusterIP {
		return netip.AddrPort{}
	}
	cluster, local := f.endpoints(nft.ClusterView), f.endpoints(nft.LocalView)
	if len(cluster) == 1 && r.clusterIPs[cluster[0].Addr()] {
		return cluster[0]
	}
	for _, o := range all {
		if len(local) == 1 && !o.Addr.IsValid() && o.Port == local[0].Port() && !slices.Contains(cluster, local[0]) {
			return local[0]
		}
	}
	return netip.AddrPort{}
}

// Collect returns what a table holds. clients are the numbers of remembered clients by affinity number, as far as they
// are known (see nft.Affinity).
func Collect(s *nft.Snapshot, clients map[uint32]int) (Table, []ServicePort) {
	r := Read(s)
	return r.Table(), r.ServicePorts(clients)
}

// Table returns what belongs to no single Service.
func (r *Ruleset) Table() Table {
	t := Table{Family: r.Family.String(), Exists: r.Exists}
	if !r.Exists {
		return t
	}
	for _, d := range r.Differences(r.Config, nil) {
		t.Differences = append(t.Differences, Printable(d.String()))
	}
	t.AsWritten = len(t.Differences) == 0
	t.MasqueradeMark = fmt.Sprintf("0x%08x", uint32(1)<<r.Config.MasqueradeBit)
	t.MasqueradeAll = r.Config.MasqueradeAll
	t.Pods, t.NodePortAddresses, t.ServiceCIDRs, t.Elements = r.Pods, r.NodePortAddresses, r.ServiceCIDRs, r.counts
	if name := r.Config.Pods.Interface; name != "" {
		if r.Config.Pods.Prefix {
			name += "*"
		}
		t.Pods = append([]string{"iifname " + Printable(name)}, t.Pods...)
	}
	if r.Config.NodePortAll {
		t.NodePortAddresses = append([]string{"all"}, t.NodePortAddresses...)
	}
	t.Chains, t.Sets = len(r.Chains), len(r.Sets)
	for _, ch := range r.Chains {
		t.Rules += len(ch.Rules)
	}
	for _, f := range r.frontends {
		if f.name == "" {
			t.Orphans++
		}
	}
	return t
}

// owner identifies a Service port: two ports of one Service may have the same name and differ in protocol.
type owner struct {
	name  string
	proto nft.Proto
}

// ServicePorts groups the frontends by the Service port that their elements name, in the order of a Dump.
func (r *Ruleset) ServicePorts(clients map[uint32]int) []ServicePort {
	groups := map[owner][]*frontend{}
	for _, f := range r.frontends {
		if f.name != "" {
			o := owner{f.name, f.Proto}
			groups[o] = append(groups[o], f)
		}
	}
	out := make([]ServicePort, 0, len(groups))
	for o, fronts := range groups {
		out = append(out, r.servicePort(o, fronts, clients))
	}
	Sort(out)
	return out
}

// Sort puts Service ports in the order of a Dump.
func Sort(s []ServicePort) {
	slices.SortFunc(s, func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol))
	})
}

// Select returns the Service ports of one Service. A port that is not empty selects by its name, or by the number that
// clients use.
func Select(ports []ServicePort, namespace, service, port string) (out []ServicePort) {
	number, _ := strconv.ParseUint(port, 10, 16)
	for _, p := range ports {
		byNumber := slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return number != 0 && uint64(f.Port) == number })
		if p.Namespace == namespace && p.Service == service && (port == "" || p.Port == port || byNumber) {
			out = append(out, p)
		}
	}
	return out
}

func (r *Ruleset) servicePort(o owner, fronts []*frontend, clients map[uint32]int) ServicePort {
	slices.SortFunc(fronts, func(a, b *frontend) int {
		return cmp.Or(cmp.Compare(r.kind(a), r.kind(b)), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
	})
	p := ServicePort{Name: o.name, Family: r.Family.String(), Protocol: o.proto.String()}
	p.Namespace, p.Service, p.Port = splitName(o.name)
	var views [2][]netip.AddrPort
	for _, f := range fronts {
		out := Frontend{
			Kind: kindName(r.kind(f)), Address: addrText(f.Addr), Port: f.Port, Policy: r.policy(f), State: f.state(), Restricted: f.restricted,
			Steered: f.steered, HandedTo: endpointText(r.handedTo(f, fronts)), HostEndpoint: endpointText(f.hostEndpoint),
		}
		if f.program != 0 {
			out.Program = f.program.Chain()
		}
		for _, s := range f.sources {
			out.SourceRanges = append(out.SourceRanges, prefixes(s)...)
		}
		p.Frontends = append(p.Frontends, out)
		r.addAffinity(&p, f, clients)
	}
	for v := range views {
		views[v], p.Problems = r.common(fronts, nft.View(v), p.Problems)
	}
	p.Endpoints = Endpoints{Cluster: endpointTexts(views[nft.ClusterView]), Local: endpointTexts(views[nft.LocalView])}
	seen := map[netip.AddrPort]bool{}
	for _, e := range slices.Concat(views[nft.ClusterView], views[nft.LocalView]) {
		if r.hairpin[Key{e.Addr(), o.proto, e.Port()}] && !seen[e] {
			seen[e] = true
			p.Endpoints.Hairpin = append(p.Endpoints.Hairpin, e.String())
		}
	}
	for _, f := range fronts {
		p.Problems = append(p.Problems, r.problems(f)...)
	}
	return p
}

// common returns the endpoints that the frontends have in a view, and adds a problem when they differ. A frontend without
// endpoints may not need the view, and one that another balancer serves has its own.
func (r *Ruleset) common(fronts []*frontend, v nft.View, problems []string) ([]netip.AddrPort, []string) {
	var out []netip.AddrPort
	for _, f := range fronts {
		eps, handed := f.endpoints(v), r.handedTo(f, fronts)
		switch {
		case len(eps) == 0, handed.IsValid() && slices.Contains(eps, handed):
		case out == nil:
			out = eps
		case r.Config.External.HandOff && r.kind(f) != nft.ClusterIP: // the view of processes of the node
		case !slices.Equal(out, eps):
			problems = append(problems, fmt.Sprintf("%s has other endpoints in the %s view than the frontends before it", f, v))
		}
	}
	return out, problems
}

// addAffinity adds the views with session affinity that a frontend leads to.
func (r *Ruleset) addAffinity(p *ServicePort, f *frontend, clients map[uint32]int) {
	for _, program := range []nft.Program{f.program, f.views[nft.ClusterView], f.views[nft.LocalView]} {
		a, ok := r.affinities[program.Arg()]
		if !program.Kind().IsAffinity() || !ok {
			continue
		}
		if p.Affinity == nil {
			p.Affinity = &Affinity{TimeoutSeconds: int(a.Timeout / time.Second), Size: a.Size}
		}
		if n, known := clients[a.ID]; known {
			if p.Affinity.Clients == nil {
				p.Affinity.Clients = map[string]int{}
			}
			p.Affinity.Clients[a.View.String()] = n
		}
	}
}

// problems lists the elements of a frontend that do not fit together.
func (r *Ruleset) problems(f *frontend) (out []string) {
	add := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("%s: %s", f, fmt.Sprintf(format, args...)))
	}
	if f.program != 0 && f.refused {
		add("has program %s and is refused as well", f.program.Chain())
	}
	programs := []nft.Program{f.program}
	if f.program.Kind().IsPolicy() {
		programs = f.views[:]
		if f.views == [2]nft.Program{} {
			add("program %s finds no endpoints", f.program.Chain())
		}
	}
	for _, p := range programs {
		if p == 0 {
			continue
		}
		if !r.Leads(p) {
			add("program %s does not exist", p.Chain())
		}
		// The number of endpoints must be the one that the program draws from.
		modulus, v := p.Arg(), nft.ClusterView
		switch k := p.Kind(); {
		case k.IsAffinity():
			a, ok := r.affinities[p.Arg()]
			if !ok {
				continue // the program does not exist, which is a problem above
			}
			modulus, v = a.Modulus, a.View
		case k == nft.KindLocal, k == nft.KindNodePortLocal:
			v = nft.LocalView
		}
		eps := f.endpoints(v)
		if nft.Modulus(len(eps)) != modulus {
			add("%d endpoints in the %s view, but %s draws from %d slots", len(eps), v, p.Chain(), modulus)
		}
		if i := slices.Index(eps, netip.AddrPort{}); i >= 0 {
			add("slot %d of the %s view is empty", i, v)
		}
	}
	return out
}

func prefixes(r nft.Range) (out []string) {
	for _, p := range r.Prefixes() {
		out = append(out, p.String())
	}
	return out
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func endpointText(e netip.AddrPort) string {
	if !e.IsValid() {
		return ""
	}
	return e.String()
}

// endpointTexts prints endpoints; an empty slot is "".
func endpointTexts(eps []netip.AddrPort) (out []string) {
	for _, e := range eps {
		out = append(out, endpointText(e))
	}
	return out
}
