// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo shows nftproxy at work: two nodes, pods and an outside client as network namespaces, the Services of
// examples/, real requests over both families, endpoints scaled under load, and what was programmed. It fails
// when anything is not as it should be, and leaves nothing behind. Run it from the repository's root: make demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	start := time.Now()
	if err := demo(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo failed:", err)
		os.Exit(1)
	}
	fmt.Printf("\nEverything was as it should be (%s). Namespaces and rules went with this process.\n", time.Since(start).Round(time.Millisecond))
}

// stage is the demo's world.
type stage struct {
	*lab.Net
	out     io.Writer
	dir     string
	proxies []*lab.Proxy
	wrong   error
}

// demo runs all acts.
func demo(ctx context.Context, out io.Writer) error {
	n, err := lab.New(lab.Options{})
	if err != nil {
		return fmt.Errorf("build the network (needs root): %w", err)
	}
	defer n.Close()
	dir, err := os.MkdirTemp("", "nftproxy-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &stage{Net: n, out: out, dir: dir}
	if err := s.start(); err != nil {
		return err
	}
	defer s.end()
	for _, act := range []func(context.Context) error{s.requests, s.policies, s.scale, s.flush, s.dump} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return s.wrong
}

func (s *stage) title(format string, args ...any) { fmt.Fprintf(s.out, "\n== "+format+"\n", args...) }

// expect notes what is not as it should be.
func (s *stage) expect(ok bool, format string, args ...any) {
	if !ok {
		fmt.Fprintf(s.out, "   WRONG: "+format+"\n", args...)
		s.wrong = errors.Join(s.wrong, fmt.Errorf(format, args...))
	}
}

// start copies the examples, starts named backends in the pods, and a proxy on each node.
func (s *stage) start() error {
	examples, err := filepath.Glob("examples/*.yaml")
	if err != nil {
		return err
	}
	if len(examples) == 0 {
		return errors.New("no examples/*.yaml: run from the repository's root")
	}
	for _, path := range examples {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, filepath.Base(path)), b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	s.title("Two nodes, six pods, one outside client; Services from examples/")
	for _, node := range s.Nodes {
		for _, p := range node.Pods {
			_, tcp := p.Serve(p.Name, 8080, lab.TCP)
			_, udp := p.Serve(p.Name, 8053, lab.UDP)
			if err := errors.Join(tcp, udp); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	s.proxies, err = lab.StartProxies(s.Net, lab.ProxySpec{Kind: lab.NFTProxy, Manifests: s.dir, Flags: []string{
		"--conntrack-max-per-core=0", // the host's, not a namespace's
		"--cluster-cidr=" + lab.ClusterCIDR(lab.IPv4).String() + "," + lab.ClusterCIDR(lab.IPv6).String(),
	}})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "   nftproxy runs on both nodes and is healthy after %s\n", time.Since(began).Round(time.Millisecond))
	return nil
}

func (s *stage) end() {
	for _, p := range s.proxies {
		_ = p.Stop()
	}
}

// requests asks through every kind of address, from everywhere.
func (s *stage) requests(context.Context) error {
	s.title("Requests: from whom, to what, who answers, and as whom the client is seen")
	type target struct {
		name  string
		proto lab.Proto
		addr  func(lab.Family) netip.AddrPort
	}
	at := netip.AddrPortFrom
	targets := []target{
		{"ClusterIP", lab.TCP, func(f lab.Family) netip.AddrPort { return at(lab.ClusterIP(f, 10), 80) }},
		{"ClusterIP", lab.UDP, func(f lab.Family) netip.AddrPort { return at(lab.ClusterIP(f, 10), 53) }},
		{"NodePort", lab.TCP, func(f lab.Family) netip.AddrPort { return at(lab.NodeIP(f, 1), 30080) }},
		{"NodePort", lab.UDP, func(f lab.Family) netip.AddrPort { return at(lab.NodeIP(f, 1), 30053) }},
		{"LoadBalancer", lab.TCP, func(f lab.Family) netip.AddrPort { return at(lab.LoadBalancerIP(f, 1), 80) }},
		{"external IP", lab.TCP, func(f lab.Family) netip.AddrPort { return at(lab.ExternalIP(f, 1), 80) }},
	}
	for _, from := range []*lab.Host{s.Pod(1, 3).Host, s.Node(1).Host, s.Client(1).Host} {
		for _, t := range targets {
			for _, f := range lab.Families() {
				p := lab.Probe{From: from, Proto: t.proto, To: t.addr(f)}
				tally := p.Repeat(60, 4)
				last := p.Send()
				fmt.Fprintf(s.out, "   %-9s %-12s %s %-24s %-24s as %s\n", from.Name, t.name, t.proto, p.To, names(tally), last.Source.Addr())
				s.expect(tally.AllAnswered(), "%s to %s: %s", from.Name, p.To, tally)
				s.expect(len(tally.Backends) == 3, "%s to %s reached %s, want three endpoints", from.Name, p.To, names(tally))
			}
		}
	}
	return nil
}

// names lists who answered.
func names(t *lab.Tally) string { return strings.Join(slices.Sorted(maps.Keys(t.Backends)), " ") }

// policies shows what is not plain balancing.
func (s *stage) policies(context.Context) error {
	s.title("Policies")
	client := s.Client(1).Host
	for _, f := range lab.Families() {
		for i, node := range s.Nodes {
			p := lab.Probe{From: client, Proto: lab.TCP, To: netip.AddrPortFrom(lab.NodeIP(f, i+1), 30081)}
			r, tally := p.Send(), p.Repeat(30, 2)
			fmt.Fprintf(s.out, "   externalTrafficPolicy Local at %s: %s, client seen as %s\n", node.Name, names(tally), r.Source.Addr())
			want := node.Pods[0].Name
			s.expect(tally.AllAnswered() && names(tally) == want, "ETP Local at %s: %s", node.Name, tally)
			s.expect(r.Source.Addr() == client.IP(f), "client seen as %s, want its own address", r.Source.Addr())
		}
	}
	sticky := lab.Probe{From: client, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(lab.IPv4, 30), 80)}.Repeat(50, 1)
	fmt.Fprintf(s.out, "   sessionAffinity ClientIP: 50 connections of one client, all at %s\n", names(sticky))
	s.expect(sticky.AllAnswered() && len(sticky.Backends) == 1, "affinity: %s", sticky)
	for what, to := range map[string]netip.AddrPort{
		"Service without endpoints": netip.AddrPortFrom(lab.ClusterIP(lab.IPv4, 40), 80),
		"unused port":               netip.AddrPortFrom(lab.ClusterIP(lab.IPv4, 10), 81),
	} {
		r := client.Ask(lab.TCP, to)
		fmt.Fprintf(s.out, "   %s: %s after %s\n", what, r.Verdict, r.Took.Round(10*time.Microsecond))
		s.expect(r.Verdict == lab.Refused, "%s: %s", what, r)
	}
	return nil
}

// How often the endpoints are changed under load, and how many connections at least are made between two changes, which are 50 ms
// apart on an idle machine and further on a slow one.
const scaleChanges, connectionsPerChange = 60, 100

// scale changes endpoints under load.
func (s *stage) scale(ctx context.Context) error {
	s.title("Endpoints scaled 3 -> 1 -> 2 -> 3 -> ... %d times under load", scaleChanges)
	path := filepath.Join(s.dir, "web.yaml")
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	load, cancel := context.WithTimeout(ctx, lab.HangLimit)
	defer cancel()
	var answered, failed atomic.Int64
	done := make(chan *lab.Tally, 1)
	go func() {
		done <- lab.Probe{From: s.Client(1).Host, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(lab.IPv6, 10), 80)}.
			Storm(load, 2, func(r lab.Result) {
				if r.Verdict == lab.Answered {
					answered.Add(1)
				} else {
					failed.Add(1)
				}
			})
	}()
	began, changes := time.Now(), 0
	for ; changes < scaleChanges && load.Err() == nil; changes++ {
		text := string(whole)
		for _, pod := range [][]string{nil, {"1.12", "2.11"}, {"2.11"}}[changes%3] {
			for line := range strings.Lines(text) {
				if strings.Contains(line, "."+pod+"]") || strings.Contains(line, strings.ReplaceAll(pod, ".", "::")+`"]`) {
					text = strings.Replace(text, line, "", 1)
				}
			}
		}
		if err := replaceFile(path, text); err != nil {
			return err
		}
		seen := answered.Load() + failed.Load()
		pause(load, 50*time.Millisecond)
		for answered.Load()+failed.Load() < seen+connectionsPerChange && load.Err() == nil {
			pause(load, 10*time.Millisecond)
		}
	}
	cancel()
	tally := <-done
	fmt.Fprintf(s.out, "   %d connections during %d changes in %s, %d failed; slowest %s\n", tally.Total, changes,
		time.Since(began).Round(time.Millisecond), failed.Load(), tally.Slowest.Round(10*time.Microsecond))
	s.expect(failed.Load() == 0 && changes == scaleChanges, "under load, after %d changes: %s", changes, tally)
	s.expect(len(tally.Backends) == 3, "under load %s answered, want three endpoints", names(tally))
	return replaceFile(path, string(whole))
}

// replaceFile writes a file as a whole, so that no reader sees half of it.
func replaceFile(path, text string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// flush takes all rules away behind the proxy's back.
func (s *stage) flush(context.Context) error {
	s.title("nft flush ruleset on node-1, behind nftproxy's back")
	if _, err := lab.NFT(s.Node(1).Host, "flush", "ruleset"); err != nil {
		return err
	}
	start := time.Now()
	for _, f := range lab.Families() {
		p := lab.Probe{From: s.Pod(1, 3).Host, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(f, 10), 80), Timeout: 200 * time.Millisecond}
		r, ok := p.Eventually(lab.HangLimit, func(r lab.Result) bool { return r.Verdict == lab.Answered })
		fmt.Fprintf(s.out, "   %s served again after %s\n", f, time.Since(start).Round(100*time.Microsecond))
		s.expect(ok, "not repaired: %s", r)
	}
	return nil
}

// dump prints what the kernel holds.
func (s *stage) dump(context.Context) error {
	s.title("nftproxy dump on node-1")
	binary, err := lab.NftproxyBinary()
	if err != nil {
		return err
	}
	text, err := s.Node(1).Run(binary, "dump")
	fmt.Fprintln(s.out, "   "+strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n   "))
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	s.expect(strings.Contains(text, "default/web"), "dump does not show default/web")
	return nil
}
