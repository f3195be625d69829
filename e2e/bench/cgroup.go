// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroup is a memory cgroup of version 1 around a proxy and its children. What nf_tables allocates for a table stays charged to the
// group when the process has ended. The zero value is where there are none, as with version 2.
type cgroup struct{ dir string }

// newCgroup makes one for a process that has just started.
func newCgroup(pid int) (cgroup, error) {
	const root = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(root + "/memory.kmem.usage_in_bytes"); err != nil {
		return cgroup{}, nil
	}
	c := cgroup{filepath.Join(root, fmt.Sprintf("nftproxy-bench-%d", pid))}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return cgroup{}, nil // not allowed to
	}
	if err := c.join(pid); err != nil {
		c.remove()
		return cgroup{}, err
	}
	return c, nil
}

// join puts a process in, with all its threads.
func (c cgroup) join(pid int) error {
	if c.dir == "" {
		return nil
	}
	if err := os.WriteFile(c.dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("memory cgroup: %w", err)
	}
	return nil
}

// kernel is the kernel's memory charged to the group, in MiB.
func (c cgroup) kernel() float64 {
	text, _ := os.ReadFile(c.dir + "/memory.kmem.usage_in_bytes")
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return n / (1 << 20)
}

// remove removes the group, once its processes have ended.
func (c cgroup) remove() {
	for range 50 {
		if c.dir == "" || os.Remove(c.dir) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
