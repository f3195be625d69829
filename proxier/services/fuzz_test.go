// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/rand/v2"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// FuzzBuild holds the invariants on whatever Service a fuzzer can find, and that the dataplane takes what Build makes.
func FuzzBuild(f *testing.F) {
	for _, seed := range []string{"", "a", "ClusterIP", "\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := randomInput(rand.New(&tape{data: data}))
		out := Build(in)
		checkInvariants(t, in, out)
		for i := range out.Ports {
			nft.Elements(&out.Ports[i].Service)
		}
	})
}

// tape is a source of numbers that a fuzzer writes, so that it finds its way by single decisions. At its end it goes on
// with a counter: rand rejects some numbers and must not wait for others for ever.
type tape struct {
	data []byte
	next uint64
}

func (t *tape) Uint64() uint64 {
	if len(t.data) == 0 {
		t.next++
		return t.next * 0x9e3779b97f4a7c15 // 2^64 by the golden ratio: spreads what is near
	}
	b := uint64(t.data[0])
	t.data = t.data[1:]
	return b * 0x0101010101010101 // IntN looks at the high bits
}
