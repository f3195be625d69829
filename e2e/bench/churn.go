// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// churns changes endpoints all over the cluster, and swaps one and waits for it over and over.
func (s *session) churns(ctx context.Context) error {
	for _, rate := range s.rates {
		if err := s.churnAt(ctx, rate); err != nil {
			return fmt.Errorf("%d changes/s: %w", rate, err)
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
	wg.Go(func() {
		changes, failed = s.churn(during, rate)
		cancel()
	})
	for during.Err() == nil {
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
// all, and reports what it wrote; kube-proxy cannot, and writes everything.
func (s *session) restart(ctx context.Context) error {
	if err := s.again(ctx, "restart", 0); err != nil || s.kind != lab.NFTProxy {
		return err
	}
	if err := s.proxy.Stop(); err != nil {
		return err
	}
	start := time.Now()
	if err := s.start(); err != nil {
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

// restartChanged is restart with an endpoint of one Service in a hundred replaced while the proxy is down.
func (s *session) restartChanged(ctx context.Context) error {
	const one = 100
	if err := s.again(ctx, "restart_changed", max(1, s.services/one)); err != nil || s.kind != lab.NFTProxy {
		return err
	}
	text, err := s.metrics()
	s.add("restart_changed_elements", sum(text, "nftproxy_transaction_elements_sum"))
	return err
}

// again stops the proxy, changes some Services, starts it, and measures from there to the first change in effect that is made after
// the start.
func (s *session) again(ctx context.Context, name string, changed int) error {
	if err := s.proxy.Stop(); err != nil {
		return err
	}
	for k := range changed {
		// Spread over the cluster; the hot ones stay as they are.
		if _, err := s.swap(ctx, hot+k*(s.services-hot)/changed); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := s.start(); err != nil {
		return err
	}
	backend, err := s.swap(ctx, watched)
	if err != nil {
		return err
	}
	if err := s.reaches(backend, start); err != nil {
		return err
	}
	s.took(name, time.Since(start))
	calm(s.proxy.PID())
	return nil
}
