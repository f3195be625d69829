// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets the kernel parameters that kube-proxy sets: conntrack
// limits and timeouts, and the OOM score of the process.
//
// In come the settings of KubeProxyConfiguration, out go the values that were
// changed. What to write is computed without any input or output; System reads
// and writes below a root that tests choose. The package never shrinks the
// conntrack hash table and writes no value that is set already.
package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Conntrack are the conntrack settings of KubeProxyConfiguration.
type Conntrack struct {
	// MaxPerCore entries per CPU; 0 leaves nf_conntrack_max alone, whatever Min.
	MaxPerCore int
	// Min is the least nf_conntrack_max.
	Min int
	// TCPEstablished and TCPCloseWait are written when greater than 0.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal writes nf_conntrack_tcp_be_liberal=1; false leaves it alone.
	TCPBeLiberal bool
	// UDP and UDPStream are written when greater than 0.
	UDP, UDPStream time.Duration
}

// The most that MaxPerCore times CPUs may come to; kube-proxy's guard against
// machines with very many CPUs. It wins over Min.
const maxConntrack = 1 << 20

// Files, relative to the root.
const (
	conntrackDir = "proc/sys/net/netfilter"
	hashSizeFile = "sys/module/nf_conntrack/parameters/hashsize"
	cpuDir       = "sys/devices/system/cpu"
)

// Setting is one parameter and its value.
type Setting struct {
	Name  string // file name below net/netfilter
	Value int
}

// Settings computes what to write for a number of CPUs, nf_conntrack_max first.
func (c Conntrack) Settings(cpus int) []Setting {
	var out []Setting
	if limit := c.limit(cpus); limit > 0 {
		out = append(out, Setting{"nf_conntrack_max", limit})
	}
	seconds := func(name string, d time.Duration) {
		if d > 0 {
			out = append(out, Setting{name, int(d / time.Second)})
		}
	}
	seconds("nf_conntrack_tcp_timeout_established", c.TCPEstablished)
	seconds("nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWait)
	if c.TCPBeLiberal {
		out = append(out, Setting{"nf_conntrack_tcp_be_liberal", 1})
	}
	seconds("nf_conntrack_udp_timeout", c.UDP)
	seconds("nf_conntrack_udp_timeout_stream", c.UDPStream)
	return out
}

// limit is the value of nf_conntrack_max, 0 to leave it alone.
func (c Conntrack) limit(cpus int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	scaled := c.MaxPerCore * cpus
	if scaled > maxConntrack {
		return maxConntrack
	}
	return max(scaled, c.Min)
}

// HashSize is the size that the hash table of conntrack needs for a limit: four
// entries per bucket, the ratio at which the kernel's own defaults stand.
func HashSize(limit int) int { return limit / 4 }

// System reads and writes parameters. Root is "/" outside tests.
type System struct{ Root string }

// Change is a parameter that Apply has written.
type Change struct {
	Path        string
	Before, Now int
}

// ApplyConntrack writes what differs and returns it, also when err is not nil:
// then it stopped at the first parameter that could not be written. The error
// wraps the errno and names the parameter; ENOENT means that the module
// nf_conntrack is not loaded.
func (s System) ApplyConntrack(c Conntrack, cpus int) (done []Change, err error) {
	for _, set := range c.Settings(cpus) {
		name := filepath.Join(conntrackDir, set.Name)
		// A value that cannot be read is written, so that the error is that of the write.
		now, err := s.read(name)
		if err == nil && now == set.Value {
			continue
		}
		change, err := s.write(name, now, set.Value)
		if err != nil {
			return done, err
		}
		done = append(done, change)
	}
	size := HashSize(c.limit(cpus))
	if size == 0 {
		return done, nil
	}
	now, err := s.read(hashSizeFile)
	if err != nil || now >= size {
		return done, err
	}
	change, err := s.write(hashSizeFile, now, size)
	if err != nil {
		return done, err
	}
	return append(done, change), nil
}

func (s System) write(name string, before, value int) (Change, error) {
	path := filepath.Join(s.Root, name)
	// Without O_CREATE: a parameter that does not exist is an error, not a file.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(value))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return Change{}, fmt.Errorf("set %s to %d: %w", path, value, err)
	}
	return Change{Path: path, Before: before, Now: value}, nil
}

func (s System) read(name string) (int, error) {
	text, err := os.ReadFile(filepath.Join(s.Root, name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// CPUs counts the online CPUs of the machine as sysfs lists them, which a CPU
// set of the process does not change; fallback is returned when sysfs has none.
func (s System) CPUs(fallback int) int {
	text, err := os.ReadFile(filepath.Join(s.Root, cpuDir, "online"))
	if err != nil {
		return fallback
	}
	n, err := countRanges(strings.TrimSpace(string(text)))
	if err != nil || n < 1 {
		return fallback
	}
	return n
}

// countRanges counts the members of a list such as "0-3,8".
func countRanges(list string) (int, error) {
	total := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return 0, err
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return 0, err
		}
		if to < from {
			return 0, fmt.Errorf("range %q runs backwards", part)
		}
		total += to - from + 1
	}
	return total, nil
}

// SetOOMScore writes the oom_score_adj of this process. EACCES means that the
// process may not lower it (CAP_SYS_RESOURCE).
func (s System) SetOOMScore(score int) error {
	path := filepath.Join(s.Root, "proc/self/oom_score_adj")
	if err := os.WriteFile(path, []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set OOM score to %d: %w", score, err)
	}
	return nil
}
