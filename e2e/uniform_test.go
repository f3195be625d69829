// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// unlikely is how improbable a result must be, in standard deviations, to count as not uniform: 6, which chance
// exceeds once in a billion tests.
const unlikely = 6

// chiSquared returns Pearson's statistic of counts against equal shares over n cells, and the value that it exceeds
// only if the shares are not equal (Wilson and Hilferty's approximation).
func chiSquared(counts map[string]int, n int) (got, limit float64) {
	total := 0
	for _, c := range counts {
		total += c
	}
	want := float64(total) / float64(n)
	for _, c := range counts {
		got += (float64(c) - want) * (float64(c) - want) / want
	}
	got += float64(n-len(counts)) * want // cells that were never hit
	df := float64(n - 1)
	return got, df * math.Pow(1-2/(9*df)+unlikely*math.Sqrt(2/(9*df)), 3)
}

// The statistic notices one endpoint that gets a tenth more than its share, which is what the test below relies on.
func TestChiSquaredNoticesBias(t *testing.T) {
	for _, n := range []int{2, 10, 100} {
		fair, biased := map[string]int{}, map[string]int{}
		for i := range n {
			fair[fmt.Sprint(i)], biased[fmt.Sprint(i)] = 40000/n*10, 40000/n*10
		}
		biased["0"] += 40000 / n
		if got, limit := chiSquared(fair, n); got > limit {
			t.Errorf("%d equal cells: %f > %f", n, got, limit)
		}
		if got, limit := chiSquared(biased, n); got <= limit && n <= 10 {
			t.Errorf("%d cells, one a tenth too large: %f <= %f", n, got, limit)
		}
	}
}

// Every endpoint gets an equal share of connections, for any number of them.
func TestChoiceIsUniform(t *testing.T) {
	c := fromManifests(t, lab.Options{Nodes: 1, PodsPerNode: 2})
	pod := c.Node(1).Pods[0]
	block := netip.MustParsePrefix("10.250.0.0/16")
	if err := pod.AnyIP(block); err != nil {
		t.Fatal(err)
	}
	if err := c.Node(1).Route(block, pod.IP(lab.IPv4), lab.PodBridge); err != nil {
		t.Fatal(err)
	}
	lab.Must(pod.Listen("", lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), 8080)))(t)
	sizes := []int{1, 2, 3, 7, 100, 1000, 1100} // the last one shares its chain, see nft.Modulus
	for i, n := range sizes {
		svc := lab.NewService(fmt.Sprintf("svc-%d", n), 10+i, lab.Port(lab.TCP, 80, 8080))
		slice := lab.NewSlices(svc)[0]
		for e := range n {
			a := netip.AddrFrom4([4]byte{10, 250, byte(e >> 8), byte(e)})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
		}
		c.apply(svc, slice)
	}
	c.start()
	for i, n := range sizes {
		tally := lab.Probe{From: c.Node(1).Pods[1].Host, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv4, 10+i), 80)}.Repeat(max(2000, 20*n), 4)
		if !tally.AllAnswered() {
			t.Fatalf("%d endpoints: %s", n, tally)
		}
		if n == 1 {
			continue
		}
		if got, limit := chiSquared(tally.Backends, n); got > limit {
			t.Errorf("%d endpoints: chi squared %.1f, at most %.1f: %v", n, got, limit, tally.Backends)
		} else {
			t.Logf("%d endpoints, %d connections: chi squared %.1f of at most %.1f", n, tally.Total, got, limit)
		}
	}
}
