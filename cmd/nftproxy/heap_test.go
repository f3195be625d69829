// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"testing"
)

func TestLoosen(t *testing.T) {
	due := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NextGC
	}
	before := due()
	settle := loosen()
	if during := due(); during < before+headroom {
		t.Errorf("the next collection is due at %d bytes, want %d more than %d", during, headroom, before)
	}
	settle()
	settle() // as after a second first sync, which there is not
	if after := due(); after > before+headroom/2 {
		t.Errorf("afterwards the next collection is due at %d bytes, before at %d", after, before)
	}
}
