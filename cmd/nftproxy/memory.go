// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory sets the soft limit of Go's heap, above which it is collected more often, unless GOMEMLIMIT did: so garbage does
// not reach the limit of the cgroup, or the memory of the node's pods.
func limitMemory(readFile func(string) ([]byte, error)) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(readFile))
	}
}

// memoryLimit is 90% of the lowest limit of the process's cgroup (version 2, or memory in version 1) and those above it, since
// stacks, the binary and the kernel's buffers count there too; where there is none, a quarter of the machine's memory.
func memoryLimit(readFile func(string) ([]byte, error)) int64 {
	limit := int64(math.MaxInt64)
	lower := func(file string, factor float64) {
		text, _ := readFile(file)
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < math.MaxInt64>>1 {
			limit = min(limit, int64(factor*float64(n)))
		}
	}
	groups, _ := readFile("/proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(fields) < 3 {
			continue
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			switch fields[1] {
			case "":
				lower(path.Join("/sys/fs/cgroup", at, "memory.max"), 0.9)
			case "memory":
				lower(path.Join("/sys/fs/cgroup/memory", at, "memory.limit_in_bytes"), 0.9)
			}
			if at == "/" {
				break
			}
		}
	}
	info, _ := readFile("/proc/meminfo")
	if _, rest, found := strings.Cut(string(info), "MemTotal:"); found && limit == math.MaxInt64 {
		if kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
			limit = kib << 10 / 4
		}
	}
	return limit
}

// headroom is what may be allocated beyond twice of what is in use before the first garbage collection of a start. 10,000
// Services allocate some 130 MiB until they are served and leave 40 in use: growing from nothing, the heap would be collected
// six times meanwhile, for a fifth of all processor time.
const headroom = 64 << 20

// reserveHeap makes collections rare until release is called. It takes address space and no memory, since nothing is written
// to it. With a limit that is not far above headroom it does nothing.
func reserveHeap() (release func()) {
	if debug.SetMemoryLimit(-1) < 8*headroom {
		return func() {}
	}
	room := make([]byte, headroom)
	return func() {
		runtime.KeepAlive(room)
		room = nil
	}
}
