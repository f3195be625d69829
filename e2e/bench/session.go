// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

const (
	// patience is how long anything is waited for: kube-proxy's cold start at 30,000x3 takes 145 s.
	patience = 10 * time.Minute
	// giveUp is for one connection that only asks whether a change has come. Answers take 0.1 ms.
	giveUp = 50 * time.Millisecond
	// tooLong is for one connection that has to be answered.
	tooLong = time.Second
)

// Hot Services: those whose endpoints are swapped and waited for, and one that is connected to all the time.
const watched, steady = 0, 1

// samples are measurements by name: times in seconds, memory in MiB.
type samples map[string][]float64

func (s samples) add(name string, v ...float64) { s[name] = append(s[name], v...) }

func (s samples) took(name string, d time.Duration) { s.add(name, d.Seconds()) }

// session is one proxy in a network of its own.
type session struct {
	*cluster
	options
	samples
	peer
	round   int       // from 0
	client  *lab.Host // a pod
	outside *lab.Host // on the nodes' network
	pod     *lab.Pod  // all endpoints
	api     *lab.API
	proxy   *lab.Proxy
	group   cgroup
}

// phase is a part of a turn.
type phase struct {
	name string
	do   func(context.Context) error
	// needs reports whether the phase is for a session at all.
	needs func(*session) bool
	pause time.Duration // between connections of the watch; 0 is no watch
}

// phases are in the order in which they need each other. Connections are watched in all that change something.
func (s *session) phases() []phase {
	const seldom, often = 5 * time.Millisecond, time.Millisecond
	always := func(*session) bool { return true }
	many := func(s *session) bool { return s.services >= hot+writers }
	first := func(s *session) bool { return s.round == 0 }
	quick := func(s *session) bool { return many(s) && s.round == 0 && !s.crawls() }
	return []phase{
		{"cold start", s.coldStart, always, seldom},
		{"rest", s.rest, always, 0},
		{"changes", s.swaps, many, seldom},
		{"creations", s.creations, func(s *session) bool { return many(s) && s.round == 0 }, seldom},
		{"connections", s.connections, first, 0},
		{"churn", s.churns, quick, often},
		{"restart", s.restart, quick, often},
		{"restart 1%", s.restartChanged, quick, often},
		{"tables", s.tables, first, 0},
	}
}

// crawl is a cold start after which a proxy is asked for the fewest changes, and spared churn, restarts and further rounds:
// kube-proxy at 30,000x3 takes 49 s for each.
const crawl = time.Minute

func (s *session) crawls() bool { return quantile(s.samples["cold_start"], 0.5) > crawl.Seconds() }

// turn measures one proxy from an empty kernel on. Rounds are counted from 0; later ones repeat what varies most.
func turn(ctx context.Context, o options, c *cluster, who peer, round int, into samples) error {
	n, err := lab.New(lab.Options{Nodes: 1, PodsPerNode: 2})
	if err != nil {
		return err
	}
	defer n.Close()
	s := &session{
		cluster: c, options: o, samples: into, peer: who, round: round,
		client: n.Pod(1, 2).Host, outside: n.Client(1).Host, pod: n.Pod(1, 1),
	}
	defer s.end()
	if s.api, err = n.Attach(c.cp); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	for _, p := range s.phases() {
		if !p.needs(s) || slices.Contains(s.skip, p.name) {
			continue
		}
		if err := s.during(ctx, p); err != nil {
			return fmt.Errorf("%s: %w; the end of the log:\n%s", p.name, err, s.proxy.Tail(10))
		}
	}
	return nil
}

// during does a phase with a watch beside it.
func (s *session) during(ctx context.Context, p phase) error {
	start := time.Now()
	if p.pause > 0 {
		w := startWatch(s.client, s.watchedVIPs(), s.paths()[0].to, p.pause)
		defer w.stop(s.samples, p.name)
	}
	if err := p.do(ctx); err != nil {
		return err
	}
	progress("%s: %s: %s took %.1fs", s.size, s.name, p.name, time.Since(start).Seconds())
	return nil
}

// watchedVIPs are a Service that is not touched and two whose endpoints churn replaces.
func (s *session) watchedVIPs() []netip.AddrPort {
	if s.services <= hot+2 {
		return []netip.AddrPort{vip(s.families[0], 0)}
	}
	var all []netip.AddrPort
	for _, i := range []int{steady, hot, hot + 1} {
		all = append(all, vip(s.families[0], i))
	}
	return all
}

// serve makes the pod every endpoint there is.
func (s *session) serve() error {
	for _, f := range s.families {
		if err := s.pod.AnyIP(endpointRange(f)); err != nil {
			return err
		}
		if err := s.pod.Node.Route(endpointRange(f), s.pod.IP(f), lab.PodBridge); err != nil {
			return err
		}
		if err := s.outside.Route(endpointRange(f), s.pod.Node.IP(f), "eth0"); err != nil {
			return err
		}
		any := netip.IPv4Unspecified()
		if f == lab.IPv6 {
			any = netip.IPv6Unspecified()
		}
		if _, err := listen(s.pod.Host, netip.AddrPortFrom(any, target)); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) start() (err error) {
	spec := lab.ProxySpec{Kind: s.kind, API: s.api, NoWait: true}
	if s.mode != "" {
		spec.Config = map[string]any{"mode": s.mode}
	}
	if s.proxy, err = lab.StartProxy(s.pod.Node, spec); err != nil {
		return err
	}
	if s.group.dir != "" {
		return s.group.join(s.proxy.PID())
	}
	s.group, err = newCgroup(s.proxy.PID())
	return err
}

// end ends the proxy, however far it got.
func (s *session) end() {
	if s.proxy != nil {
		s.proxy.Kill()
	}
	s.group.remove()
}

// until connects to a Service until ok says yes. It rests between connections, for a hundredth of the time it has waited: the
// proxy needs the processor.
func (s *session) until(to netip.AddrPort, start time.Time, ok func(lab.Result) bool) error {
	const longest = 10 * time.Millisecond
	probe := lab.Probe{From: s.client, Proto: lab.TCP, To: to, Timeout: giveUp}
	for {
		r := probe.Send()
		if ok(r) {
			return nil
		}
		waited := time.Since(start)
		if waited > patience {
			return fmt.Errorf("%s after %s: %s", to, patience, r)
		}
		time.Sleep(min(waited/100, longest))
	}
}

func answered(r lab.Result) bool { return r.Verdict == lab.Answered }

// coldStart is from the start of the process to the last of Services all over the cluster answering.
func (s *session) coldStart(context.Context) error {
	const asked = 100 // one after another, until it answers: the last answer is the time of the last of them
	start, received := time.Now(), s.api.Received()
	if err := s.start(); err != nil {
		return err
	}
	stop := peak(s.proxy.PID())
	defer func() { s.add("peak", stop()) }()
	for k := range min(asked, s.services) {
		i := k * (s.services - 1) / max(1, min(asked, s.services)-1)
		for _, f := range s.families {
			if err := s.until(vip(f, i), start, answered); err != nil {
				return err
			}
		}
	}
	s.took("cold_start", time.Since(start))
	calm(s.proxy.PID())
	s.took("cold_start_cpu", cpu(s.proxy.PID()))
	s.add("cold_start_received", float64(s.api.Received()-received)/(1<<20))
	if s.kind != lab.NFTProxy {
		return nil
	}
	text, err := s.metrics()
	s.add("transaction", slowest(text, "nftproxy_transaction_duration_seconds"))
	return err
}

// rest is memory and processor time when nothing happens.
func (s *session) rest(context.Context) error {
	const window = 5 * time.Second
	before := cpu(s.proxy.PID())
	time.Sleep(window)
	s.add("idle_cpu", (cpu(s.proxy.PID())-before).Seconds()/window.Seconds())
	s.add("memory", resident(s.proxy.PID()))
	calm(s.proxy.PID()) // each phase leaves it so
	return nil
}

// idle is the processor time that an idle proxy uses in a time.
func (s *session) idle(d time.Duration) time.Duration {
	rates := s.samples["idle_cpu"]
	return time.Duration(rates[len(rates)-1] * float64(d))
}

// repeat does something some times, but ends early when it takes too long. It returns how often.
func (s *session) repeat(do func() error) (k int, err error) {
	least, longest := s.least, s.options.phase
	if s.crawls() {
		least, longest = min(least, 2), 0
	}
	for start := time.Now(); k < s.changes && (k < least || time.Since(start) < longest); k++ {
		if err := do(); err != nil {
			return k, err
		}
		s.settle()
	}
	return k, nil
}

// settle lets the proxy come to rest, so that the next change finds it idle. kube-proxy has its minSyncPeriod of 1 s to wait for;
// nftproxy has none and is done with a change when it is in effect.
func (s *session) settle() {
	if s.kind == lab.KubeProxy {
		calm(s.proxy.PID())
		return
	}
	time.Sleep(50 * time.Millisecond)
}

// swaps is from the API write of one endpoint replaced to the first connection that reaches it. What connections to the other
// endpoints took meanwhile is part of it.
func (s *session) swaps(ctx context.Context) error {
	start, before, received := time.Now(), cpu(s.proxy.PID()), s.api.Received()
	n, err := s.repeat(func() error { return s.swapAndWait(ctx, "change") })
	if err != nil {
		return err
	}
	calm(s.proxy.PID()) // what it does after the answer counts too
	used := max(0, cpu(s.proxy.PID())-before-s.idle(time.Since(start)))
	s.took("cpu_per_change", used/time.Duration(n))
	s.took("cpu_per_1000_changes", 1000*used/time.Duration(n))
	s.add("received_per_change", float64(s.api.Received()-received)/float64(n))
	return nil
}

func (s *session) swapAndWait(ctx context.Context, name string) error {
	start := time.Now()
	backend, err := s.swap(ctx, watched)
	if err != nil {
		return err
	}
	wrote := time.Since(start)
	if err := s.reaches(backend, start); err != nil {
		return err
	}
	s.took(name, time.Since(start))
	s.took(name+"_write", wrote)
	return nil
}

// reaches waits until the watched Service leads to an endpoint.
func (s *session) reaches(backend string, start time.Time) error {
	return s.until(vip(s.families[0], watched), start, func(r lab.Result) bool { return r.Backend == backend })
}

// creations is from the API write of a new Service, which its endpoints follow, to the first answer.
func (s *session) creations(ctx context.Context) error {
	_, err := s.repeat(func() error {
		start := time.Now()
		i, err := s.create(ctx)
		if err != nil {
			return err
		}
		if err := s.until(vip(s.families[0], i), start, answered); err != nil {
			return err
		}
		s.took("new_service", time.Since(start))
		return nil
	})
	calm(s.proxy.PID())
	return err
}

func (s *session) metrics() (string, error) {
	return s.proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort))
}
