// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// Whatever happens to the rules, what is reported only grows.
func TestDropCountersOnlyGrow(t *testing.T) {
	refused := nft.DropReason{Refused: true, Name: "no-endpoints"}
	drops := dropCounters{last: map[ruleKey]nft.DropCounter{}, sum: map[ruleKey]uint64{}}
	for i, c := range []struct {
		a, b nft.DropCounter // two rules of one reason
		want uint64
	}{
		{nft.DropCounter{Handle: 7, Packets: 5}, nft.DropCounter{Handle: 8, Packets: 2}, 7}, // counted before we came
		{nft.DropCounter{Handle: 7, Packets: 6}, nft.DropCounter{Handle: 8, Packets: 2}, 8},
		{nft.DropCounter{Handle: 7, Packets: 1}, nft.DropCounter{Handle: 8, Packets: 2}, 9},    // the table was made anew
		{nft.DropCounter{Handle: 40, Packets: 10}, nft.DropCounter{Handle: 8, Packets: 2}, 19}, // one rule was, and counted more since
		{nft.DropCounter{Handle: 40, Packets: 10}, nft.DropCounter{Handle: 8, Packets: 3}, 20},
	} {
		c.a.DropReason, c.b.DropReason, c.a.Rule, c.b.Rule = refused, refused, "a", "b"
		drops.add(nft.IPv4, []nft.DropCounter{c.a, c.b})
		drops.add(nft.IPv6, nil) // no table
		if got := drops.total(nft.IPv4, refused); got != c.want {
			t.Errorf("step %d: %d, want %d", i, got, c.want)
		}
	}
	if n := drops.total(nft.IPv6, refused); n != 0 {
		t.Errorf("%d in the other family", n)
	}
}
