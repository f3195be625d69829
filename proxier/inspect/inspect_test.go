// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/routing"
)

var update = flag.Bool("update", false, "rewrite testdata")

func eps(list ...string) (out []netip.AddrPort) {
	for _, e := range list {
		out = append(out, netip.MustParseAddrPort(e))
	}
	return out
}

// cluster has every kind of Service port that a dump can show.
func cluster() []*nft.Service {
	three := three()
	vip := func(s string, p uint16, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.ClusterIP, Addr: netip.MustParseAddr(s), Port: p, Local: local}
	}
	lb := func(s string, local bool, sources ...string) nft.Frontend {
		f := nft.Frontend{Kind: nft.External, Addr: netip.MustParseAddr(s), Port: 80, Local: local, Restricted: len(sources) > 0}
		var ps []netip.Prefix
		for _, s := range sources {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		f.Sources = nft.MergePrefixes(ps)
		return f
	}
	np := func(p uint16, local bool) nft.Frontend {
		return nft.Frontend{Kind: nft.NodePort, Port: p, Local: local}
	}
	return []*nft.Service{
		{Name: "default/web:http", Proto: nft.TCP, Served: true, Cluster: three, Local: three[:1], Hairpin: three[:1],
			Frontends: []nft.Frontend{vip("10.96.0.1", 80, false), lb("203.0.113.1", true, "10.0.0.0/8", "192.0.2.0/24"), np(30001, true)}},
		{Name: "default/remote", Proto: nft.TCP, Served: true, Cluster: three[1:],
			Frontends: []nft.Frontend{vip("10.96.0.2", 80, true), lb("203.0.113.2", true), np(30002, false)}},
		{Name: "default/none:http", Proto: nft.TCP, Frontends: []nft.Frontend{vip("10.96.0.3", 80, false), np(30003, false)}},
		{Name: "kube-system/dns:dns", Proto: nft.UDP, Served: true, Cluster: eps("10.244.0.5:53", "10.244.1.5:53"),
			Frontends: []nft.Frontend{vip("10.96.0.10", 53, false)}, Affinity: 3 * time.Hour, AffinityIDs: [2]uint32{1, 2}},
		{Name: "kube-system/dns:dns", Proto: nft.TCP, Served: true, Cluster: eps("10.244.0.5:53", "10.244.1.5:53", "10.244.2.5:53", "10.244.3.5:53"),
			Frontends: []nft.Frontend{vip("10.96.0.10", 53, false)}},
	}
}

func node(f nft.Family) []nft.Element {
	out := nft.RangeElements(nft.Pods, f, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")})
	out = append(out, nft.RangeElements(nft.ServiceCIDRs, f, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})...)
	return append(out, nft.AddrElements(nft.NodePortAddresses, f, []netip.Addr{netip.MustParseAddr("172.18.0.2")})...)
}

func config() nft.Config { return nft.Config{MasqueradeBit: 14, Pods: nft.PodMatch{CIDRs: true}} }

func collected(t *testing.T) *Dump {
	t.Helper()
	s := nft.Model(nft.IPv4, config(), cluster(), node(nft.IPv4))
	table, ports := Collect(s, map[uint32]int{1: 17})
	table.Chains, table.Rules, table.Sets = 10, 20, 30 // what they are is for package nft to say
	gone, _ := Collect(&nft.Snapshot{Content: &nft.Content{Family: nft.IPv6}}, nil)
	stamp := Stamp{"node-1", time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), "v1.2.3"}
	return &Dump{APIVersion, Kind, stamp, []Table{table, gone}, []routing.Line{{Kind: "route", Family: "ip", Text: "route 10.96.0.0/16 via 169.254.169.4"}}, nil, ports}
}

func TestForms(t *testing.T) {
	d := collected(t)
	for name, write := range map[string]func(io.Writer, *Dump) error{
		"table": func(w io.Writer, d *Dump) error { return Text(w, d, false) },
		"wide":  func(w io.Writer, d *Dump) error { return Text(w, d, true) },
		"json":  func(w io.Writer, d *Dump) error { return JSON(w, d) },
		"yaml":  YAML,
		"dot": func(w io.Writer, d *Dump) error {
			return DOT(w, "default/web", Select(d.ServicePorts, "default", "web", ""), DOTOptions{})
		},
		"source.dot": func(w io.Writer, d *Dump) error {
			places := map[netip.Addr]Place{}
			for i, e := range three() {
				places[e.Addr()] = Place{fmt.Sprintf("node-%d", i+1), string(rune('a' + i/2))}
			}
			return DOT(w, "default/web", Select(d.ServicePorts, "default", "web", ""), DOTOptions{"node-1", places})
		},
	} {
		var got bytes.Buffer
		if err := write(&got, d); err != nil {
			t.Fatal(err)
		}
		file := "testdata/dump." + name
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got.String()); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

// Both structured forms are the document that Dump declares.
func TestStructuredFormsDecode(t *testing.T) {
	want := *collected(t)
	for _, list := range [][]ServicePort{want.ServicePorts, nil} {
		want.ServicePorts = list
		var j, y bytes.Buffer
		if err := JSON(&j, &want); err != nil {
			t.Fatal(err)
		}
		if err := YAML(&y, &want); err != nil {
			t.Fatal(err)
		}
		var fromJSON, fromYAML Dump
		if err := json.Unmarshal(j.Bytes(), &fromJSON); err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(y.Bytes(), &fromYAML); err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			fromJSON.ServicePorts, fromYAML.ServicePorts = nil, nil // [] either way
		}
		if d := cmp.Diff(want, fromJSON); d != "" {
			t.Errorf("json: (-want +got)\n%s", d)
		}
		if d := cmp.Diff(want, fromYAML); d != "" {
			t.Errorf("yaml: (-want +got)\n%s", d)
		}
	}
}

// Strings that YAML could take for something else are in quotes.
func TestYAMLStrings(t *testing.T) {
	for _, want := range []string{"yes", "No", "null", "1.5", "10.0.0.1:80", "a: b", "a #b", "-", "- a", "\"quoted\"", "a\nb", "über", "web-1/x_y.z", "\\", "0x10", "~", "[]"} {
		var y bytes.Buffer
		if err := YAML(&y, &Dump{ServicePorts: []ServicePort{{Name: want}}}); err != nil {
			t.Fatal(err)
		}
		var got Dump
		if err := yaml.UnmarshalStrict(y.Bytes(), &got); err != nil || got.ServicePorts[0].Name != want {
			t.Errorf("%q: %+v, %v\n%s", want, got.ServicePorts, err, y.String())
		}
	}
}

// Whatever a comment in the tables has, no control character reaches the terminal, and no line is faked.
func TestControlCharactersAreEscaped(t *testing.T) {
	evil := "default/web:\x1b[2J\u009b1m\nproblem: fake\u202e\xff"
	services := cluster()
	services[0].Name = evil
	s := nft.Model(nft.IPv4, config(), services, node(nft.IPv4))
	s.Elements = slices.DeleteFunc(s.Elements, func(e nft.Element) bool { return e.Set == nft.Endpoints && e.Key == s.Elements[0].Key })
	table, ports := Collect(s, nil)
	d := &Drift{}
	d.Compare(s, Wanted{Config: config()})
	for name, write := range map[string]func(io.Writer) error{
		"text": func(w io.Writer) error { return Text(w, &Dump{Tables: []Table{table}, ServicePorts: ports}, true) },
		"dot": func(w io.Writer) error {
			return DOT(w, evil, ports, DOTOptions{Node: evil, Places: map[netip.Addr]Place{three()[0].Addr(): {evil, evil}}})
		},
		"drift": func(w io.Writer) error { return DriftText(w, d) },
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		bad := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) || r == utf8.RuneError }
		if strings.ContainsFunc(out.String(), bad) || strings.Contains(out.String(), "\nproblem: fake") || !strings.Contains(out.String(), `web:\x1b`) && !strings.Contains(out.String(), `web:\\x1b`) {
			t.Errorf("%s: %q", name, out.String())
		}
	}
	if got := Printable("web-1 ü \"x\" \\"); got != "web-1 ü \"x\" \\" {
		t.Errorf("%q", got)
	}
}

func three() []netip.AddrPort { return eps("10.244.0.1:8080", "10.244.1.2:8080", "10.244.2.3:8080") }

// What does not fit together is said, and of whom.
func TestProblems(t *testing.T) {
	without := func(set nft.SetID, nth int) func(*nft.Snapshot) {
		return func(s *nft.Snapshot) {
			s.Elements = slices.DeleteFunc(s.Elements, func(e nft.Element) bool {
				if e.Set == set {
					nth--
				}
				return e.Set == set && nth == -1
			})
		}
	}
	for _, c := range []struct {
		name, want string
		damage     func(*nft.Snapshot)
	}{
		{"first slot gone", "default/web:http: 10.96.0.1:80: slot 0 of the cluster view is empty", without(nft.Endpoints, 0)},
		{"last slot gone", "default/web:http: 10.96.0.1:80: 2 endpoints in the cluster view, but cluster-3 draws from 3 slots", without(nft.Endpoints, 2)},
		{"views gone", "default/remote: NodePort 30002: program nodeport-external finds no endpoints", without(nft.NodePortClusterPrograms, 1)},
		{"sticky endpoint gone", "kube-system/dns:dns: 10.96.0.10:53: slot 0 of the cluster view is empty", without(nft.EndpointsByID, 0)},
		{"balancer gone", "default/web:http: 203.0.113.1:80: program local-1 does not exist", func(s *nft.Snapshot) {
			delete(s.Verdicts, nft.VerdictKey{Map: nft.Programs, Program: nft.NewProgram(nft.KindLocal, 1)})
		}},
		{"other endpoint", "default/web:http: 203.0.113.1:80 has other endpoints in the cluster view than the frontends before it", func(s *nft.Snapshot) {
			i := slices.IndexFunc(s.Elements, func(e nft.Element) bool { return e.Set == nft.Endpoints })
			s.Elements[i].Data = string(slices.Replace([]byte(s.Elements[i].Data), 3, 4, 99))
		}},
	} {
		s := nft.Model(nft.IPv4, config(), cluster(), node(nft.IPv4))
		c.damage(s)
		_, ports := Collect(s, nil)
		var got []string
		for _, p := range ports {
			for _, problem := range p.Problems {
				got = append(got, p.Name+": "+problem)
			}
		}
		if !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, p := range collected(t).ServicePorts {
		if len(p.Problems) != 0 {
			t.Errorf("%s: %q although all is well", p.Name, p.Problems)
		}
	}
}

func TestOrphansAreCounted(t *testing.T) {
	s := nft.Model(nft.IPv4, config(), cluster(), node(nft.IPv4))
	s.Elements = slices.DeleteFunc(s.Elements, func(e nft.Element) bool { return strings.HasPrefix(e.Comment, "default/web") })
	if table, _ := Collect(s, nil); table.Orphans != 3 {
		t.Errorf("%d orphans, want the 3 frontends whose program is not loaded", table.Orphans)
	}
}

func TestSelectAndSplit(t *testing.T) {
	ports := collected(t).ServicePorts
	if got := Select(ports, "kube-system", "dns", ""); len(got) != 2 || got[0].Protocol != "tcp" {
		t.Errorf("selected %v", got)
	}
	if got := Select(ports, "default", "web", "80"); len(got) != 1 || got[0].Port != "http" {
		t.Errorf("selected %v", got)
	}
	if got := Select(ports, "kube-system", "dns", "d"); len(got) != 0 {
		t.Errorf("selected %v", got)
	}
	for name, want := range map[string][3]string{
		"a/b:c": {"a", "b", "c"}, "a/b": {"a", "b", ""}, "b": {"", "b", ""}, strings.Repeat("x", 110) + "~0123456789abcdef": {"", strings.Repeat("x", 110) + "~0123456789abcdef", ""},
	} {
		var got [3]string
		if got[0], got[1], got[2] = splitName(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// 30,000 Services with 3 endpoints each, as a large cluster has.
func BenchmarkDump30000(b *testing.B) {
	var services []*nft.Service
	for i := range 30000 {
		vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		services = append(services, &nft.Service{Name: fmt.Sprintf("ns-%d/service-%d:http", i%100, i), Proto: nft.TCP, Served: true,
			Cluster: eps("10.244.0.1:8080", "10.244.1.2:8080", "10.244.2.3:8080"), Frontends: []nft.Frontend{{Addr: vip, Port: 80}}})
	}
	s := nft.Model(nft.IPv4, config(), services, nil)
	for b.Loop() {
		table, ports := Collect(s, nil)
		if err := Text(io.Discard, &Dump{Tables: []Table{table}, ServicePorts: ports}, false); err != nil {
			b.Fatal(err)
		}
	}
}

// A Service of many endpoints makes a graph that is still readable.
func TestManyEndpointsAreCounted(t *testing.T) {
	s := ServicePort{Name: "default/web", Family: "ip", Frontends: []Frontend{{Kind: "ClusterIP", Address: "10.96.0.1", Port: 80, Policy: "Cluster"}}}
	all := map[netip.Addr]Place{}
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		all[a] = Place{fmt.Sprintf("node-%d", i/100), string(rune('a' + i/2500))}
		s.Endpoints.Cluster = append(s.Endpoints.Cluster, netip.AddrPortFrom(a, 80).String())
	}
	var out bytes.Buffer
	if err := DOT(&out, "default/web", []ServicePort{s}, DOTOptions{Places: all}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"and 88 more", moreNodes, "zone a", "zone b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the graph", want)
		}
	}
	if out.Len() > 100<<10 {
		t.Errorf("%d bytes", out.Len())
	}
}

// The memory that YAML takes does not grow with the Services.
func TestYAMLIsStreamed(t *testing.T) {
	peak := func(n int) uint64 {
		d := &Dump{ServicePorts: make([]ServicePort, n)}
		most := uint64(0)
		count := writerFunc(func(p []byte) (int, error) {
			most = max(most, uint64(len(p)))
			return len(p), nil
		})
		if err := YAML(count, d); err != nil {
			t.Fatal(err)
		}
		return most
	}
	if few, many := peak(100), peak(2000); many > 2*few {
		t.Errorf("%d bytes at once of 2,000 Service ports, %d of 100", many, few)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
