// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// counters read what the kernel counts, each reader with a socket of its own, so that no commit waits for it. Safe for
// concurrent use.
type counters struct {
	netNS    int
	families []nft.Family
	metrics  *metrics.Metrics
	drops    dropCounters
	reading  sync.Mutex // held while counters of connections are read
}

// dropCounters add up what the rules that refuse and drop have counted, over rules that were written anew: after another program
// flushed them, they count from 0. What such a rule counted since it was last read is not known.
type dropCounters struct {
	mu   sync.Mutex
	last map[ruleKey]nft.DropCounter // as last read
	sum  map[ruleKey]uint64          // of rules that are gone
}

type ruleKey struct {
	family nft.Family
	rule   string
}

func newCounters(netNS int, families []nft.Family, m *metrics.Metrics) *counters {
	return &counters{netNS: netNS, families: families, metrics: m,
		drops: dropCounters{last: map[ruleKey]nft.DropCounter{}, sum: map[ruleKey]uint64{}}}
}

// add takes what was read of one family.
func (d *dropCounters) add(f nft.Family, read []nft.DropCounter) {
	for _, r := range read {
		key := ruleKey{f, r.Rule}
		if was := d.last[key]; was.Handle != r.Handle || r.Packets < was.Packets {
			d.sum[key] += was.Packets
		}
		d.last[key] = r
	}
}

// total adds up a reason's rules of one family.
func (d *dropCounters) total(f nft.Family, reason nft.DropReason) (n uint64) {
	for key, r := range d.last {
		if key.family == f && r.DropReason == reason {
			n += r.Packets + d.sum[key]
		}
	}
	return n
}

// DropCounters returns how many packets were refused and dropped, by family and reason, since the tables were made, or since
// this process started where they were made anew since. It reads the kernel, at a cost that does not depend on the number of
// Services, and may be called from any goroutine. Where the kernel cannot be read it returns what it last read.
func (c *counters) DropCounters() []metrics.DropCounter {
	c.drops.mu.Lock()
	defer c.drops.mu.Unlock()
	if err := c.readDrops(); err != nil {
		klog.V(2).InfoS("Refused and dropped packets could not be read", "err", err)
	}
	var out []metrics.DropCounter
	for _, f := range c.families {
		for _, r := range nft.DropReasons() {
			out = append(out, metrics.DropCounter{Family: ipFamily(f), Refused: r.Refused, Reason: r.Name, Packets: c.drops.total(f, r)})
		}
	}
	return out
}

func (c *counters) readDrops() error {
	conn, err := kernel.Open(c.netNS)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range c.families {
		read, err := conn.DropCounters(f)
		if err != nil {
			return err
		}
		c.drops.add(f, read)
	}
	return nil
}

// Connections passes the counters of new connections to fn, one address after the other. It reads the kernel, one element
// for each address, and may be called from any goroutine; of several callers one reads at a time. While the kernel cannot be
// read there are none. A counter starts at 0 when its address becomes the Service's, and when the tables were made anew.
func (c *counters) Connections(fn func(metrics.Connected)) {
	c.reading.Lock()
	defer c.reading.Unlock()
	conn, err := kernel.Open(c.netNS)
	if err != nil {
		klog.V(2).InfoS("Connections to Services could not be read", "err", err)
		return
	}
	defer conn.Close()
	for _, f := range c.families {
		read, err := conn.ConnectionCounters(f)
		if err != nil {
			klog.V(2).InfoS("Connections to Services could not be read", "family", f, "err", err)
			continue
		}
		for i := range read {
			fn(connected(f, &read[i]))
		}
	}
}

// connected splits a name: "namespace/name:port", or without ":port".
func connected(f nft.Family, c *kernel.ConnectionCounter) metrics.Connected {
	out := metrics.Connected{Family: ipFamily(f), Protocol: strings.ToUpper(c.Proto.String()), Packets: c.Packets,
		Address: ":" + strconv.Itoa(int(c.Port))}
	if c.Addr.IsValid() {
		out.Address = netip.AddrPortFrom(c.Addr, c.Port).String()
	}
	name := ""
	out.Namespace, name, _ = strings.Cut(c.Name, "/")
	out.Service, out.Port, _ = strings.Cut(name, ":")
	return out
}

// sampleEvery is how often the maps of sticky clients are counted: the kernel has their size only as a list.
const sampleEvery = 30 * time.Second

// sampleAffinity counts the clients of sticky Services until ctx ends.
func (c *counters) sampleAffinity(ctx context.Context) {
	for sleep(ctx, sampleEvery) {
		conn, err := kernel.Open(c.netNS)
		if err != nil {
			klog.FromContext(ctx).V(4).Info("Sticky clients could not be counted", "err", err)
			continue
		}
		for _, f := range c.families {
			c.countAffinity(ctx, conn, f)
		}
		_ = conn.Close()
	}
}

// countAffinity counts the clients of one family.
func (c *counters) countAffinity(ctx context.Context, conn *kernel.Conn, f nft.Family) {
	counts, complete, err := conn.AffinityCounts(f)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Sticky clients could not be counted", "family", f, "err", err)
		return
	}
	if !complete { // the metrics are of a part, another one each time
		klog.FromContext(ctx).V(4).Info("Sticky clients are counted in part", "family", f, "views", len(counts))
	}
	total, fullest := 0, 0.0
	m := c.metrics.Family(ipFamily(f))
	for _, a := range counts {
		if a.Size == 0 {
			continue
		}
		total += a.Clients
		fullest = max(fullest, float64(a.Clients)/float64(a.Size))
		if a.Clients >= a.Size {
			m.AffinityFull()
		}
	}
	m.Affinity(total, fullest)
}
