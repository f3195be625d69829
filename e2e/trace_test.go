// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/trace"
)

// tracing is a cluster whose first node is watched.
type tracing struct {
	*cluster
	bin     string
	proxies []*lab.Proxy
}

// firewall drops what the stories below send to port 9999, and has chains of its own that let pass.
const firewall = `table inet firewall {
	chain guard {
		tcp dport 9999 drop comment "no nines"
	}
	chain forward {
		type filter hook forward priority 10
		meta l4proto tcp jump guard
	}
	chain raw {
		type filter hook prerouting priority raw
		tcp dport 9998 drop comment "early"
	}
}
`

// traceScene starts a cluster with Services of all fates, and a firewall on node 1.
func traceScene(t *testing.T) *tracing {
	x := &tracing{cluster: fromManifests(t, lab.Options{Clients: 2}), bin: lab.Must(lab.NftproxyBinary())(t)}
	make := func(i int, name string, target uint16, change func(*corev1.Service), eps ...lab.Endpoint) {
		svc := lab.NewService(name, 20+i, lab.Port(lab.TCP, 80, target), lab.Port(lab.UDP, 80, target))
		svc = lab.WithLoadBalancer(svc, int32(30000+10*i), 20+i)
		if change != nil {
			change(svc)
		}
		x.apply(svc, lab.NewSlices(svc, eps...))
	}
	here, there := x.Pod(1, 1).Endpoint(), x.Pod(2, 1).Endpoint()
	make(0, "web", 8080, nil, here, x.Pod(1, 2).Endpoint(), there)
	make(1, "nobody", 8080, nil)
	make(2, "fenced", 8080, func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{x.Client(1).IP(lab.IPv4).String() + "/32", x.Client(1).IP(lab.IPv6).String() + "/128"}
	}, there)
	make(3, "itself", 8080, nil, here)
	make(4, "host", 8080, nil, x.Node(1).Endpoint())
	make(5, "blocked", 9999, nil, there)
	make(6, "sticky", 8080, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, here, there)
	lab.Must(x.Node(1).Serve("node-1", 8080, lab.TCP, lab.UDP))(t)
	x.serve(8080, x.pods(), lab.TCP, lab.UDP)
	x.proxies = x.start()
	for i := range 7 {
		if i == 1 || i == 6 { // refused; and no client is to be remembered yet
			continue
		}
		p := lab.Probe{From: x.Pod(1, 3).Host, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv6, 20+i), 80), Timeout: 200 * time.Millisecond}
		want := lab.Answered
		if i == 5 {
			want = lab.Refused // nothing listens
		}
		if r, ok := p.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == want }); !ok {
			t.Fatalf("%s: %s, want %s", p.To, r, want)
		}
	}
	if err := lab.LoadNFT(x.Node(1).Host, firewall); err != nil {
		t.Fatal(err)
	}
	return x
}

// watch starts a trace on node 1 and waits until it is on.
func (x *tracing) watch(args ...string) *lab.Process {
	x.t.Helper()
	p := lab.Must(x.Node(1).Spawn(filepath.Join(x.t.TempDir(), "trace"), append([]string{x.bin, "trace"}, args...)...))(x.t)
	x.until("the trace is on", func() bool { return x.listeners() == 1 && x.tables() > 0 })
	return p
}

// listeners counts the sockets of node 1 that listen to traces: protocol 12 is netfilter, group 9 NFNLGRP_NFTRACE.
func (x *tracing) listeners() (n int) {
	x.t.Helper()
	for _, line := range strings.Split(lab.Must(x.Node(1).Run("cat", "/proc/thread-self/net/netlink"))(x.t), "\n") {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "12" && f[3] == fmt.Sprintf("%08x", 1<<8) {
			n++
		}
	}
	return n
}

func (x *tracing) tables() int {
	return strings.Count(lab.Must(lab.NFT(x.Node(1).Host, "list", "tables"))(x.t), nft.TraceTablePrefix)
}

func (x *tracing) until(what string, ok func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(lab.HangLimit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("does not come about: %s", what)
		}
	}
}

// paths are those that a trace has written.
func paths(t *testing.T, p *lab.Process) (out []trace.Path) {
	t.Helper()
	log := lab.Must(os.ReadFile(p.Log))(t)
	log = log[:bytes.LastIndexByte(log, '\n')+1] // a line may be half written
	var schema map[string]any
	if err := json.Unmarshal(lab.Must(os.ReadFile("../docs/dump.schema.json"))(t), &schema); err != nil {
		t.Fatal(err)
	}
	for sc := bufio.NewScanner(bytes.NewReader(log)); sc.Scan(); {
		if !strings.HasPrefix(sc.Text(), "{") {
			continue
		}
		var path trace.Path
		if err := json.Unmarshal(sc.Bytes(), &path); err != nil {
			t.Fatalf("%v: %s", err, sc.Text())
		}
		var doc any
		_ = json.Unmarshal(sc.Bytes(), &doc)
		for _, problem := range conforms(schema, schema, doc, "") {
			t.Errorf("%s in\n%.2000s", problem, sc.Text())
		}
		out = append(out, path)
	}
	return out
}

// fate is a packet and what trace has to report of it.
type fate struct {
	from    *lab.Host
	proto   lab.Proto
	to      netip.AddrPort
	outcome explain.Outcome
	service string
	masq    bool
	says    string // part of the summary
}

// fates are packets that node 1 judges.
func (x *tracing) fates(f lab.Family) []fate {
	pod, node, client, stranger := x.Pod(1, 1).Host, x.Node(1).Host, x.Client(1).Host, x.Client(2).Host
	vip := func(i int) netip.AddrPort { return at(lab.ClusterIP(f, 20+i), 80) }
	lb := func(i int) netip.AddrPort { return at(lab.LoadBalancerIP(f, 20+i), 80) }
	np := func(i int) netip.AddrPort { return at(x.Node(1).IP(f), uint16(30000+10*i)) }
	const tcp, udp = "default/%s:tcp-80", "default/%s:udp-80"
	name := func(form, s string) string { return fmt.Sprintf(form, s) }
	return []fate{
		{x.Pod(1, 3).Host, lab.TCP, vip(0), explain.Sent, name(tcp, "web"), false, "endpoint"},
		{x.Pod(1, 3).Host, lab.UDP, vip(0), explain.Sent, name(udp, "web"), false, "endpoint"},
		{node, lab.TCP, vip(0), explain.Sent, name(tcp, "web"), true, "endpoint"},
		{client, lab.TCP, lb(0), explain.Sent, name(tcp, "web"), true, "endpoint"},
		{client, lab.TCP, np(0), explain.Sent, name(tcp, "web"), true, "endpoint"},
		{client, lab.UDP, at(x.Node(1).IP(f), 30001), explain.Sent, name(udp, "web"), true, "endpoint"},
		{pod, lab.TCP, vip(1), explain.Refused, name(tcp, "nobody"), false, "no endpoint that could serve"},
		{node, lab.UDP, vip(1), explain.Refused, name(udp, "nobody"), false, "no endpoint that could serve"},
		{client, lab.TCP, np(1), explain.Refused, name(tcp, "nobody"), false, "no endpoint that could serve"},
		{client, lab.TCP, lb(2), explain.Sent, name(tcp, "fenced"), true, "endpoint"},
		{stranger, lab.TCP, lb(2), explain.Dropped, name(tcp, "fenced"), false, "loadBalancerSourceRanges"},
		{stranger, lab.UDP, lb(2), explain.Dropped, name(udp, "fenced"), false, "loadBalancerSourceRanges"},
		{pod, lab.TCP, vip(3), explain.Sent, name(tcp, "itself"), true, "endpoint " + pod.At(f, 8080).String()},
		{node, lab.TCP, vip(4), explain.Received, name(tcp, "host"), true, "endpoint " + node.At(f, 8080).String()},
		{client, lab.UDP, lb(4), explain.Received, name(udp, "host"), false, "endpoint " + node.At(f, 8080).String()},
		{pod, lab.TCP, vip(5), explain.Dropped, name(tcp, "blocked"), false, `table inet firewall, chain guard, rule 1, handle`},
		{client, lab.TCP, at(x.Node(1).IP(f), 9998), explain.Dropped, "", false, `table inet firewall, chain raw, rule 1, handle`},
		{x.Pod(1, 2).Host, lab.TCP, vip(6), explain.Sent, name(tcp, "sticky"), false, "endpoint"},
		{x.Pod(1, 2).Host, lab.UDP, vip(6), explain.Sent, name(udp, "sticky"), false, "endpoint"},
	}
}

// Real packets are reported as nft reports them, rule by rule, with a true summary.
func TestTraceAgreesWithNFT(t *testing.T) {
	x := traceScene(t)
	before, metrics := x.ruleset(), x.metrics()
	for _, f := range lab.Families() {
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if f == lab.IPv6 {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		p := x.watch("--from", everything.String(), "--count", "0", "--timeout", "2m", "-o", "json")
		peer := lab.Must(x.Node(1).Spawn(filepath.Join(t.TempDir(), "nft"), "nft", "-a", "monitor", "trace"))(t)
		x.until("nft listens", func() bool { return x.listeners() == 2 })
		fates := x.fates(f)
		for _, c := range fates {
			lab.Probe{From: c.from, Proto: c.proto, To: c.to, Timeout: 200 * time.Millisecond}.Send()
		}
		x.until("all are reported", func() bool { return len(paths(t, p)) >= len(fates) })
		if err := p.Stop(); !isAnswer(err) { // some packets were refused
			t.Errorf("%v\n%s", err, p.Tail(20))
		}
		x.compare(paths(t, p), peer)
		for i := range fates {
			x.check(&fates[i], paths(t, p))
		}
		if err := peer.Stop(); err != nil {
			t.Error(err)
		}
	}
	if after := x.ruleset(); after != before {
		t.Errorf("the ruleset changed: %s", cmp.Diff(before, after))
	}
	if after := x.metrics(); after != metrics {
		t.Errorf("the proxy did something: %s", cmp.Diff(metrics, after))
	}
}

// check compares what is reported of a packet with what it must be.
func (x *tracing) check(c *fate, all []trace.Path) {
	x.t.Helper()
	source := c.from.IP(lab.FamilyOf(c.to.Addr())).String()
	for i := range all {
		p := &all[i]
		from, err := netip.ParseAddrPort(p.Packet.From)
		if err != nil || from.Addr().String() != source || p.Packet.To != c.to.String() || p.Packet.Protocol != strings.ToLower(string(c.proto)) {
			continue
		}
		if p.Outcome != c.outcome || p.Service != c.service || p.Masqueraded != c.masq || !strings.Contains(p.Summary, c.says) || len(p.Warnings) > 0 {
			var text bytes.Buffer
			_ = trace.Text(&text, p, true)
			x.t.Errorf("%s from %s: want %s of %s, masqueraded %v, %q:\n%s", c.to, c.from, c.outcome, c.service, c.masq, c.says, text.String())
		}
		return
	}
	x.t.Errorf("%s %s from %s is not reported", c.proto, c.to, c.from)
}

// What nft prints: a packet's headers, a rule with its handle, a policy.
var (
	nftLine   = regexp.MustCompile(`^trace id (\S+) (\S+ \S+) (\S+) (packet:|rule|policy|return)(.*)$`)
	nftHandle = regexp.MustCompile(`# handle (\d+) \(verdict ([^)]*)\)`)
	nftPacket = regexp.MustCompile(`ip6? saddr (\S+) ip6? daddr (\S+) .*sport (\S+) .*dport (\S+) `)
)

// compare holds the paths against what nft saw at the same time.
func (x *tracing) compare(got []trace.Path, peer *lab.Process) {
	x.t.Helper()
	theirs := map[string][]string{} // steps by connection
	var numbered map[string]string
	read := func() bool {
		clear(theirs)
		numbered = map[string]string{} // connection by id
		last := ""
		for sc := bufio.NewScanner(bytes.NewReader(lab.Must(os.ReadFile(peer.Log))(x.t))); sc.Scan(); {
			m := nftLine.FindStringSubmatch(sc.Text())
			if m == nil {
				continue
			}
			id, ours := m[1], strings.Contains(m[2], nft.TraceTablePrefix)
			if p := nftPacket.FindStringSubmatch(m[5]); m[4] == "packet:" && p != nil && ours && m[3] == "watch" {
				last = p[1] + " " + p[3] + " " + p[2] + " " + p[4]
				numbered[id] = last
			} else if numbered[id] == "" {
				numbered[id] = last // by the loopback device the packet has another number
			}
			h := nftHandle.FindStringSubmatch(m[5])
			switch {
			case ours:
			case m[4] == "policy":
				theirs[numbered[id]] = append(theirs[numbered[id]], m[2]+" "+m[3]+" policy "+strings.Fields(m[5])[0])
			case m[4] == "rule" && h != nil:
				theirs[numbered[id]] = append(theirs[numbered[id]], m[2]+" "+m[3]+" "+h[1]+" "+h[2])
			}
		}
		return len(theirs) >= len(got)
	}
	x.until("nft reports as many", read)
	for i := range got {
		from, to := netip.MustParseAddrPort(got[i].Packet.From), netip.MustParseAddrPort(got[i].Packet.To)
		var ours []string
		for _, s := range got[i].Steps {
			if s.Policy {
				ours = append(ours, s.Table+" "+s.Chain+" policy "+s.Verdict)
			} else {
				ours = append(ours, fmt.Sprintf("%s %s %d %s", s.Table, s.Chain, s.Handle, s.Verdict))
			}
		}
		want := theirs[fmt.Sprintf("%s %d %s %d", from.Addr(), from.Port(), to.Addr(), to.Port())]
		if !slices.Equal(ours, want) || len(ours) == 0 {
			x.t.Errorf("%s to %s: (-nft +ours)\n%s", from, to, cmp.Diff(want, ours))
		}
	}
}

// ruleset is that of node 1, without what packets change.
func (x *tracing) ruleset() string {
	var out []string
	all := withoutCounters(lab.Must(lab.NFT(x.Node(1).Host, "-a", "list", "ruleset"))(x.t))
	for _, line := range strings.Split(all, "\n") {
		if !strings.Contains(line, "expires") { // a client that is remembered
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// metrics are those of repairs and transactions.
func (x *tracing) metrics() string {
	x.t.Helper()
	var out []string
	for _, line := range strings.Split(lab.Must(x.Node(1).Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort)))(x.t), "\n") {
		if strings.HasPrefix(line, "nftproxy_drift_repairs_total") || strings.HasPrefix(line, "nftproxy_transaction") {
			out = append(out, line)
		}
	}
	if len(out) < 2 {
		x.t.Fatal("metrics are missing")
	}
	return strings.Join(out, "\n")
}

// A trace ends by count, by time and when it is killed; each time nothing of it stays.
func TestTraceEnds(t *testing.T) {
	x := traceScene(t)
	node, pod := x.Node(1).Host, x.Pod(1, 3).Host
	before := lab.Must(lab.NFT(node, "-a", "list", "ruleset"))(t)
	same := func(how string) {
		t.Helper()
		if after := lab.Must(lab.NFT(node, "-a", "list", "ruleset"))(t); after != before {
			t.Errorf("%s: the ruleset changed: %s", how, cmp.Diff(before, after))
		}
	}
	p := x.watch("--service", "default/web", "--count", "3", "--timeout", "1m", "-o", "json")
	client, np := x.Client(1), at(x.Node(1).IP(lab.IPv4), 30000)
	pod.Ask(lab.TCP, at(lab.ClusterIP(lab.IPv4, 20), 80))
	pod.Ask(lab.TCP, at(lab.ClusterIP(lab.IPv4, 23), 80)) // another Service
	client.Ask(lab.TCP, np)
	client.Ask(lab.TCP, at(lab.LoadBalancerIP(lab.IPv4, 20), 80))
	<-p.Done()
	var to []string
	for _, path := range paths(t, p) {
		if to = append(to, path.Packet.To); path.Service != "default/web:tcp-80" {
			t.Errorf("by count: %+v", path)
		}
	}
	if want := []string{at(lab.ClusterIP(lab.IPv4, 20), 80).String(), np.String(), at(lab.LoadBalancerIP(lab.IPv4, 20), 80).String()}; !slices.Equal(to, want) {
		t.Errorf("by count: packets to %v, want %v\n%s", to, want, p.Tail(10))
	}
	same("by count")

	p = x.watch("tcp", at(lab.ClusterIP(lab.IPv4, 20), 80).String(), "--all-packets", "--count", "0", "--timeout", "1m", "-o", "json")
	pod.Ask(lab.TCP, at(lab.ClusterIP(lab.IPv4, 20), 80))
	reported := func(what string) bool { // in any order: a packet whose number is used again is complete at once
		return slices.ContainsFunc(paths(t, p), func(path trace.Path) bool { return path.Endpoint != "" && strings.Contains(path.Summary, what) })
	}
	x.until("all packets are reported", func() bool { return reported("sent to endpoint") && reported("chosen before") })
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	same("all packets")

	p = x.watch("tcp", at(lab.ClusterIP(lab.IPv4, 20), 81).String(), "--timeout", "1s")
	<-p.Done()
	if !strings.Contains(p.Tail(1), "no packet that matches was seen") {
		t.Errorf("by time: %s", p.Tail(10))
	}
	same("by time")

	p = x.watch("--from", pod.IP(lab.IPv4).String(), "--timeout", "1m")
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if !lab.KernelAtLeast(5, 12) {
		return // there the tables stay, without effect: TestTraceLeftovers
	}
	x.until("the kernel has removed the tables", func() bool { return x.tables() == 0 })
	same("killed")
}

// leftover is what a killed trace leaves on a kernel that knows no owners of tables.
const leftover = "table %s " + nft.TraceTablePrefix + "12345 {\n chain watch {\n  meta nftrace set 1\n }\n}\n"

// What a trace left on an old kernel goes when the proxy starts, and by cleanup; a trace that runs stays.
func TestTraceLeftovers(t *testing.T) {
	x := &tracing{cluster: fromManifests(t, lab.Options{Nodes: 1}), bin: lab.Must(lab.NftproxyBinary())(t)}
	node := x.Node(1).Host
	leave := func() {
		if err := lab.LoadNFT(node, fmt.Sprintf(leftover, "ip")+fmt.Sprintf(leftover, "ip6")); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	x.start()
	if n := x.tables(); n != 0 {
		t.Errorf("%d tables are left after start", n)
	}
	leave()
	x.watch("tcp", "--timeout", "1m")
	out := lab.Must(node.Run(x.bin, "cleanup", "--force"))(t)
	if !lab.KernelAtLeast(5, 12) {
		return // there a trace that runs cannot be told from a leftover
	}
	if n := x.tables(); n != 2 || strings.Count(out, "removed table") != 4 {
		t.Errorf("%d tables are left after cleanup, which said:\n%s", n, out)
	}
}

// Packets that pass the IP hooks on a port of a bridge go on under another number of the kernel's where they are routed: they are
// traced to their end, whether they are served here, on another node, or refused.
func TestTraceBridged(t *testing.T) {
	x := &tracing{cluster: fromManifests(t, lab.Options{Nodes: 2, BridgeNetfilter: true}), bin: lab.Must(lab.NftproxyBinary())(t)}
	cases := []struct {
		to      []lab.Endpoint
		want    lab.Verdict
		outcome explain.Outcome
		says    string
	}{
		{[]lab.Endpoint{x.Pod(1, 1).Endpoint()}, lab.Answered, explain.Sent, "sent to endpoint " + x.Pod(1, 1).IP(lab.IPv4).String()},
		{[]lab.Endpoint{x.Pod(2, 1).Endpoint()}, lab.Answered, explain.Sent, "sent to endpoint " + x.Pod(2, 1).IP(lab.IPv4).String()},
		{nil, lab.Refused, explain.Refused, "refused by nftproxy: the Service has no endpoint"},
	}
	for i, c := range cases {
		svc := lab.NewService(fmt.Sprintf("web%d", i), 20+i, lab.Port(lab.TCP, 80, 8080))
		x.apply(svc, lab.NewSlices(svc, c.to...))
	}
	x.serve(8080, x.pods(), lab.TCP)
	x.start()
	for i, c := range cases {
		to := at(lab.ClusterIP(lab.IPv4, 20+i), 80)
		if r, ok := (lab.Probe{From: x.Pod(1, 2).Host, Proto: lab.TCP, To: to}).Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == c.want }); !ok {
			t.Fatalf("%s: %s", to, r)
		}
		p := x.watch("tcp", to.String(), "--count", "1", "--timeout", "1m", "-o", "json")
		x.Pod(1, 2).Ask(lab.TCP, to)
		<-p.Done()
		got := paths(t, p)
		if len(got) != 1 || got[0].Outcome != c.outcome || !strings.HasPrefix(got[0].Summary, c.says) || len(got[0].Warnings) > 0 {
			t.Errorf("%s: want %s, %q:\n%s", to, c.outcome, c.says, p.Tail(10))
		}
	}
}
