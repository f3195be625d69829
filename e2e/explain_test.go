// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// explained is a cluster whose packets are explained before they are sent.
type explained struct {
	*cluster
	tables map[*lab.Node]map[nft.Family]*nft.Snapshot
	names  map[string]string // of the backend at an endpoint
	cells  int
}

// cell is one packet, and the node whose tables decide on it.
type cell struct {
	judge *lab.Node
	from  *lab.Host
	proto lab.Proto
	to    netip.AddrPort
}

func (c cell) String() string {
	return fmt.Sprintf("%s %s from %s on %s", c.proto, c.to, c.from, c.judge)
}

// scenery are Services of all policies, LoadBalancers where a Service can be one.
func (x *explained) scenery() {
	x.t.Helper()
	local, cluster := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyLocal
	make := func(i int, name string, change func(*corev1.Service), eps ...lab.Endpoint) {
		ports := []corev1.ServicePort{lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080), lab.Port(lab.SCTP, 80, 8080)}
		svc := lab.WithExternalIP(lab.WithLoadBalancer(lab.NewService(name, 20+i, ports...), int32(30000+10*i), 20+i), 20+i)
		if change != nil {
			change(svc)
		}
		x.apply(svc, lab.NewSlices(svc, eps...))
	}
	here, here2, there := x.Pod(1, 1).Endpoint(), x.Pod(1, 2).Endpoint(), x.Pod(2, 1).Endpoint()
	make(0, "everywhere", nil, here, here2, there)
	make(1, "etp-local", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = cluster }, here, here2, there)
	make(2, "etp-absent", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = cluster }, there)
	make(3, "itp-local", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, here, there)
	make(4, "itp-absent", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, there)
	make(5, "nobody", nil)
	make(6, "fenced", func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{x.Client(1).IP(lab.IPv4).String() + "/32", x.Client(1).IP(lab.IPv6).String() + "/128"}
	}, here, there)
	make(7, "host", nil, x.Node(1).Endpoint(), x.Node(2).Endpoint())
	make(8, "itself", nil, here)
	cidrs := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "cluster-ips"}}
	for _, f := range lab.Families() {
		cidrs.Spec.CIDRs = append(cidrs.Spec.CIDRs, lab.ServiceCIDR(f).String())
	}
	x.apply(cidrs)
	for _, h := range []*lab.Host{x.Pod(1, 1).Host, x.Pod(1, 2).Host, x.Pod(2, 1).Host, x.Node(1).Host, x.Node(2).Host} {
		lab.Must(h.Serve(h.Name, 8080, lab.TCP, lab.UDP, lab.SCTP))(x.t)
		for _, f := range lab.Families() {
			x.names[h.At(f, 8080).String()] = h.Name
		}
	}
}

// grid returns every address of the Services, and some that no Service has, from every kind of sender.
func (x *explained) grid(f lab.Family) (out []cell) {
	var vips []netip.AddrPort
	for i := 20; i < 29; i++ {
		vips = append(vips, at(lab.ClusterIP(f, i), 80), at(lab.LoadBalancerIP(f, i), 80), at(lab.ExternalIP(f, i), 80))
	}
	vips = append(vips, at(lab.ClusterIP(f, 20), 81), at(lab.ClusterIP(f, 99), 80), at(lab.LoadBalancerIP(f, 20), 81), x.Pod(1, 1).At(f, 8080))
	senders := []struct {
		judge *lab.Node
		from  *lab.Host
	}{
		{x.Node(1), x.Pod(1, 1).Host}, {x.Node(1), x.Pod(1, 3).Host}, {x.Node(1), x.Node(1).Host},
		{x.Node(1), x.Client(1).Host}, {x.Node(1), x.Client(2).Host}, {x.Node(2), x.Pod(2, 2).Host},
	}
	for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} {
		for _, s := range senders {
			for _, vip := range vips {
				out = append(out, cell{s.judge, s.from, proto, vip})
			}
			// NodePorts of node 1, for every sender; and a port that is none.
			for i := range uint16(9) {
				if s.judge != x.Node(1) && (i == 1 || i == 2) {
					// A pod of another node counts as one of the cluster and keeps its address, so that the answer of an
					// endpoint elsewhere does not come back through node 1: with kube-proxy too.
					continue
				}
				out = append(out, cell{x.Node(1), s.from, proto, at(x.Node(1).IP(f), 30000+10*i+index(proto))})
			}
			out = append(out, cell{x.Node(1), s.from, proto, at(x.Node(1).IP(f), 31999)})
		}
	}
	return out
}

// index is the place of a protocol's port in the Services.
func index(p lab.Proto) uint16 {
	return uint16(slices.Index([]lab.Proto{lab.TCP, lab.UDP, lab.SCTP}, p))
}

// explain asks what will happen.
func (x *explained) explain(c cell) *explain.Explanation {
	f := nft.FamilyOf(c.to.Addr())
	proto, _ := nft.ParseProto(strings.ToLower(string(c.proto)))
	packet := explain.Packet{Proto: proto, To: c.to, From: at(x.source(c), 40000)}
	if c.from != c.judge.Host {
		packet.IIF, _ = route(c.judge.Host, packet.From.Addr())
	}
	return explain.Explain(inspect.Read(x.tables[c.judge][f]), inspect.Read(x.tables[c.judge][f.Other()]), packet, factsOf(c.judge.Host))
}

// source is the address that a sender sends from.
func (x *explained) source(c cell) netip.Addr {
	if routes, err := c.from.NL.RouteGet(c.to.Addr().AsSlice()); err == nil {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok {
			return a.Unmap()
		}
	}
	return c.from.IP(lab.FamilyOf(c.to.Addr()))
}

func route(h *lab.Host, a netip.Addr) (iface string, ok bool) {
	routes, err := h.NL.RouteGet(a.AsSlice())
	if err != nil {
		return "", false
	}
	link, err := h.NL.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", false
	}
	return link.Attrs().Name, true
}

func factsOf(h *lab.Host) explain.Node {
	return explain.Node{
		Local: func(a netip.Addr) bool { return isLocal(h, a) },
		Route: func(a netip.Addr) (string, bool) { return route(h, a) },
	}
}

func isLocal(h *lab.Host, a netip.Addr) bool {
	addrs, err := h.NL.AddrList(nil, 0)
	if err != nil {
		return false
	}
	for _, b := range addrs {
		if ip, _ := netip.AddrFromSlice(b.IP); ip.Unmap() == a {
			return true
		}
	}
	return false
}

// perCandidate bounds the odds that one of 3 candidates is never drawn: (2/3)^60 is 3e-11.
const sent, perCandidate = 2, 20

// agree sends the packets of all cells and compares. Those that should end alike go together: an ICMP error concerns every raw
// socket that speaks SCTP with its sender, whatever the port.
func (x *explained) agree(cells []cell) {
	x.t.Helper()
	batches := map[lab.Verdict]*batch{}
	for _, c := range cells {
		e := x.explain(c)
		want := x.verdict(c, e)
		if batches[want] == nil {
			batches[want] = &batch{}
		}
		batches[want].add(c, e, want)
	}
	for _, want := range slices.Sorted(maps.Keys(batches)) {
		b := batches[want]
		results := lab.SendAll(b.probes, 64)
		for i, c := range b.cells {
			x.cells++
			probes := b.probes[b.first[i] : b.first[i]+b.sent[i]]
			why := x.compare(c, b.answers[i], results[b.first[i]:b.first[i]+b.sent[i]])
			// Raw sockets of one host receive each other's ICMP errors, as for an answer that comes after its sender gave
			// up. What happens again when sent alone is no such chance.
			for tries := 0; why != "" && c.proto == lab.SCTP && tries < 3; tries++ {
				why = x.compare(c, b.answers[i], lab.SendAll(probes, 1))
			}
			if why != "" {
				var text bytes.Buffer
				_ = explain.Text(&text, b.answers[i])
				x.t.Errorf("%s: %s\n%s", c, why, text.String())
			}
		}
	}
}

// batch is cells of one outcome, with what to send for them.
type batch struct {
	cells       []cell
	answers     []*explain.Explanation
	first, sent []int // of probes
	probes      []lab.Probe
}

func (b *batch) add(c cell, e *explain.Explanation, want lab.Verdict) {
	n, timeout := sent, lab.DefaultTimeout
	switch {
	case e.Outcome == explain.Delivered:
		n = perCandidate * len(e.Candidates)
	case want == lab.Dropped:
		timeout = 300 * time.Millisecond
	}
	b.cells, b.answers, b.first, b.sent = append(b.cells, c), append(b.answers, e), append(b.first, len(b.probes)), append(b.sent, n)
	for range n {
		b.probes = append(b.probes, lab.Probe{From: c.from, Proto: c.proto, To: c.to, Timeout: timeout})
	}
}

// compare holds an explanation against what happened, and says where they differ.
func (x *explained) compare(c cell, e *explain.Explanation, results []lab.Result) string {
	if len(e.Warnings) > 0 {
		return "warns: " + e.Warnings[0]
	}
	if e.Outcome != explain.Delivered {
		want := x.verdict(c, e)
		for _, r := range results {
			// A raw socket whose packet is refused or dropped on the way out gets the error at once.
			toldAtOnce := c.proto == lab.SCTP && c.from == c.judge.Host && want != lab.Answered && errors.Is(r.Err, unix.EPERM)
			if r.Verdict != want && !toldAtOnce {
				return fmt.Sprintf("%s, want %s", r, want)
			}
		}
		return ""
	}
	candidates := map[string]*explain.Candidate{} // by backend
	for i := range e.Candidates {
		candidates[x.names[e.Candidates[i].Endpoint]] = &e.Candidates[i]
	}
	reached := map[string]bool{}
	for _, r := range results {
		candidate, ok := candidates[r.Backend]
		if !ok || r.Verdict != lab.Answered {
			return fmt.Sprintf("%s, which is no candidate", r)
		}
		reached[r.Backend] = true
		own := r.Source.Addr().String() == e.Request.From
		switch {
		case !candidate.Masqueraded && !own:
			return fmt.Sprintf("%s, want its own address %s as the source", r, e.Request.From)
		case candidate.Masqueraded && !isLocal(c.judge.Host, r.Source.Addr()):
			return fmt.Sprintf("%s, want an address of %s as the source", r, c.judge)
		}
	}
	if len(reached) != len(candidates) {
		return fmt.Sprintf("only %v were reached", reached)
	}
	return ""
}

// verdict is what a sender sees of an outcome.
func (x *explained) verdict(c cell, e *explain.Explanation) lab.Verdict {
	switch {
	case e.Outcome == explain.Refused:
		return lab.Refused
	case e.Outcome == explain.Dropped:
		return lab.Dropped
	case e.Outcome == explain.Delivered, x.names[c.to.String()] != "": // or straight to an endpoint
		return lab.Answered
	case e.Outcome == explain.Untouched && isLocal(c.judge.Host, c.to.Addr()) && c.proto == lab.SCTP:
		return lab.Dropped // the lab's raw socket takes it
	case e.Outcome == explain.Untouched && isLocal(c.judge.Host, c.to.Addr()):
		return lab.Refused // nothing listens
	}
	return lab.Unreachable
}

// Explain and the kernel agree on every packet.
func TestExplainAgrees(t *testing.T) {
	x := &explained{cluster: fromManifests(t, lab.Options{Clients: 2}), tables: map[*lab.Node]map[nft.Family]*nft.Snapshot{}, names: map[string]string{}}
	x.scenery()
	x.start()
	for _, n := range x.Nodes {
		x.tables[n] = map[nft.Family]*nft.Snapshot{nft.IPv4: x.settled(n, nft.IPv4), nft.IPv6: x.settled(n, nft.IPv6)}
	}
	before := lab.Must(lab.NFT(x.Node(1).Host, "list", "ruleset"))(t)
	for _, f := range lab.Families() {
		x.agree(x.grid(f))
	}
	x.commands()
	if after := lab.Must(lab.NFT(x.Node(1).Host, "list", "ruleset"))(t); withoutCounters(after) != withoutCounters(before) {
		t.Errorf("the ruleset changed:\n%s\n--- was\n%s", after, before)
	}
	t.Logf("%d cells", x.cells)
}

// settled is a table once all Services are in it.
func (x *explained) settled(n *lab.Node, f nft.Family) *nft.Snapshot {
	x.t.Helper()
	for deadline := time.Now().Add(lab.HangLimit); ; time.Sleep(20 * time.Millisecond) {
		s := x.snapshot(n, f)
		table, ports := inspect.Collect(s, nil)
		if len(ports) == 9*3 && len(table.ServiceCIDRs) == 1 {
			return s
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("%s %s: %d Service ports, %d Service CIDRs", n, f, len(ports), len(table.ServiceCIDRs))
		}
	}
}

// commands runs the subcommands as a user does, on the same table.
func (x *explained) commands() {
	x.t.Helper()
	bin := lab.Must(lab.NftproxyBinary())(x.t)
	for _, f := range lab.Families() {
		for _, c := range []cell{
			{x.Node(1), x.Node(1).Host, lab.TCP, at(lab.ClusterIP(f, 20), 80)},
			{x.Node(1), x.Client(1).Host, lab.TCP, at(lab.LoadBalancerIP(f, 22), 80)},
			{x.Node(1), x.Pod(1, 1).Host, lab.UDP, at(lab.ClusterIP(f, 25), 80)},
		} {
			args := []string{bin, "explain", strings.ToLower(string(c.proto)), c.to.String(), "-o", "json"}
			if c.from != c.judge.Host {
				args = append(args, "--from", c.from.IP(f).String())
			}
			var got explain.Explanation
			if err := json.Unmarshal([]byte(inquire(x.t, c.judge.Host, args...)), &got); err != nil {
				x.t.Fatal(err)
			}
			if want := x.explain(c); got.Summary != want.Summary || got.Outcome != want.Outcome {
				x.t.Errorf("%s: the command says %q, the package %q", c, got.Summary, want.Summary)
			}
		}
	}
	var d inspect.Dump
	if err := json.Unmarshal([]byte(lab.Must(x.Node(1).Run(bin, "dump", "-o", "json"))(x.t)), &d); err != nil {
		x.t.Fatal(err)
	}
	if len(d.ServicePorts) != 2*9*3 || !d.Tables[0].AsWritten || !d.Tables[1].AsWritten {
		x.t.Errorf("dump: %d Service ports, tables %+v", len(d.ServicePorts), d.Tables)
	}
}

// withoutCounters leaves out what packets change.
func withoutCounters(ruleset string) string {
	var out []string
	for _, line := range strings.Split(ruleset, "\n") {
		if i := strings.Index(line, "counter packets"); i >= 0 {
			fields := strings.Fields(line[i:])
			line = line[:i] + strings.Join(fields[min(5, len(fields)):], " ")
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// Explain knows a client that session affinity remembers, and names the endpoint that it reaches.
func TestExplainAffinity(t *testing.T) {
	x := &explained{cluster: fromManifests(t, lab.Options{}), tables: map[*lab.Node]map[nft.Family]*nft.Snapshot{}, names: map[string]string{}}
	svc := lab.NewService("sticky", 10, lab.Port(lab.TCP, 80, 8080))
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	x.apply(svc, lab.NewSlices(svc, endpoints(x.pods()...)...))
	x.serve(8080, x.pods(), lab.TCP)
	x.start()
	bin := lab.Must(lab.NftproxyBinary())(t)
	for _, f := range lab.Families() {
		vip, from := at(lab.ClusterIP(f, 10), 80), x.Pod(1, 1)
		ask := func() (e explain.Explanation) {
			if err := json.Unmarshal([]byte(lab.Must(x.Node(1).Run(bin, "explain", "tcp", vip.String(), "--from", from.IP(f).String(), "-o", "json"))(t)), &e); err != nil {
				t.Fatal(err)
			}
			return e
		}
		if e := ask(); len(e.Candidates) != len(x.pods()) {
			t.Errorf("%s: %d candidates before, want all: %s", f, len(e.Candidates), e.Summary)
		}
		first := from.Ask(lab.TCP, vip)
		e := ask()
		if len(e.Candidates) != 1 {
			t.Fatalf("%s: %d candidates after, want 1: %s", f, len(e.Candidates), e.Summary)
		}
		for range 5 {
			if r := from.Ask(lab.TCP, vip); r.Backend != first.Backend || e.Candidates[0].Endpoint != x.at(r.Backend, f).String() {
				t.Errorf("%s: first %s, then %s, but explained as %s", f, first, r, e.Candidates[0].Endpoint)
			}
		}
	}
}

// at is the address of the backend of a pod.
func (x *explained) at(name string, f lab.Family) netip.AddrPort {
	for _, p := range x.pods() {
		if p.Name == name {
			return p.At(f, 8080)
		}
	}
	return netip.AddrPort{}
}
