// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"runtime"
	"testing"
)

func TestReserveHeap(t *testing.T) {
	due := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NextGC
	}
	before := due()
	release := reserveHeap()
	if during := due(); during < before+headroom {
		t.Errorf("the next collection is due at %d bytes, want %d more than %d", during, headroom, before)
	}
	release()
	release() // twice does no harm
	if after := due(); after > before+headroom/2 {
		t.Errorf("afterwards the next collection is due at %d bytes, before at %d", after, before)
	}
}

func TestMemoryLimit(t *testing.T) {
	const meminfo, slice = "MemTotal:       16777216 kB\nMemFree: 1 kB\n", "0::/kubepods.slice/pod1/c1\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":         {map[string]string{}, math.MaxInt64},
		"machine":      {map[string]string{"/proc/meminfo": meminfo}, 4 << 30},
		"unlimited":    {map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, 4 << 30},
		"container":    {map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1000000000\n"}, 900000000},
		"of a parent":  {map[string]string{"/proc/self/cgroup": slice, "/sys/fs/cgroup/kubepods.slice/pod1/memory.max": "1000000000\n", "/sys/fs/cgroup/kubepods.slice/memory.max": "2000000000\n"}, 900000000},
		"version 1":    {map[string]string{"/proc/self/cgroup": "5:cpu:/x\n4:memory:/y\n", "/sys/fs/cgroup/memory/y/memory.limit_in_bytes": "500000000\n"}, 450000000},
		"v1 unlimited": {map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": "4:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4 << 30},
	} {
		got := memoryLimit(func(name string) ([]byte, error) {
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		})
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
