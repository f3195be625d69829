// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite the output in docs/troubleshooting.md")

// stories play docs/troubleshooting.md: each brings a Service into the state that the text describes.
type stories struct {
	*cluster
	web, api, flushed *corev1.Service
	proxies           []*lab.Proxy
}

func (s *stories) service(name string, index int) *corev1.Service {
	return lab.WithLoadBalancer(lab.NewService(name, index, lab.Port(lab.TCP, 80, 8080)), int32(30000+10*index), index)
}

// setTheScene makes everything that is wrong from the beginning.
func (s *stories) setTheScene() {
	s.web, s.api, s.flushed = s.service("web", 10), s.service("api", 11), s.service("flushed", 14)
	s.apply(s.web, lab.NewSlices(s.web))
	unready := func(p *lab.Pod) lab.Endpoint { return p.Endpoint().With(false, false, false) }
	s.apply(s.api, lab.NewSlices(s.api, s.Pod(1, 1).Endpoint(), unready(s.Pod(1, 2)), unready(s.Pod(2, 1))))
	shop := s.service("shop", 12)
	shop.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "198.51.100.16/28"}
	s.apply(shop, lab.NewSlices(shop, s.Pod(1, 1).Endpoint()))
	gateway := s.service("gateway", 13)
	gateway.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	gateway.Spec.HealthCheckNodePort = 32000
	s.apply(gateway, lab.NewSlices(gateway, s.Pod(2, 1).Endpoint(), s.Pod(2, 2).Endpoint()))
	s.apply(s.flushed, lab.NewSlices(s.flushed, s.Pod(2, 1).Endpoint()))
	walled := s.service("walled", 15)
	s.apply(walled, lab.NewSlices(walled, s.Pod(2, 2).Endpoint()))
	s.serve(8080, s.pods(), lab.TCP)
}

// ask waits until a connection ends as the story has it.
func (s *stories) ask(from *lab.Host, index int, load bool, want lab.Verdict) {
	s.t.Helper()
	to := at(lab.ClusterIP(lab.IPv4, index), 80)
	if load {
		to = at(lab.LoadBalancerIP(lab.IPv4, index), 80)
	}
	p := lab.Probe{From: from, Proto: lab.TCP, To: to, Timeout: 500 * time.Millisecond}
	if r, ok := p.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == want }); !ok {
		s.t.Fatalf("%s from %s: %s, want %s", to, from, r, want)
	}
}

// play brings about what comes before a part of the text.
func (s *stories) play(part string) {
	s.t.Helper()
	pod, client := s.Pod(1, 1).Host, s.Client(1).Host
	switch part {
	case "selector":
		s.ask(pod, 10, false, lab.Refused)
	case "selector-fixed":
		s.apply(lab.NewSlices(s.web, s.Pod(1, 1).Endpoint(), s.Pod(1, 2).Endpoint(), s.Pod(2, 1).Endpoint()))
		s.ask(pod, 10, false, lab.Answered)
	case "readiness":
		s.ask(pod, 11, false, lab.Answered)
	case "readiness-fixed":
		s.apply(lab.NewSlices(s.api, s.Pod(1, 1).Endpoint(), s.Pod(1, 2).Endpoint(), s.Pod(2, 1).Endpoint()))
		s.reaches(pod, 11, s.Pod(2, 1).Name)
	case "ranges":
		s.ask(client, 12, true, lab.Dropped)
	case "local":
		s.ask(client, 13, true, lab.Dropped)
	case "wall":
		s.ask(pod, 15, false, lab.Answered)
		if err := lab.LoadNFT(s.Node(1).Host, wall); err != nil {
			s.t.Fatal(err)
		}
		go s.onceTraced(lab.Probe{From: pod, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv4, 15), 80),
			Source: at(pod.IP(lab.IPv4), 40000), Timeout: 500 * time.Millisecond})
	case "flushed":
		s.ask(pod, 14, false, lab.Answered)
		if err := s.proxies[0].Stop(); err != nil {
			s.t.Fatal(err)
		}
		lab.Must(lab.NFT(s.Node(1).Host, "flush", "ruleset"))(s.t)
		s.ask(pod, 14, false, lab.Unreachable)
	case "flushed-fixed":
		s.proxies[0] = lab.Must(s.proxies[0].Restart())(s.t)
		s.ask(pod, 14, false, lab.Answered)
	default:
		s.t.Fatalf("no story plays the part %q of the text", part)
	}
}

// wall is the table of another program in the kernel of node 1.
const wall = `table inet firewall {
	chain forward {
		type filter hook forward priority filter + 10
		ip daddr 10.244.2.12 tcp dport 8080 drop comment "quarantine until Friday"
	}
}
`

// onceTraced sends a packet when a trace is on.
func (s *stories) onceTraced(p lab.Probe) {
	for range 1000 {
		if out, err := lab.NFT(s.Node(1).Host, "list", "tables"); err == nil && strings.Contains(out, nft.TraceTablePrefix) {
			p.Send()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// reaches waits until a backend is among those that answer.
func (s *stories) reaches(from *lab.Host, index int, backend string) {
	s.t.Helper()
	p := lab.Probe{From: from, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv4, index), 80)}
	if r, ok := p.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Backend == backend }); !ok {
		s.t.Fatalf("%s is never reached: %s", backend, r)
	}
}

// block is the command of a console block, the node in front of it, and the output behind.
var block = regexp.MustCompile("(?ms)^```console\n(node-[12])# nftproxy ([^\n]*)\n(.*?)^```$")

// stamp is the line of where, when and by which version.
var stamp = regexp.MustCompile(`(?m)^node .*, nftproxy .*$`)

// changing is what a new version may print otherwise without making the text wrong: numbers of rules and chains.
var changing = regexp.MustCompile(`\b(rule|handle) \d+|\d+ (chains|rules|sets and maps|elements)`)

// The stories of the documentation are true.
func TestStories(t *testing.T) {
	const file = "../docs/troubleshooting.md"
	text := string(lab.Must(os.ReadFile(file))(t))
	s := &stories{cluster: fromManifests(t, lab.Options{})}
	s.setTheScene()
	s.proxies = s.start()
	bin := lab.Must(lab.NftproxyBinary())(t)
	parts := strings.Split(text, "<!-- story: ")
	played := 0
	for i, part := range parts[1:] {
		name, rest, _ := strings.Cut(part, " -->")
		s.play(name)
		rest = block.ReplaceAllStringFunc(rest, func(b string) string {
			played++
			m := block.FindStringSubmatch(b)
			node := s.Node(int(m[1][len(m[1])-1] - '0'))
			out := inquire(t, node.Host, append([]string{bin}, strings.Fields(m[2])...)...)
			out = stamp.ReplaceAllString(out, "node "+m[1]+", 2026-11-22T10:00:00Z, nftproxy v0.1.0")
			return "```console\n" + m[1] + "# nftproxy " + m[2] + "\n" + strings.TrimRight(out, "\n") + "\n```"
		})
		parts[i+1] = name + " -->" + rest
	}
	if played != strings.Count(text, "```console") {
		t.Errorf("%d of %d blocks were played", played, strings.Count(text, "```console"))
	}
	got := strings.Join(parts, "<!-- story: ")
	if *updateDocs {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(changing.ReplaceAllString(text, "N"), changing.ReplaceAllString(got, "N")); d != "" {
		t.Errorf("%s is not what the commands print (go test ./e2e -run TestStories -update-docs): (-text +now)\n%s", file, d)
	}
}
