// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// tick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every architecture that Linux and Go have in common.
const tick = 10 * time.Millisecond

// stat is /proc/PID/stat from the field after the command's name, which may hold spaces: state is 0, ppid 1, cutime 13.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// children are the living children of a process.
func children(pid int) []int {
	var all []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if f := stat(child); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			all = append(all, child)
		}
	}
	return all
}

// cpu is what a process, its threads and its children used, those that ended included. The process's own is by schedstat, in
// nanoseconds: ticks of 10 ms are too coarse for a change that takes less than one.
func cpu(pid int) time.Duration {
	f := stat(pid)
	if len(f) < 15 {
		return 0
	}
	var sum time.Duration
	for _, field := range f[13:15] { // children that ended: user, system
		n, _ := strconv.Atoi(field)
		sum += time.Duration(n) * tick
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		if f := strings.Fields(string(text)); len(f) > 0 {
			n, _ := strconv.ParseInt(f[0], 10, 64)
			sum += time.Duration(n)
		}
	}
	for _, child := range children(pid) {
		sum += cpu(child)
	}
	return sum
}

// resident is what a process and its children have in memory, in MiB.
func resident(pid int) float64 {
	var sum float64
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			sum += kib / 1024
		}
	}
	for _, child := range children(pid) {
		sum += resident(child)
	}
	return sum
}

// peak watches resident until stop is called, which returns the most that was seen. A child that lives for less than the
// interval may be missed.
func peak(pid int) (stop func() float64) {
	const interval = 100 * time.Millisecond // a look takes 1 ms
	ctx, cancel := context.WithCancel(context.Background())
	var most atomic.Int64 // in hundredths of a MiB
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			most.Store(max(most.Load(), int64(100*resident(pid))))
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	}()
	return func() float64 { cancel(); <-done; return float64(most.Load()) / 100 }
}

// calm waits until the process has done nothing to speak of for longer than kube-proxy's minSyncPeriod of 1 s: a change is then
// taken up at once by either proxy, and all the work of the last one is done.
func calm(pid int) {
	const (
		window = 1200 * time.Millisecond
		little = 30 * time.Millisecond
	)
	// Forever would be a proxy that never rests; it is then measured as it is.
	for end := time.Now().Add(patience); time.Now().Before(end); {
		before := cpu(pid)
		time.Sleep(window)
		if cpu(pid)-before < little {
			return
		}
	}
}
