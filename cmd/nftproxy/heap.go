// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime"
	"runtime/debug"
)

// headroom is what may be allocated beyond twice of what is in use before the first garbage collection of a start. 10,000
// Services allocate some 130 MiB until they are served and leave 40 in use: growing from nothing, the heap would be collected
// six times meanwhile, for a fifth of all processor time.
const headroom = 64 << 20

// loosen makes collections rare until settle is called. It takes address space and no memory, since nobody writes to it.
// Where a limit of memory was configured (GOMEMLIMIT), it does nothing.
func loosen() (settle func()) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return func() {}
	}
	room := make([]byte, headroom)
	return func() {
		runtime.KeepAlive(room)
		room = nil
	}
}
