// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func TestBuildTime(t *testing.T) {
	for range 3 {
		start := time.Now()
		lab.Start(t, lab.Options{})
		t.Log(time.Since(start))
	}
}

func TestBackends(t *testing.T) {
	n := lab.Start(t, lab.Options{})
	pod := n.Pod(2, 1)
	lab.Must(pod.Serve("web", 8080, lab.TCP, lab.UDP, lab.SCTP))(t)
	for _, from := range []*lab.Host{n.Pod(1, 1).Host, n.Pod(2, 2).Host, n.Node(1).Host, n.Node(2).Host, n.Client(1).Host} {
		for _, f := range lab.Families() {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} {
				r := from.Ask(proto, pod.At(f, 8080))
				t.Log(from, f, proto, r, r.Took)
				want := from.IP(f)
				if from == n.Node(2).Host {
					want = r.Source.Addr()
				}
				if !r.SawAs("web", want) {
					t.Errorf("%s %s %s: %s", from, f, proto, r)
				}
			}
		}
	}
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} {
			r := n.Pod(1, 1).Ask(proto, pod.At(f, 81))
			t.Log("unused port", proto, r, r.Took)
			r = n.Pod(1, 1).Ask(proto, n.Pod(2, 3).At(f, 81))
			t.Log("unused host", proto, r, r.Took)
		}
	}
	p := lab.Probe{From: n.Pod(1, 1).Host, Proto: lab.TCP, To: pod.At(lab.IPv4, 8080)}
	t.Log(p.Repeat(20000, 8))
	p.Proto = lab.UDP
	t.Log(p.Repeat(20000, 8))
}
