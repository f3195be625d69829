// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/json"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TableName is the name of our table in both families.
const TableName = "nftproxy"

// Config is what of the node's configuration the rules depend on. What changes while running (addresses, ranges) is in sets
// instead. The table stores it (see Content.Config), hence the short names in JSON.
type Config struct {
	// MasqueradeBit is the bit of the packet mark that requests masquerade, 0 to 31.
	MasqueradeBit uint8 `json:"b"`
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool `json:"a,omitzero"`
	// Pods distinguishes packets of pods on this node from others.
	Pods PodMatch `json:"p,omitzero"`
	// NodePortAll takes NodePorts at every address of the node but loopback; otherwise at NodePortAddresses.
	NodePortAll bool `json:"n,omitzero"`
	// ExternalBalancer is about a balancer behind a device.
	External ExternalBalancer `json:"-"`
	// Connections counts new connections, for Services that are Counted.
	Connections bool `json:"c,omitzero"`
}

// PodMatch matches packets of this node's pods. With the zero value no packet is one.
type PodMatch struct {
	// CIDRs matches the source against the set Pods.
	CIDRs bool `json:"c,omitzero"`
	// Interface is the name of the input interface, or with Prefix how it begins.
	Interface string `json:"i,omitzero"`
	Prefix    bool   `json:"p,omitzero"`
}

// Hook is where a base chain is attached.
type Hook struct {
	Type     string // filter, nat or route
	Num      uint32 // NF_INET_*
	Priority int32
}

// Chain is a chain with its rules; Hook is nil for one that others jump to.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
	// Data are parameters that the rules were made from, at most maxData bytes; the kernel stores them with the first rule.
	Data string
}

// maxData bounds Chain.Data: a rule's user data have 256 bytes, of which a fingerprint takes 10 and a type and length 2.
const maxData = 244

// encodeData returns parameters as Chain.Data.
func encodeData(v any) string {
	b, err := json.Marshal(v)
	if err != nil || len(b) > maxData {
		return "" // a reader then takes the table for one of another version
	}
	return string(b)
}

// Priorities of the hooks (uapi/linux/netfilter_ipv4.h).
const (
	dstnat = -100 // NF_IP_PRI_NAT_DST
	filter = 0    // NF_IP_PRI_FILTER
	srcnat = 100  // NF_IP_PRI_NAT_SRC
)

// Skeleton returns the chains that every table has, callees before callers, with rules for source ranges of some prefix
// lengths. It depends on nothing but its arguments.
func Skeleton(f Family, c Config, lengths []int) []Chain {
	l := lang{f}
	chains := []Chain{
		{Name: configChain, Data: encodeData(c), Rules: []Rule{{"", all(key([]load{meta(expr.MetaKeyMARK)}), one(
			mask(^c.mark(), c.mark()), setMark()))}}},
		{Name: balancerChain, Data: c.External.encode(), Rules: refuse(f)},
	}
	for _, k := range []Kind{KindAffinity, KindNodePortAffinity} {
		chains = append(chains, l.stickyChains(k)...)
	}
	for _, k := range []Kind{KindExternal, KindNodePortExternal} {
		chains = append(chains, Chain{Name: k.chain(), Rules: l.external(k)})
	}
	for _, k := range []Kind{KindExternalLocal, KindNodePortExternalLocal} {
		chains = append(chains, Chain{Name: k.chain(), Rules: l.externalLocal(k, c)})
	}
	chains = append(chains,
		Chain{Name: "run", Rules: []Rule{
			{"a policy, which puts a program in its place", dispatch(Policies)},
			{"what ends in DNAT", dispatch(Programs)},
		}},
		Chain{Name: "services", Rules: l.services(c)},
		l.sourceRanges(lengths),
		Chain{Name: "unserved", Rules: l.unserved()},
		Chain{Name: "unused", Rules: l.unused()},
		Chain{Name: "unserved-nodeports", Rules: l.unservedNodePorts(c)},
	)
	if c.External.Steering {
		chains = append(chains, l.steer(c.External))
	}
	if c.External.HandOff && c.External.HandOffHop.IsValid() {
		chains = append(chains, Chain{Name: noBalancerChain, Rules: l.noBalancer(c.External)})
	}
	return append(chains, l.baseChains(c)...)
}

func (c Config) mark() uint32 { return 1 << (c.MasqueradeBit & 31) }

// baseChains attaches the chains to the hooks.
func (l lang) baseChains(c Config) []Chain {
	call := func(chain string) []Rule { return []Rule{{"", one(jump(chain))}} }
	callNew := func(chains ...string) (rules []Rule) {
		for _, chain := range chains {
			rules = append(rules, Rule{"", all(ctNew(), one(jump(chain)))})
		}
		return rules
	}
	return []Chain{
		// Source ranges come before DNAT because afterwards the VIP is gone.
		{Name: "filter-prerouting", Hook: &Hook{"filter", unix.NF_INET_PRE_ROUTING, dstnat - 10}, Rules: callNew("source-ranges")},
		{Name: "filter-output-early", Hook: &Hook{"filter", unix.NF_INET_LOCAL_OUT, dstnat - 10}, Rules: callNew("source-ranges")},
		{Name: "nat-prerouting", Hook: &Hook{"nat", unix.NF_INET_PRE_ROUTING, dstnat}, Rules: call("services")},
		{Name: "nat-output", Hook: &Hook{"nat", unix.NF_INET_LOCAL_OUT, dstnat}, Rules: append(l.natOutput(c.External), call("services")...)},
		// Packets are refused only here because reject is not legal in prerouting before Linux 5.9, and because
		// what was translated then has another destination.
		{Name: "filter-input", Hook: &Hook{"filter", unix.NF_INET_LOCAL_IN, filter}, Rules: callNew("unserved", "unserved-nodeports")},
		{Name: "filter-forward", Hook: &Hook{"filter", unix.NF_INET_FORWARD, filter}, Rules: append(l.handedOver(c.External), callNew("unserved", "unused")...)},
		{Name: "filter-output", Hook: &Hook{"filter", unix.NF_INET_LOCAL_OUT, filter}, Rules: append(l.filterOutput(c.External), callNew("unserved", "unserved-nodeports", "unused")...)},
		// The source may only be chosen when the route is known.
		{Name: "nat-postrouting", Hook: &Hook{"nat", unix.NF_INET_POST_ROUTING, srcnat}, Rules: l.postrouting(c)},
	}
}

// services finds the program of what the packet is addressed to.
func (l lang) services(c Config) []Rule {
	rules := []Rule{
		{"", all(find(Services.String(), l.vip()...), one(goTo("run")))},
		{"", all(l.toNodePort(c), find(NodePorts.String(), port()...), one(goTo("run")))},
	}
	if c.Connections {
		// Sets of their own: an element of the maps is written anew when the number of endpoints changes, and would then
		// count from 0. Only the first packet of a connection comes here.
		rules = []Rule{
			{"counts", in(Connections.String(), l.vip()...)}, rules[0],
			{"counts", all(l.toNodePort(c), in(NodePortConnections.String(), port()...))}, rules[1],
		}
	}
	if outside, ok := l.fromOutside(c); ok {
		mark := Rule{"to a ClusterIP from outside the pods", all(in(ClusterIPs.String(), l.daddr()), outside, one(jump("masquerade-mark")))}
		rules = append([]Rule{mark}, rules...)
	}
	return rules
}

// fromOutside matches what does not come from this node's pods; ok is false if there is nothing to distinguish.
func (l lang) fromOutside(c Config) (match []expr.Any, ok bool) {
	switch {
	case c.MasqueradeAll:
		return nil, true
	case c.Pods.CIDRs:
		return notIn(Pods.String(), l.saddr()), true
	case c.Pods.Interface != "":
		return iifname(c.Pods.Interface, c.Pods.Prefix, true), true
	}
	return nil, false
}

// fromPods matches what comes from this node's pods.
func (l lang) fromPods(c Config) (match []expr.Any, ok bool) {
	switch {
	case c.Pods.CIDRs:
		return in(Pods.String(), l.saddr()), true
	case c.Pods.Interface != "":
		return iifname(c.Pods.Interface, c.Pods.Prefix, false), true
	}
	return nil, false
}

// toNodePort matches the addresses that take NodePorts.
func (l lang) toNodePort(c Config) []expr.Any {
	if c.NodePortAll {
		return all(fibLocal(false), l.notLoopback())
	}
	return in(NodePortAddresses.String(), l.daddr())
}

// viewMaps are the maps of a policy from what is addressed to the programs of its views.
func (l lang) viewMaps(k Kind) (cluster, local string, fields []load) {
	if k.IsNodePort() {
		return NodePortClusterPrograms.String(), NodePortLocalPrograms.String(), port()
	}
	return ClusterPrograms.String(), LocalPrograms.String(), l.vip()
}

// external is externalTrafficPolicy Cluster: the endpoint may be on any node, so its answer has to come back here.
func (l lang) external(k Kind) []Rule {
	cluster, _, fields := l.viewMaps(k)
	return []Rule{
		{"", one(jump("masquerade-mark"))},
		{"", find(cluster, fields...)},
	}
}

// externalLocal is externalTrafficPolicy Local: it concerns what comes from outside the cluster only.
func (l lang) externalLocal(k Kind, c Config) []Rule {
	cluster, local, fields := l.viewMaps(k)
	toCluster := all(find(cluster, fields...), one(verdict(expr.VerdictReturn, "")))
	var rules []Rule
	if pods, ok := l.fromPods(c); ok {
		rules = append(rules, Rule{"pods of this node get any endpoint", all(pods, toCluster)})
	}
	return append(rules,
		Rule{"the node itself too", all(fibLocal(true), one(jump("masquerade-mark")))},
		Rule{"", all(fibLocal(true), toCluster)},
		Rule{"others get a local one and keep their address", find(local, fields...)})
}

// sourceRanges drops what loadBalancerSourceRanges do not admit. There is one rule for each prefix length in use.
func (l lang) sourceRanges(lengths []int) Chain {
	back := one(verdict(expr.VerdictReturn, ""))
	rules := []Rule{{"not restricted", all(notIn(Restricted.String(), l.vip()...), back)}}
	for _, bits := range lengths {
		source := l.saddr()
		fields := append(l.vip(), source)
		load := key(fields)
		if bits < l.f.AddrLen()*8 {
			load = append(load, l.maskAt(reg0+uint32(l.f.AddrLen()/4)+2, bits))
		}
		rules = append(rules, Rule{"", all(load, one(&expr.Lookup{SourceRegister: reg0, SetName: AllowedSources(bits).String()}), back)})
	}
	return Chain{Name: "source-ranges", Rules: append(rules, Rule{notAdmitted, drop()})}
}

// Comments of rules that refuse or drop, by which their counters are found.
const (
	noEndpoint      = "no endpoint"
	noLocalEndpoint = "no local endpoint"
	unusedPort      = "unused port of a ClusterIP"
	noService       = "address of no Service"
	notAdmitted     = "not in the source ranges"
	// NoBalancer is of what is steered or handed over and would leave the node by another route.
	NoBalancer = "no route to the external balancer"
)

// unserved judges what is still addressed to a VIP after DNAT had its chance.
func (l lang) unserved() []Rule {
	return []Rule{
		{noEndpoint, all(in(RejectServices.String(), l.vip()...), one(&expr.Counter{}, goTo("refuse")))},
		{noLocalEndpoint, all(in(DropServices.String(), l.vip()...), drop())},
	}
}

// unused judges what is addressed to a ClusterIP that no port of a Service took. Not on its way to a process of the
// node: software like NodeLocal DNSCache has ClusterIPs as addresses of its own.
func (l lang) unused() []Rule {
	return []Rule{
		{unusedPort, all(in(ClusterIPs.String(), l.daddr()), one(&expr.Counter{}, goTo("refuse")))},
		{noService, all(in(ServiceCIDRs.String(), l.daddr()), drop())},
	}
}

func (l lang) unservedNodePorts(c Config) []Rule {
	return []Rule{
		{noEndpoint, all(l.toNodePort(c), in(RejectNodePorts.String(), port()...), one(&expr.Counter{}, goTo("refuse")))},
		{noLocalEndpoint, all(l.toNodePort(c), in(DropNodePorts.String(), port()...), drop())},
	}
}

// refuse answers so that a client fails at once: TCP with a reset, because ICMP is rate limited.
func refuse(f Family) []Rule {
	code := map[Family]uint8{IPv4: icmpPortUnreachable, IPv6: icmp6PortUnreachable}[f]
	return []Rule{
		{"", all(key([]load{l4proto()}), one(equal([]byte{byte(TCP)}), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))},
		{"", one(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})},
	}
}

// Codes of "port unreachable" in RFC 792 and RFC 4443.
const (
	icmpPortUnreachable  = 3
	icmp6PortUnreachable = 4
)

// postrouting masquerades what was marked and what a pod sends to itself through a Service.
func (l lang) postrouting(c Config) []Rule {
	endpoint := append([]load{l.saddr()}, l.vip()...)
	return append([]Rule{
		{"our scratch register", all(dnated(), one(immediate(0), setPriority()))},
		{"", all(key([]load{meta(expr.MetaKeyMARK)}), one(mask(c.mark(), 0), equal(native(c.mark()))),
			key([]load{meta(expr.MetaKeyMARK)}), one(mask(^uint32(0), c.mark()), setMark(), masquerade()))},
		{"hairpin", all(dnated(), in(Hairpin.String(), endpoint...), one(masquerade()))},
	}, l.sources(c.External)...)
}

// DropReason is why a packet is not let through.
type DropReason struct {
	Refused bool   // answered, so that the client fails at once; otherwise dropped silently
	Name    string // label of a metric
}

// DropCounter is how many packets one rule refused or dropped.
type DropCounter struct {
	DropReason
	// Rule is the chain and the comment of the rule, Handle its number in the table: a rule that was written anew counts from
	// 0 and usually has another handle.
	Rule    string
	Handle  uint64
	Packets uint64
}

// DropRules are the rules that refuse or drop, by chain and comment. A test holds that the list is complete.
func DropRules() map[string]map[string]DropReason {
	refused := DropReason{true, "no-endpoints"}
	dropped := DropReason{false, "no-local-endpoints"}
	unserved := map[string]DropReason{noEndpoint: refused, noLocalEndpoint: dropped}
	return map[string]map[string]DropReason{
		"unserved":           unserved,
		"unserved-nodeports": unserved,
		"unused":             {unusedPort: {true, "unused-port"}, noService: {false, "no-service"}},
		"source-ranges":      {notAdmitted: {false, "source-ranges"}},
		"filter-output":      {NoBalancer: {true, "no-external-balancer"}},
		noBalancerChain:      {NoBalancer: {true, "no-external-balancer"}},
	}
}

// DropReasons lists all reasons, each once.
func DropReasons() []DropReason {
	return []DropReason{{true, "no-endpoints"}, {true, "unused-port"}, {true, "no-external-balancer"}, {false, "no-local-endpoints"}, {false, "no-service"}, {false, "source-ranges"}}
}
