// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// kernelKeys are the lines of /proc/meminfo that nf_tables' objects count in: elements, rules and chains in slabs that cannot be
// reclaimed, with everything up to 4 MiB that kmalloc takes from whole pages; larger hash tables from vmalloc; counters per CPU.
var kernelKeys = []string{"SUnreclaim:", "VmallocUsed:", "Percpu:"}

// kernelMemory is their sum in MiB.
func kernelMemory(meminfo string) (sum float64) {
	for line := range strings.Lines(meminfo) {
		for _, key := range kernelKeys {
			if f := strings.Fields(line); len(f) > 1 && f[0] == key {
				kib, _ := strconv.ParseFloat(f[1], 64)
				sum += kib / 1024
			}
		}
	}
	return sum
}

func kernelMemoryNow() float64 {
	text, _ := os.ReadFile("/proc/meminfo")
	return kernelMemory(string(text))
}

// steadied waits until the kernel's memory has not moved by more than little for a second, and returns it. Tables are freed by a
// worker after the grace period, some time after the command has returned.
func steadied() float64 {
	const little, quiet, longest = 0.25, time.Second, 30 * time.Second
	last, since := kernelMemoryNow(), time.Now()
	for end := time.Now().Add(longest); time.Now().Before(end) && time.Since(since) < quiet; time.Sleep(50 * time.Millisecond) {
		if now := kernelMemoryNow(); now > last+little || now < last-little {
			last, since = now, time.Now()
		}
	}
	return kernelMemoryNow()
}

// tables is the kernel's memory of the tables: what becomes free when the proxy has ended, which leaves them, and they are
// flushed. That is seconds apart, while loading takes kube-proxy minutes, in which the rest of the machine allocates too.
//
// It is measured as what the proxy's memory cgroup gets back, without the noise of other processes; but the arrays of hash tables are
// charged to no cgroup (8 to 21 bytes per element). /proc/meminfo has those as well, and is right on a quiet machine only.
func (s *session) tables(context.Context) error {
	if err := s.proxy.Stop(); err != nil {
		return err
	}
	before, charged := steadied(), s.group.kernel()
	if _, err := lab.NFT(s.pod.Node.Host, "flush", "ruleset"); err != nil {
		return fmt.Errorf("flush the ruleset: %w", err)
	}
	machine := max(0, before-steadied())
	s.add("kernel_memory_meminfo", machine)
	if charged > 0 {
		s.add("kernel_memory", charged-s.group.kernel())
	} else {
		s.add("kernel_memory", machine)
	}
	return nil
}
