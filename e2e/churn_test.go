// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// connections is how many a churn test makes; NFTPROXY_CONNECTIONS sets another number.
func connections() int64 {
	if n, err := strconv.ParseInt(os.Getenv("NFTPROXY_CONNECTIONS"), 10, 64); err == nil {
		return n
	}
	return 100_000
}

// While endpoints come and go, and one good one stays, no connection fails, and none reaches an endpoint that
// is gone.
func TestEndpointChurn(t *testing.T) {
	onEachSource(t, lab.Options{}, func(t *testing.T, c *cluster) {
		pods := c.pods()
		c.serve(8080, pods, lab.TCP)
		svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
		c.apply(svc, lab.NewSlices(svc, endpoints(pods[:3]...)...))
		c.start()

		// gone[i] is when pod i left the kernel, in nanoseconds; 0 while it serves or may serve.
		var gone [6]atomic.Int64
		index := map[string]int{}
		for i, p := range pods {
			index[p.Name] = i
		}
		var late, failed atomic.Int64
		var total, changes atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // a guard against hanging
		defer cancel()
		each := func(r lab.Result) {
			if r.Verdict != lab.Answered {
				failed.Add(1)
				t.Errorf("connection %d: %s", total.Load(), r)
			} else if at := gone[index[r.Backend]].Load(); at != 0 && r.Began.UnixNano() > at {
				// The connection began after the commit, so not one of its packets was on its way then.
				late.Add(1)
				t.Errorf("reached %s %s after it was gone", r.Backend, r.Began.Sub(time.Unix(0, at)))
			}
			if total.Add(1) >= connections() && changes.Load() >= 10 || failed.Load()+late.Load() > 5 {
				cancel()
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			from := []*lab.Host{pods[0].Host, c.Node(1).Host, c.Client(1).Host}
			ends := make(chan struct{})
			for i, h := range from {
				to := at(lab.ClusterIP(lab.Families()[i%2], 10), 80)
				if i == 2 {
					to = at(lab.NodeIP(lab.IPv6, 1), 30080)
				}
				go func() {
					lab.Probe{From: h, Proto: lab.TCP, To: to}.Storm(ctx, 1, each)
					ends <- struct{}{}
				}()
			}
			for range from {
				<-ends
			}
		}()
		// 3, 2, 4, 1, ... endpoints; pod 0 always serves.
		sets := [][]int{{0, 1, 2}, {0, 1}, {0, 3, 4, 5}, {0}, {0, 2, 5}, {0, 1, 2, 3, 4, 5}, {0, 4}}
		for ; ctx.Err() == nil; changes.Add(1) {
			want := sets[int(changes.Load())%len(sets)]
			var chosen []*lab.Pod
			serving := map[int]bool{}
			for _, i := range want {
				chosen = append(chosen, pods[i])
				serving[i] = true
				gone[i].Store(0)
			}
			c.apply(lab.NewSlices(svc, endpoints(chosen...)...))
			for _, f := range nft.Families() {
				c.waitSlots(ctx, f, len(want))
			}
			now := time.Now().UnixNano()
			for i := range pods {
				if !serving[i] && gone[i].Load() == 0 {
					gone[i].Store(now)
				}
			}
		}
		<-done
		t.Logf("%d connections, %d changes, %d failed, %d late", total.Load(), changes.Load(), failed.Load(), late.Load())
		if total.Load() < connections() && failed.Load()+late.Load() == 0 {
			t.Errorf("stuck after %d of %d connections and %d changes", total.Load(), connections(), changes.Load())
		}
	})
}

// waitSlots waits until the Service at node 1 has n endpoints in the kernel.
func (c *cluster) waitSlots(ctx context.Context, f nft.Family, n int) {
	deadline := time.Now().Add(lab.HangLimit)
	for ctx.Err() == nil {
		have := 0
		for _, e := range c.snapshot(c.Node(1), f).Elements {
			if e.Set == nft.NodePortEndpoints {
				have++
			}
		}
		if have == n {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("%s: %d endpoints in the kernel, want %d", f, have, n)
			return
		}
		time.Sleep(time.Millisecond) // between polls
	}
}
