// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// Whatever happens to the rules, what is reported only grows.
func TestTalliesOnlyGrow(t *testing.T) {
	refused := nft.Reason{Refused: true, Name: "no-endpoints"}
	tally := tallies{last: map[judgeKey]nft.Judged{}, sum: map[judgeKey]uint64{}}
	for i, c := range []struct {
		a, b nft.Judged // two rules of one reason
		want uint64
	}{
		{nft.Judged{Handle: 7, Packets: 5}, nft.Judged{Handle: 8, Packets: 2}, 7}, // counted before we came
		{nft.Judged{Handle: 7, Packets: 6}, nft.Judged{Handle: 8, Packets: 2}, 8},
		{nft.Judged{Handle: 7, Packets: 1}, nft.Judged{Handle: 8, Packets: 2}, 9},    // the table was made anew
		{nft.Judged{Handle: 40, Packets: 10}, nft.Judged{Handle: 8, Packets: 2}, 19}, // one rule was, and counted more since
		{nft.Judged{Handle: 40, Packets: 10}, nft.Judged{Handle: 8, Packets: 3}, 20},
	} {
		c.a.Reason, c.b.Reason, c.a.Rule, c.b.Rule = refused, refused, "a", "b"
		tally.add(nft.IPv4, []nft.Judged{c.a, c.b})
		tally.add(nft.IPv6, nil) // no table
		if got := tally.total(nft.IPv4, refused); got != c.want {
			t.Errorf("step %d: %d, want %d", i, got, c.want)
		}
	}
	if n := tally.total(nft.IPv6, refused); n != 0 {
		t.Errorf("%d in the other family", n)
	}
}
