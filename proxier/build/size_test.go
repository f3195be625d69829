// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"math/rand/v2"
	"testing"
)

// What is asked before a Service is built is never less than what it becomes, and not much more.
func TestSizeIsKnownBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		in := randomInput(r)
		_, most := Frontends(in.Service)
		out, n := Build(in), 0
		for i := range out.Ports {
			if !out.Ports[i].HandedOff {
				n += len(out.Ports[i].Frontends)
			}
		}
		if n > most || len(Claims(in.Service)) > most {
			t.Fatalf("%d frontends, %d claims, at most %d expected: %+v", n, len(Claims(in.Service)), most, in.Service)
		}
		if size := out.Size(); size < len(out.Ports) {
			t.Fatalf("size %d of %d ports", size, len(out.Ports))
		}
	}
}
