// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"sync/atomic"
	"testing"
)

// A table that somebody keeps changing is shown all the same, each element once.
func TestGlimpseOfATableInMotion(t *testing.T) {
	ns := newNamespace(t)
	k, other := ns.open(t), ns.open(t)
	program(t, k, IPv4, Config{MasqueradeBit: 14}, sample(IPv4), sampleNode(IPv4))
	if s, steady, err := k.Glimpse(IPv4); err != nil || !steady || len(s.Differences(s.Config())) > 0 {
		t.Fatalf("at rest: steady %v, %v", steady, err)
	}
	var stop atomic.Bool
	done := make(chan error)
	e := AddrElements(NodePortAddresses, IPv4, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	go func() {
		var err error
		for err == nil && !stop.Load() {
			for _, c := range []Change{{Add: e}, {Delete: e}} {
				b := &Batch{}
				b.Change(IPv4, c)
				if err == nil {
					err = other.Commit(b)
				}
			}
		}
		done <- err
	}()
	unsteady := 0
	for range 20 {
		s, steady, err := k.Glimpse(IPv4)
		if err != nil {
			t.Error(err)
			break
		}
		if !steady {
			unsteady++
		}
		if n := len(distinct(append([]Element(nil), s.Elements...))); n != len(s.Elements) || len(s.Chains) != len(s.Rules) && len(s.Rules) == 0 {
			t.Errorf("%d elements, %d of them distinct, %d chains", len(s.Elements), n, len(s.Chains))
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of 20 were unsteady", unsteady)
	if _, steady, err := k.Glimpse(IPv4); err != nil || !steady {
		t.Errorf("at rest again: steady %v, %v", steady, err)
	}
}
