// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// tallies add up what the rules that refuse and drop have counted, over rules that were written anew: after somebody flushed
// them, they count from 0. What such a rule counted since it was last read is not known.
type tallies struct {
	mu   sync.Mutex
	last map[judgeKey]nft.DropCounter // as last read
	sum  map[judgeKey]uint64          // of rules that are gone
}

// judgeKey is a rule.
type judgeKey struct {
	family nft.Family
	rule   string
}

// add takes what was read of one family.
func (t *tallies) add(f nft.Family, read []nft.DropCounter) {
	for _, r := range read {
		key := judgeKey{f, r.Rule}
		if was := t.last[key]; was.Handle != r.Handle || r.Packets < was.Packets {
			t.sum[key] += was.Packets
		}
		t.last[key] = r
	}
}

// total adds up a reason's rules of one family.
func (t *tallies) total(f nft.Family, reason nft.DropReason) (n uint64) {
	for key, r := range t.last {
		if key.family == f && r.DropReason == reason {
			n += r.Packets + t.sum[key]
		}
	}
	return n
}

// Judged returns how many packets were refused and dropped, by family and reason, since the tables were made, or since
// this process started where they were made anew since. It reads the kernel, at a cost that does not depend on the number of
// Services, and may be called from any goroutine. Where the kernel cannot be read it returns what it last read.
func (p *Proxier) Judged() []metrics.DropCounter {
	p.tallies.mu.Lock()
	defer p.tallies.mu.Unlock()
	if err := p.readJudged(); err != nil {
		klog.V(2).InfoS("Refused and dropped packets could not be read", "err", err)
	}
	var out []metrics.DropCounter
	for _, f := range p.families {
		for _, r := range nft.DropReasons() {
			out = append(out, metrics.DropCounter{Family: ipFamily(f), Refused: r.Refused, Reason: r.Name, Packets: p.tallies.total(f, r)})
		}
	}
	return out
}

// readJudged reads the counters of all families, with a socket of its own, so that no commit waits for it.
func (p *Proxier) readJudged() error {
	conn, err := kernel.Open(p.opt.NetNS)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range p.families {
		read, err := conn.DropCounters(f)
		if err != nil {
			return err
		}
		p.tallies.add(f, read)
	}
	return nil
}
