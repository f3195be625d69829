// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// kernelMemory is the kernel's memory in bytes: what is charged to a memory cgroup of the test's own, or without one, what of
// /proc/meminfo tables count in, which others change too: slabs that cannot be reclaimed, in which large blocks of kmalloc count as
// well, vmalloc, and counters per CPU.
func kernelMemory(b *testing.B, group string) (sum float64) {
	if group != "" {
		text, err := os.ReadFile(group + "/memory.kmem.usage_in_bytes")
		if err != nil {
			b.Fatal(err)
		}
		sum, _ = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return sum
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch f := strings.Fields(line); f[0] {
		case "SUnreclaim:", "VmallocUsed:", "Percpu:":
			kib, _ := strconv.ParseFloat(f[1], 64)
			sum += kib * 1024
		}
	}
	return sum
}

// charged moves the process into a memory cgroup of version 1 for the length of a benchmark, where there are any.
func charged(b *testing.B) (group string) {
	const root = "/sys/fs/cgroup/memory"
	own, err := os.ReadFile("/proc/self/cgroup")
	group = fmt.Sprintf("%s/nftproxy-test-%d", root, os.Getpid())
	if err != nil || os.Mkdir(group, 0o755) != nil {
		return ""
	}
	home := root
	for line := range strings.Lines(string(own)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), ":memory:"); ok {
			home += path
		}
	}
	self := []byte(strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(group+"/cgroup.procs", self, 0o644); err != nil {
		os.Remove(group)
		return ""
	}
	b.Cleanup(func() {
		if err := os.WriteFile(home+"/cgroup.procs", self, 0o644); err != nil {
			b.Error(err)
		}
		os.Remove(group)
	})
	return group
}

// settled is the least of the kernel's memory in a second: tables are freed after a grace period, by a worker.
func settled(b *testing.B, group string) float64 {
	least := kernelMemory(b, group)
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		least = min(least, kernelMemory(b, group))
	}
	return least
}

// Kernel memory of Services x endpoints, as the difference that deleting the table makes (-benchtime 1x -count 3). To what is
// charged to a cgroup come the arrays of the hash tables, which are not: 8 bytes for each of 2^k buckets, of which 3/8 to 3/4 are
// taken (lib/rhashtable.c grows at 75%); they are reported apart.
func BenchmarkKernelMemory(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{
		{1000, 3}, {10000, 1}, {10000, 3}, {10000, 10}, {30000, 3}, {100000, 1}, {100000, 3}, {5000, 50}, {1, 100000},
	} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			services := cluster(size.services, size.endpoints)
			k, group := newNamespace(b).open(b), charged(b)
			var sum float64
			for b.Loop() {
				program(b, k, IPv4, Config{}, services, nil)
				full := settled(b, group)
				batch := &Batch{}
				batch.DeleteTable(IPv4, TableName)
				if err := k.Commit(batch); err != nil {
					b.Fatal(err)
				}
				sum += full - settled(b, group)
			}
			slots := 2*buckets(size.services) + buckets(size.services*size.endpoints) // services and cluster-ips; endpoints
			b.ReportMetric(sum/float64(b.N)/(1<<20), "MiB")
			b.ReportMetric(8*float64(slots)/(1<<20), "buckets-MiB")
		})
	}
}

// buckets is how many a hash table has for n elements: it doubles when three quarters are taken.
func buckets(n int) int {
	size := 64 // HASH_DEFAULT_SIZE
	for n > size*3/4 {
		size *= 2
	}
	return size
}

// One endpoint of a single large Service replaced: what is sent, and how long Diff and the kernel take.
func BenchmarkReplaceOfMany(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newNamespace(b).open(b)
			services := cluster(1, n)
			program(b, k, IPv4, Config{}, services, nil)
			prev, elements, bytes, took := services[0], 0, 0, time.Duration(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				want := replaced(prev, i*7919%n, i).Cluster
				next := *prev
				next.Cluster = AssignSlots(prev.Cluster, want)
				batch := &Batch{}
				batch.Change(IPv4, Diff(prev, &next))
				err := k.CommitAll([]*Batch{batch}, func(c kernel.Committed) {
					elements, bytes, took = elements+c.Elements, bytes+c.Bytes, took+c.Took
				})
				if err != nil {
					b.Fatal(err)
				}
				prev = &next
			}
			per := float64(b.N)
			b.ReportMetric(float64(elements)/per, "elements/op")
			b.ReportMetric(float64(bytes)/per, "netlink-B/op")
			b.ReportMetric(float64(took.Nanoseconds())/per, "kernel-ns/op")
		})
	}
}

// Adding the n-th Service of session affinity: the one thing that adds chains, so that the kernel looks at what is there.
func BenchmarkAddSticky(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newNamespace(b).open(b)
			c := read(b, k, IPv4)
			table := NewTable(c)
			all := crowd(n+1, 96, time.Hour)
			for _, s := range all {
				table.Number(s)
			}
			commit := func(batches []*Batch) {
				for _, x := range batches {
					if err := k.Commit(x); err != nil {
						b.Fatal(err)
					}
				}
			}
			commit(table.Reconcile(c, Config{}, all[:n], nil))
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				c := read(b, k, IPv4)
				one := NewTable(c).Reconcile(c, Config{}, all, nil)
				b.StartTimer()
				commit(one)
				b.StopTimer()
				c = read(b, k, IPv4)
				commit(NewTable(c).Reconcile(c, Config{}, all[:n], nil))
				b.StartTimer()
			}
		})
	}
}
