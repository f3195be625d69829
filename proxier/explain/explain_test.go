// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// family maps addresses of the table below to those of a family: "10.96.0.1" stands for fd00:10:96::1 as well.
func in(f nft.Family, s string) netip.Addr {
	a := netip.MustParseAddr(s)
	if f == nft.IPv4 {
		return a
	}
	b := a.As4()
	return netip.AddrFrom16([16]byte{0xfd, 0, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
}

func ap(f nft.Family, s string) netip.AddrPort {
	p := netip.MustParseAddrPort(s)
	return netip.AddrPortFrom(in(f, p.Addr().String()), p.Port())
}

func eps(f nft.Family, list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, ap(f, s))
	}
	return out
}

func prefix(f nft.Family, s string) netip.Prefix {
	p := netip.MustParsePrefix(s)
	bits := p.Bits()
	if f == nft.IPv6 {
		bits += 96
	}
	return netip.PrefixFrom(in(f, p.Addr().String()), bits)
}

// The node is 172.18.0.2, its pods are in 10.244.0.0/24; 10.244.1.0/24 is another node's.
func services(f nft.Family) []*nft.Service {
	vip := func(n byte, port uint16, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.ClusterIP, Addr: in(f, fmt.Sprintf("10.96.0.%d", n)), Port: port, Local: local}
	}
	lb := func(n byte, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.External, Addr: in(f, fmt.Sprintf("203.0.113.%d", n)), Port: 80, Local: local}
	}
	np := func(p uint16, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.NodePort, Port: p, Local: local}
	}
	restricted := lb(5, false)
	restricted.Restricted, restricted.Sources = true, nft.MergePrefixes([]netip.Prefix{prefix(f, "198.51.100.0/24")})
	three := eps(f, "10.244.0.1:8080", "10.244.1.2:8080", "10.244.2.3:8080")
	remote := three[1:]
	return []*nft.Service{
		{Name: "default/web:http", Proto: nft.TCP, Served: true, Cluster: three, Local: three[:1], Hairpin: three[:1],
			Frontends: []nft.Frontend{vip(1, 80, false), lb(1, false), np(30001, false)}},
		{Name: "default/local:http", Proto: nft.TCP, Served: true, Cluster: three, Local: three[:1], Hairpin: three[:1],
			Frontends: []nft.Frontend{vip(2, 80, true), lb(2, true), np(30002, true)}},
		{Name: "default/remote:http", Proto: nft.TCP, Served: true, Cluster: remote,
			Frontends: []nft.Frontend{vip(3, 80, true), lb(3, true), np(30003, true)}},
		{Name: "default/none:http", Proto: nft.UDP, Frontends: []nft.Frontend{vip(4, 80, false), lb(4, false), np(30004, false)}},
		{Name: "default/fenced:http", Proto: nft.TCP, Served: true, Cluster: remote,
			Frontends: []nft.Frontend{vip(5, 80, false), restricted}},
		{Name: "default/sticky:http", Proto: nft.TCP, Served: true, Cluster: three, Hairpin: three[:1], Affinity: 3 * time.Hour, AffinityIDs: [2]uint32{1, 2},
			Frontends: []nft.Frontend{vip(6, 80, false), np(30006, false)}},
		{Name: "default/host:http", Proto: nft.SCTP, Served: true, Cluster: eps(f, "172.18.0.2:8080", "172.18.0.3:8080"),
			Frontends: []nft.Frontend{vip(7, 80, false), np(30007, false)}},
	}
}

func nodeElements(f nft.Family) []nft.Element {
	out := nft.RangeElements(nft.Pods, f, []netip.Prefix{prefix(f, "10.244.0.0/24")})
	out = append(out, nft.RangeElements(nft.ServiceCIDRs, f, []netip.Prefix{prefix(f, "10.96.0.0/16")})...)
	return append(out, nft.AddrElements(nft.NodePortAddresses, f, []netip.Addr{in(f, "172.18.0.2")})...)
}

func config() nft.Config { return nft.Config{MasqueradeBit: 14, Pods: nft.PodMatch{CIDRs: true}} }

func node(f nft.Family) Node {
	return Node{Local: func(a netip.Addr) bool { return a == in(f, "172.18.0.2") || a == in(f, "10.244.0.254") }}
}

// scenario is a packet and what becomes of it. to and from are of IPv4; see in.
type scenario struct {
	proto          nft.Proto
	to, from, iif  string
	outcome        Outcome
	masqueraded    string // the candidates that are masqueraded: all, none or their addresses
	candidates     string
	service, words string // what summary, a step or a hint say
}

const (
	pod     = "10.244.0.9"
	ep      = "10.244.0.1"
	client  = "198.51.100.7"
	nodeIP  = "172.18.0.2"
	three   = "10.244.0.1:8080 10.244.1.2:8080 10.244.2.3:8080"
	remotes = "10.244.1.2:8080 10.244.2.3:8080"
)

func scenarios() []scenario {
	return []scenario{
		// ClusterIP
		{nft.TCP, "10.96.0.1:80", pod, "veth0", Delivered, "none", three, "default/web:http", "the ClusterIP of Service default/web:http"},
		{nft.TCP, "10.96.0.1:80", ep, "veth1", Delivered, ep + ":8080", three, "default/web:http", "reached itself"},
		{nft.TCP, "10.96.0.1:80", nodeIP, "", Delivered, "all", three, "default/web:http", "is not in the ranges of the pods"},
		{nft.TCP, "10.96.0.1:80", client, "eth0", Delivered, "all", three, "default/web:http", "one of 3 endpoints is drawn at random"},
		{nft.TCP, "10.96.0.2:80", pod, "veth0", Delivered, "none", "10.244.0.1:8080", "default/local:http", "internalTrafficPolicy is Local"},
		{nft.TCP, "10.96.0.3:80", pod, "veth0", Dropped, "", "", "default/remote:http", "set internalTrafficPolicy to Cluster"},
		{nft.UDP, "10.96.0.4:80", pod, "veth0", Refused, "", "", "default/none:http", "compare spec.selector"},
		{nft.UDP, "10.96.0.4:80", nodeIP, "", Refused, "", "", "default/none:http", "refused with an ICMP port unreachable"},
		{nft.TCP, "10.96.0.1:81", pod, "veth0", Refused, "", "", "", "has these ports: tcp 80 (default/web:http)"},
		{nft.UDP, "10.96.0.1:80", pod, "veth0", Refused, "", "", "", "none of its Services has port 80 for udp"},
		{nft.TCP, "10.96.0.200:80", pod, "veth0", Dropped, "", "", "", "no Service has it"},
		{nft.TCP, "10.96.1.77:80", nodeIP, "", Dropped, "", "", "", "the nearest Service is"},
		// external addresses
		{nft.TCP, "203.0.113.1:80", client, "eth0", Delivered, "all", three, "default/web:http", "externalTrafficPolicy is Cluster"},
		{nft.TCP, "203.0.113.2:80", client, "eth0", Delivered, "none", "10.244.0.1:8080", "default/local:http", "only endpoints on this node, which see"},
		{nft.TCP, "203.0.113.2:80", pod, "veth0", Delivered, "none", three, "default/local:http", "it comes from a pod of the cluster"},
		{nft.TCP, "203.0.113.2:80", nodeIP, "", Delivered, "all", three, "default/local:http", "it comes from the node itself"},
		{nft.TCP, "203.0.113.3:80", client, "eth0", Dropped, "", "", "default/remote:http", "set externalTrafficPolicy to Cluster"},
		{nft.TCP, "203.0.113.3:80", pod, "veth0", Delivered, "none", remotes, "default/remote:http", ""},
		{nft.UDP, "203.0.113.4:80", client, "eth0", Refused, "", "", "default/none:http", "no endpoint that could serve"},
		{nft.TCP, "203.0.113.5:80", client, "eth0", Delivered, "all", remotes, "default/fenced:http", "198.51.100.7 is among them"},
		{nft.TCP, "203.0.113.5:80", "192.0.2.1", "eth0", Dropped, "", "", "default/fenced:http", "add the client's range"},
		{nft.TCP, "203.0.113.1:81", client, "eth0", Untouched, "", "", "", "has these ports: tcp 80 (default/web:http)"},
		{nft.TCP, "203.0.113.11:80", client, "eth0", Untouched, "", "", "", "Services with a similar address"},
		// NodePorts
		{nft.TCP, nodeIP + ":30001", client, "eth0", Delivered, "all", three, "default/web:http", "a NodePort of Service default/web:http"},
		{nft.TCP, nodeIP + ":30002", client, "eth0", Delivered, "none", "10.244.0.1:8080", "default/local:http", ""},
		{nft.TCP, nodeIP + ":30002", pod, "veth0", Delivered, "none", three, "default/local:http", ""},
		{nft.TCP, nodeIP + ":30003", client, "eth0", Dropped, "", "", "default/remote:http", ""},
		{nft.UDP, nodeIP + ":30004", client, "eth0", Refused, "", "", "default/none:http", ""},
		{nft.TCP, "10.244.0.254:30001", pod, "veth0", Untouched, "", "", "", "served at 172.18.0.2 only"},
		{nft.TCP, "127.0.0.1:30001", nodeIP, "", Untouched, "", "", "", "do not serve NodePorts at loopback addresses"},
		{nft.TCP, "192.0.2.9:30001", nodeIP, "", Untouched, "", "", "", "not an address of this node"},
		{nft.TCP, nodeIP + ":30010", client, "eth0", Untouched, "", "", "", "similar NodePorts"},
		{nft.TCP, nodeIP + ":22", client, "eth0", Untouched, "", "", "", "an address of this node"},
		// affinity
		{nft.TCP, "10.96.0.6:80", pod, "veth0", Delivered, "none", three, "default/sticky:http", "is remembered for 3h0m0s"},
		{nft.TCP, "10.96.0.6:80", "10.244.0.77", "veth0", Delivered, "none", "10.244.1.2:8080", "default/sticky:http", "the same endpoint as before"},
		{nft.TCP, nodeIP + ":30006", "10.244.0.77", "veth0", Delivered, "all", "10.244.1.2:8080", "default/sticky:http", "is remembered"},
		{nft.TCP, "10.96.0.6:80", "10.244.0.78", "veth0", Delivered, "none", three, "default/sticky:http", "so the client is forgotten"},
		// endpoints that are the node itself
		{nft.SCTP, "10.96.0.7:80", pod, "veth0", Delivered, "none", "172.18.0.2:8080 172.18.0.3:8080", "default/host:http", ""},
		{nft.SCTP, nodeIP + ":30007", client, "eth0", Delivered, "172.18.0.3:8080", "172.18.0.2:8080 172.18.0.3:8080", "default/host:http", "1 of them sees an address of this node"},
		{nft.SCTP, nodeIP + ":30007", nodeIP, "", Delivered, "all", "172.18.0.2:8080 172.18.0.3:8080", "default/host:http", ""},
		// elsewhere
		{nft.TCP, "10.244.1.2:8080", pod, "veth0", Untouched, "", "", "", "an endpoint of Service"},
		{nft.TCP, "192.0.2.1:443", pod, "veth0", Untouched, "", "", "", "no rule of nftproxy applies to it"},
	}
}

func (c *scenario) packet(f nft.Family) Packet {
	return Packet{Proto: c.proto, To: ap(f, c.to), From: netip.AddrPortFrom(in(f, c.from), 40000), IIF: c.iif}
}

// clients remembers 10.244.0.77 on 10.244.1.2, and 10.244.0.78 on an endpoint that is gone.
func clients(s *nft.Snapshot) func(set, key string) string {
	ids := map[netip.AddrPort]uint32{}
	dec := nft.NewDecoder(s.Family)
	for i := range s.Elements {
		if d, ok := dec.Decode(&s.Elements[i]); ok && s.Elements[i].Set == nft.EndpointsByID {
			ids[d.Endpoint] = d.Slot
		}
	}
	return func(set, key string) string {
		switch {
		case set == "affinity-1" && key == string(in(s.Family, "10.244.0.77").AsSlice()):
			return string(native(ids[ap(s.Family, "10.244.1.2:8080")]))
		case set == "affinity-1" && key == string(in(s.Family, "10.244.0.78").AsSlice()):
			return string(native(12345))
		}
		return ""
	}
}

func TestExplain(t *testing.T) {
	for _, f := range nft.Families() {
		s := nft.Model(f, config(), services(f), nodeElements(f))
		n := node(f)
		n.Client = clients(s)
		for _, c := range scenarios() {
			e := Explain(inspect.Read(s), nil, c.packet(f), n)
			t.Run(fmt.Sprintf("%s/%s %s from %s", f, c.proto, c.to, c.from), func(t *testing.T) { c.check(t, f, e) })
		}
	}
}

func (c *scenario) check(t *testing.T, f nft.Family, e *Explanation) {
	t.Helper()
	if e.Outcome != c.outcome || e.Service != c.service || len(e.Warnings) != 0 {
		t.Errorf("%s of %q, warnings %q; want %s of %q", e.Outcome, e.Service, e.Warnings, c.outcome, c.service)
	}
	var got, want, masq []string
	share := 0.0
	for _, candidate := range e.Candidates {
		got = append(got, candidate.Endpoint)
		share += candidate.Share
		if candidate.Masqueraded {
			masq = append(masq, candidate.Endpoint)
		}
		if math.Abs(candidate.Share-1/float64(len(e.Candidates))) > 1e-9 {
			t.Errorf("%s has share %v of %d", candidate.Endpoint, candidate.Share, len(e.Candidates))
		}
	}
	for _, w := range strings.Fields(c.candidates) {
		want = append(want, ap(f, w).String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("candidates %v, want %v", got, want)
	}
	switch c.masqueraded {
	case "all":
	case "none", "":
		want = nil
	default:
		want = []string{ap(f, c.masqueraded).String()}
	}
	if !slices.Equal(masq, want) {
		t.Errorf("masqueraded %v, want %v", masq, want)
	}
	var text bytes.Buffer
	if err := Text(&text, e); err != nil {
		t.Fatal(err)
	}
	if f == nft.IPv4 && !strings.Contains(text.String(), c.words) {
		t.Errorf("does not say %q:\n%s", c.words, text.String())
	}
	if testing.Verbose() {
		t.Log(text.String())
	}
}

// More endpoints than have a balancer of their own count: what misses draws again, so that shares are equal but for
// slot 0, which gets the last misses.
func TestExplainSharesOfManyEndpoints(t *testing.T) {
	var many []netip.AddrPort
	for i := range 1030 {
		many = append(many, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80))
	}
	vip := netip.MustParseAddrPort("10.96.0.1:80")
	s := nft.Model(nft.IPv4, config(), []*nft.Service{{Name: "a/b", Proto: nft.TCP, Served: true, Cluster: many,
		Frontends: []nft.Frontend{{Addr: vip.Addr(), Port: vip.Port()}}}}, nil)
	e := Explain(inspect.Read(s), nil, Packet{Proto: nft.TCP, To: vip, From: netip.MustParseAddrPort("10.244.0.1:1"), IIF: "veth"}, Node{})
	if len(e.Candidates) != len(many) {
		t.Fatalf("%d candidates, want %d", len(e.Candidates), len(many))
	}
	sum := 0.0
	for _, c := range e.Candidates {
		sum += c.Share
		if math.Abs(c.Share*float64(len(many))-1) > 1e-6 {
			t.Errorf("%s has share %v", c.Endpoint, c.Share)
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("shares sum up to %v", sum)
	}
}

// Rules that are not ours are seen, and what is not understood is said.
func TestExplainForeignRules(t *testing.T) {
	packet := Packet{Proto: nft.TCP, To: netip.MustParseAddrPort("10.96.0.1:80"), From: netip.MustParseAddrPort(pod + ":1"), IIF: "veth0"}
	for _, c := range []struct {
		name, want string
		outcome    Outcome
		change     func(*nft.Snapshot)
	}{
		{"no table", "there is no table ip nftproxy", Untouched, func(s *nft.Snapshot) {
			*s = nft.Snapshot{Content: &nft.Content{Family: nft.IPv4}}
		}},
		{"a drop", `dropped by a rule that this version does not write ("mine")`, Dropped, func(s *nft.Snapshot) {
			r := s.Rules["source-ranges"][len(s.Rules["source-ranges"])-1]
			s.Rules["services"] = append([]nft.Rule{{Comment: "mine", Exprs: r.Exprs[len(r.Exprs)-1:]}}, s.Rules["services"]...)
		}},
		{"another number of rules", "the table is not as this version writes it (chain services: rule 1 is missing (to a ClusterIP from outside the pods))", Delivered, func(s *nft.Snapshot) {
			c := s.Chains["services"]
			c.Rules = c.Rules[1:]
			s.Chains["services"] = c
		}},
		{"an unknown expression", "rule 1 of chain services has an expression that this version does not know", Delivered, func(s *nft.Snapshot) {
			s.Rules["services"][0].Exprs[0] = nil
		}},
		{"a chain that returns", "the table is not as this version writes it", Delivered, func(s *nft.Snapshot) {
			verdict := func(k expr.VerdictKind, chain string) nft.Rule {
				return nft.Rule{Exprs: []expr.Any{&expr.Verdict{Kind: k, Chain: chain}}}
			}
			s.Chains["x"] = nft.ChainContent{}
			s.Rules["x"] = []nft.Rule{verdict(expr.VerdictReturn, ""), verdict(expr.VerdictDrop, "")}
			s.Rules["services"] = append([]nft.Rule{verdict(expr.VerdictJump, "x")}, s.Rules["services"]...)
		}},
		{"a chain that is gone", "chain run does not exist", Refused, func(s *nft.Snapshot) {
			delete(s.Rules, "run")
			delete(s.Chains, "run")
		}},
	} {
		s := nft.Model(nft.IPv4, config(), services(nft.IPv4), nodeElements(nft.IPv4))
		c.change(s)
		e := Explain(inspect.Read(s), nil, packet, node(nft.IPv4))
		var text bytes.Buffer
		if err := Text(&text, e); err != nil {
			t.Fatal(err)
		}
		if e.Outcome != c.outcome || !strings.Contains(text.String(), c.want) {
			t.Errorf("%s: want %s, %q; got\n%s", c.name, c.outcome, c.want, text.String())
		}
	}
}

func TestExplainRoutesAndFamilies(t *testing.T) {
	four := nft.Model(nft.IPv4, config(), services(nft.IPv4), nodeElements(nft.IPv4))
	six := nft.Model(nft.IPv6, config(), nil, nil)
	host := Packet{Proto: nft.TCP, To: netip.MustParseAddrPort("10.96.0.1:80"), From: netip.MustParseAddrPort(nodeIP + ":1")}
	n := node(nft.IPv4)
	n.Route = func(netip.Addr) (string, bool) { return "", false }
	if e := Explain(inspect.Read(four), inspect.Read(six), host, n); e.Outcome != Unroutable || len(e.Candidates) != 0 {
		t.Errorf("without a route to the ClusterIP: %s", e.Summary)
	}
	n.Route = func(a netip.Addr) (string, bool) { return "eth0", a.String() != "10.244.2.3" }
	if e := Explain(inspect.Read(four), inspect.Read(six), host, n); e.Outcome != Mixed || e.Candidates[2].Outcome != Unroutable {
		t.Errorf("without a route to one endpoint: %s", e.Summary)
	}
	packet := Packet{Proto: nft.TCP, To: netip.MustParseAddrPort("[fd00::1]:80"), From: netip.MustParseAddrPort("[fd00::9]:1"), IIF: "eth0"}
	e := Explain(inspect.Read(six), inspect.Read(four), packet, node(nft.IPv6))
	if len(e.Hints) != 1 || !strings.Contains(e.Hints[0], "10.96.0.5:80 (default/fenced:http)") {
		t.Errorf("other family: %q", e.Hints)
	}
}

func TestJSONDecodes(t *testing.T) {
	s := nft.Model(nft.IPv4, config(), services(nft.IPv4), nodeElements(nft.IPv4))
	for _, c := range scenarios() {
		want := Explain(inspect.Read(s), nil, c.packet(nft.IPv4), node(nft.IPv4))
		var b bytes.Buffer
		if err := inspect.JSON(&b, want); err != nil {
			t.Fatal(err)
		}
		got := &Explanation{}
		if err := json.Unmarshal(b.Bytes(), got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", c.to, d)
		}
	}
}

func TestSimilar(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"10.96.0.1", "10.96.0.1", false}, {"10.96.0.1", "10.96.0.2", true}, {"10.96.0.1", "10.96.0.12", true},
		{"10.96.0.12", "10.96.0.21", true}, {"10.96.0.1", "10.69.0.1", true}, {"10.96.0.1", "10.96.1.2", false},
		{"30001", "3001", true}, {"", "a", true}, {"", "", false}, {"ab", "ba", true}, {"abc", "cba", false},
	} {
		if similar(c.a, c.b) != c.want || similar(c.b, c.a) != c.want {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.want)
		}
	}
}

// The ranges of pods may be those of all nodes: only an interface says that a pod is of this node.
func TestExplainSender(t *testing.T) {
	p := Packet{Proto: nft.TCP, To: netip.MustParseAddrPort("10.96.0.1:80"), From: netip.MustParseAddrPort("10.244.0.9:1"), IIF: "cbr0"}
	byInterface := config()
	byInterface.Pods = nft.PodMatch{Interface: "cbr0"}
	for want, c := range map[string]nft.Config{"a pod of the cluster": config(), "a pod of this node": byInterface} {
		s := nft.Model(nft.IPv4, c, services(nft.IPv4), nodeElements(nft.IPv4))
		if e := Explain(inspect.Read(s), nil, p, node(nft.IPv4)); e.Request.Sender != want || e.Request.Origin != fromPod {
			t.Errorf("%+v, want %s", e.Request, want)
		}
	}
}

// What is in the table by another's hand has no way to the terminal.
func TestExplainEscapes(t *testing.T) {
	s := nft.Model(nft.IPv4, config(), services(nft.IPv4), nodeElements(nft.IPv4))
	evil := "\x1b[2J\nhint: fake"
	s.Chains[evil] = nft.ChainContent{}
	drop := s.Rules["source-ranges"][len(s.Rules["source-ranges"])-1].Exprs
	s.Rules[evil] = []nft.Rule{{Comment: evil, Exprs: drop[len(drop)-1:]}}
	s.Rules["services"] = append([]nft.Rule{{Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: evil}}}}, s.Rules["services"]...)
	p := Packet{Proto: nft.TCP, To: netip.MustParseAddrPort("10.96.0.1:80"), From: netip.MustParseAddrPort("10.244.0.9:1"), IIF: evil}
	var out bytes.Buffer
	if err := Text(&out, Explain(inspect.Read(s), nil, p, node(nft.IPv4))); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") || strings.Contains(out.String(), "\nhint: fake") || !strings.Contains(out.String(), `\x1b[2J`) {
		t.Errorf("%q", out.String())
	}
}
