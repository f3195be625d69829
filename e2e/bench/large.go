// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// mostForPeer is the largest single Service that kube-proxy is measured with: it writes a chain per endpoint.
const mostForPeer = 10_000

// single measures one Service with very many endpoints, of which one changes at a time. No connection would find the new one
// before tens of thousands of tries, so that the kernel's count of transactions shows when the change is made.
func single(ctx context.Context, o options, row *row) error {
	c, err := newCluster(ctx, row.size, o.dualStack)
	if err != nil {
		return err
	}
	defer c.cp.Close()
	for _, who := range o.peers {
		if who == iptables || who.kind == lab.KubeProxy && row.endpoints > mostForPeer {
			continue
		}
		if err := singleTurn(ctx, o, c, who, row.of(who.name)); err != nil {
			return fmt.Errorf("%s: %w", who.name, err)
		}
	}
	return nil
}

func singleTurn(ctx context.Context, o options, c *cluster, who peer, into samples) error {
	n, err := lab.New(lab.Options{Nodes: 1, PodsPerNode: 2})
	if err != nil {
		return err
	}
	defer n.Close()
	s := &session{
		cluster: c, options: o, samples: into, peer: who,
		client: n.Pod(1, 2).Host, outside: n.Client(1).Host, pod: n.Pod(1, 1),
	}
	defer s.end()
	if s.api, err = n.Attach(c.cp); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	for _, p := range []phase{
		{name: "cold start", do: s.coldStart, pause: 5 * time.Millisecond}, {name: "rest", do: s.rest},
		{name: "changes", do: s.singleSwaps, pause: 5 * time.Millisecond}, {name: "tables", do: s.tables},
	} {
		if err := s.during(ctx, p); err != nil {
			return fmt.Errorf("%s: %w; the end of the log:\n%s", p.name, err, s.proxy.Tail(10))
		}
	}
	return nil
}

// singleSwaps is like swaps, but for how it knows that the change is made: the kernel counts transactions. It adds what the kernel
// got.
func (s *session) singleSwaps(ctx context.Context) error {
	first, err := s.commits()
	if err != nil {
		return err
	}
	kernel, err := kernel.Open(s.pod.Node.FD())
	if err != nil {
		return err
	}
	defer kernel.Close()
	start, before, received := time.Now(), cpu(s.proxy.PID()), s.api.Received()
	n, err := s.repeat(func() error { return s.singleSwap(ctx, kernel) })
	if err != nil {
		return err
	}
	calm(s.proxy.PID())
	used := max(0, cpu(s.proxy.PID())-before-s.idle(time.Since(start)))
	s.took("cpu_per_change", used/time.Duration(n))
	s.took("cpu_per_1000_changes", 1000*used/time.Duration(n))
	s.add("received_per_change", float64(s.api.Received()-received)/float64(n))
	last, err := s.commits()
	if s.kind == lab.NFTProxy {
		s.add("elements_per_change", (last.elements-first.elements)/float64(n))
		s.add("bytes_per_change", (last.bytes-first.bytes)/float64(n))
		s.add("kernel_per_change", (last.seconds-first.seconds)/float64(n))
	}
	return err
}

func (s *session) singleSwap(ctx context.Context, kernel *kernel.Conn) error {
	was, err := kernel.Generation()
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := s.swap(ctx, watched); err != nil {
		return err
	}
	s.took("change_write", time.Since(start))
	for now := was; now == was; time.Sleep(200 * time.Microsecond) {
		if now, err = kernel.Generation(); err != nil {
			return err
		}
		if time.Since(start) > patience {
			return fmt.Errorf("no transaction in %s", patience)
		}
	}
	s.took("change", time.Since(start))
	return nil
}

// commits is what nftproxy's metrics say of its transactions since its start.
type commits struct{ elements, bytes, seconds float64 }

func (s *session) commits() (commits, error) {
	text, err := s.metrics()
	return commits{
		elements: sum(text, "nftproxy_transaction_elements_sum"),
		bytes:    sum(text, "nftproxy_transaction_bytes_total"),
		seconds:  sum(text, "nftproxy_transaction_duration_seconds_sum"),
	}, err
}
