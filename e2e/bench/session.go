// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
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
	kind   lab.ProxyKind
	client *lab.Host // a pod
	pod    *lab.Pod  // all endpoints
	api    *lab.API
	proxy  *lab.Proxy
}

// turn measures one proxy from an empty kernel on.
func turn(ctx context.Context, o options, c *cluster, kind lab.ProxyKind, into samples) error {
	n, err := lab.New(lab.Options{Nodes: 1, PodsPerNode: 2})
	if err != nil {
		return err
	}
	defer n.Close()
	s := &session{cluster: c, options: o, samples: into, kind: kind, client: n.Pod(1, 2).Host, pod: n.Pod(1, 1)}
	if s.api, err = n.Attach(c.cp); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"cold start", s.coldStart}, {"rest", s.rest}, {"changes", s.swaps}, {"creations", s.creations},
		{"connections", s.connections}, {"churn", s.churns}, {"restart", s.restart},
	} {
		if slices.Contains(s.skip, p.name) {
			continue
		}
		start := time.Now()
		if err := p.do(ctx); err != nil {
			return fmt.Errorf("%s: %w; the end of the log:\n%s", p.name, err, s.proxy.Tail(10))
		}
		progress("%s: %s: %s took %.1fs", c.size, kind, p.name, time.Since(start).Seconds())
	}
	return nil
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
		any := netip.IPv4Unspecified()
		if f == lab.IPv6 {
			any = netip.IPv6Unspecified()
		}
		if _, err := s.pod.Listen("", lab.TCP, netip.AddrPortFrom(any, target)); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) start() (err error) {
	s.proxy, err = lab.StartProxy(s.pod.Node, lab.ProxySpec{Kind: s.kind, API: s.api, NoWait: true})
	return err
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
	start := time.Now()
	if err := s.start(); err != nil {
		return err
	}
	stop := peak(s.proxy.PID())
	defer func() { s.add("peak", stop()) }()
	for k := range asked {
		for _, f := range s.families {
			if err := s.until(vip(f, k*(s.services-1)/(asked-1)), start, answered); err != nil {
				return err
			}
		}
	}
	s.took("cold_start", time.Since(start))
	calm(s.proxy.PID())
	s.took("cold_start_cpu", cpu(s.proxy.PID()))
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

// repeat does something some times, but ends early when it takes too long.
func (s *session) repeat(do func() error) error {
	for k, start := 0, time.Now(); k < s.changes && (k < s.least || time.Since(start) < s.phase); k++ {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// swaps is from the API write of one endpoint replaced to the first connection that reaches it. What connections to the other
// endpoints took meanwhile is part of it.
func (s *session) swaps(ctx context.Context) error {
	return s.repeat(func() error {
		start, before := time.Now(), cpu(s.proxy.PID())
		if err := s.swapAndWait(ctx, "change"); err != nil {
			return err
		}
		calm(s.proxy.PID()) // what it does after the answer counts too
		s.took("cpu_per_change", max(0, cpu(s.proxy.PID())-before-s.idle(time.Since(start))))
		return nil
	})
}

func (s *session) swapAndWait(ctx context.Context, name string) error {
	start := time.Now()
	backend, err := s.swap(ctx, watched)
	if err != nil {
		return err
	}
	wrote := time.Since(start)
	if err := s.until(vip(lab.IPv4, watched), start, func(r lab.Result) bool { return r.Backend == backend }); err != nil {
		return err
	}
	s.took(name, time.Since(start))
	s.took(name+"_write", wrote)
	return nil
}

// creations is from the API write of a new Service, which its endpoints follow, to the first answer.
func (s *session) creations(ctx context.Context) error {
	return s.repeat(func() error {
		start := time.Now()
		i, err := s.create(ctx)
		if err != nil {
			return err
		}
		if err := s.until(vip(lab.IPv4, i), start, answered); err != nil {
			return err
		}
		s.took("new_service", time.Since(start))
		calm(s.proxy.PID())
		return nil
	})
}

// connections compares a ClusterIP with an endpoint's own address, taking turns.
func (s *session) connections(context.Context) error {
	const turns, each = 5, 1000
	endpoint := netip.MustParseAddrPort(numbered(endpointRange(lab.IPv4), 1) + fmt.Sprintf(":%d", target))
	for range turns {
		for name, to := range map[string]netip.AddrPort{"direct": endpoint, "cluster_ip": vip(lab.IPv4, steady)} {
			t := lab.Probe{From: s.client, Proto: lab.TCP, To: to}.Repeat(each, 1)
			if !t.AllAnswered() {
				return fmt.Errorf("%s: %s", to, t)
			}
			s.add(name+"_rate", float64(t.Total)/t.Took.Seconds())
		}
	}
	d, c := s.samples["direct_rate"], s.samples["cluster_ip_rate"]
	s.add("rate_share", quantile(c[len(c)-turns:], 0.5)/quantile(d[len(d)-turns:], 0.5))
	return nil
}

// storm connects to one Service all the time, until the function that it returns is called, which counts what failed.
func (s *session) storm() (stop func()) {
	const pause = time.Millisecond // leave the processors to the proxy
	ctx, cancel := context.WithCancel(context.Background())
	var t *lab.Tally
	var wg sync.WaitGroup
	wg.Go(func() {
		probe := lab.Probe{From: s.client, Proto: lab.TCP, To: vip(lab.IPv4, steady), Timeout: tooLong}
		t = probe.Storm(ctx, 1, func(lab.Result) { time.Sleep(pause) })
	})
	return func() {
		cancel()
		wg.Wait()
		s.add("connections", float64(t.Total))
		s.add("failed", float64(t.Total-t.Verdicts[lab.Answered]))
		s.took("slowest", t.Slowest)
	}
}

// churns changes endpoints all over the cluster, and swaps one and waits for it over and over.
func (s *session) churns(ctx context.Context) error {
	for _, rate := range s.rates {
		stop := s.storm()
		err := s.churnAt(ctx, rate)
		stop()
		if err != nil {
			return err
		}
		calm(s.proxy.PID())
	}
	return nil
}

func (s *session) churnAt(ctx context.Context, rate int) error {
	name := fmt.Sprintf("churn_%d_", rate)
	during, cancel := context.WithTimeout(ctx, s.sustain)
	defer cancel()
	start, before := time.Now(), cpu(s.proxy.PID())
	var changes int
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { changes, failed = s.churn(during, rate) })
	for during.Err() == nil && failed == nil {
		if err := s.swapAndWait(ctx, name+"lag"); err != nil {
			return err
		}
	}
	took, used := time.Since(start), cpu(s.proxy.PID())-before
	wg.Wait()
	s.add(name+"reached", float64(changes)/s.sustain.Seconds())
	s.add(name+"cpu", used.Seconds()/took.Seconds())
	return failed
}

// restart stops the proxy, starts it anew and changes an endpoint at once. Then nftproxy is restarted with nothing changed at
// all, and tells what it wrote; kube-proxy cannot tell, and writes everything.
func (s *session) restart(ctx context.Context) error {
	defer s.storm()()
	start, err := s.again()
	if err != nil {
		return err
	}
	backend, err := s.swap(ctx, watched)
	if err != nil {
		return err
	}
	if err := s.until(vip(lab.IPv4, watched), start, func(r lab.Result) bool { return r.Backend == backend }); err != nil {
		return err
	}
	s.took("restart", time.Since(start))
	if s.kind != lab.NFTProxy {
		return nil
	}
	calm(s.proxy.PID())
	if start, err = s.again(); err != nil {
		return err
	}
	if err := s.proxy.WaitReady(); err != nil {
		return err
	}
	s.took("restart_ready", time.Since(start))
	text, err := s.metrics()
	s.add("restart_elements", sum(text, "nftproxy_transaction_elements_sum"))
	return err
}

// again restarts the proxy and returns when.
func (s *session) again() (time.Time, error) {
	if err := s.proxy.Stop(); err != nil {
		return time.Time{}, err
	}
	start := time.Now()
	return start, s.start()
}

func (s *session) metrics() (string, error) {
	return s.proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort))
}
