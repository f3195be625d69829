// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeRoot makes a directory that looks like the root of a machine.
func fakeRoot(t *testing.T, files map[string]string) System {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return System{Root: root}
}

// TestLimit: nf_conntrack_max by kube-proxy's rules.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		perCore, min, cpus int
		want               int
	}{
		{32768, 131072, 2, 131072},     // the floor
		{32768, 131072, 4, 131072},     // equal
		{32768, 131072, 8, 262144},     // per core
		{32768, 131072, 32, 1 << 20},   // exactly the ceiling
		{32768, 131072, 33, 1 << 20},   // above the ceiling
		{32768, 2 << 20, 33, 1 << 20},  // the ceiling wins over the floor
		{32768, 2 << 20, 2, 2 << 20},   // the floor itself may exceed the ceiling
		{0, 131072, 8, 0},              // left alone, whatever the floor
		{1, 0, 8, 8},                   // no floor
		{2147483647, 0, 4096, 1 << 20}, // no overflow
	} {
		if got := (Conntrack{MaxPerCore: c.perCore, Min: c.min}).limit(c.cpus); got != c.want {
			t.Errorf("%d per core, at least %d, %d CPUs: %d, want %d", c.perCore, c.min, c.cpus, got, c.want)
		}
	}
}

func TestSettings(t *testing.T) {
	all := Conntrack{MaxPerCore: 10, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour, TCPBeLiberal: true,
		UDP: 1500 * time.Millisecond, UDPStream: 3 * time.Second}
	want := []Setting{
		{"nf_conntrack_max", 20},
		{"nf_conntrack_tcp_timeout_established", 86400},
		{"nf_conntrack_tcp_timeout_close_wait", 3600},
		{"nf_conntrack_tcp_be_liberal", 1},
		{"nf_conntrack_udp_timeout", 1},
		{"nf_conntrack_udp_timeout_stream", 3},
	}
	if d := cmp.Diff(want, all.Settings(2)); d != "" {
		t.Errorf("everything set (-want +got):\n%s", d)
	}
	if got := (Conntrack{Min: 5}).Settings(2); len(got) > 0 {
		t.Errorf("nothing set: %v", got)
	}
}

const dir = "proc/sys/net/netfilter/"

func TestApply(t *testing.T) {
	s := fakeRoot(t, map[string]string{
		dir + "nf_conntrack_max":                     "262144\n",
		dir + "nf_conntrack_tcp_timeout_established": "86400\n",
		dir + "nf_conntrack_udp_timeout":             "30\n",
		hashSizeFile:                                 "16384\n",
	})
	c := Conntrack{MaxPerCore: 65536, Min: 1, TCPEstablished: 24 * time.Hour, UDP: time.Minute}
	got, err := s.ApplyConntrack(c, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{filepath.Join(s.Root, dir, "nf_conntrack_max"), 262144, 131072}, // lowered too, as kube-proxy does
		{filepath.Join(s.Root, dir, "nf_conntrack_udp_timeout"), 30, 60},
		{filepath.Join(s.Root, hashSizeFile), 16384, 32768},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	again, err := s.ApplyConntrack(c, 2)
	if err != nil || len(again) > 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
	smaller := c
	smaller.MaxPerCore = 4
	if got, err := s.ApplyConntrack(smaller, 2); err != nil || len(got) != 1 {
		t.Errorf("a smaller limit: %v, %v; the hash table must not shrink", got, err)
	}
}

// TestApplyFails: the error names the parameter, and what was done before is
// returned. No file is created where there is none.
func TestApplyFails(t *testing.T) {
	s := fakeRoot(t, map[string]string{dir + "nf_conntrack_max": "1\n", hashSizeFile: "1\n"})
	got, err := s.ApplyConntrack(Conntrack{MaxPerCore: 10, UDP: time.Second}, 1)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nf_conntrack_udp_timeout to 1") {
		t.Errorf("error %v", err)
	}
	if len(got) != 1 {
		t.Errorf("changes %v, want one", got)
	}
	if _, err := os.Stat(filepath.Join(s.Root, dir, "nf_conntrack_udp_timeout")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the parameter was made: %v", err)
	}
	empty := fakeRoot(t, nil)
	if _, err := empty.ApplyConntrack(Conntrack{}, 1); err != nil {
		t.Errorf("nothing to set on a machine without conntrack: %v", err)
	}
}

func TestCPUs(t *testing.T) {
	for text, want := range map[string]int{"0-3\n": 4, "0": 1, "0-1,4,6-7\n": 5, "": 9, "x": 9, "0-y": 9, "3-1": 9} {
		s := fakeRoot(t, map[string]string{"sys/devices/system/cpu/online": text})
		if got := s.CPUs(9); got != want {
			t.Errorf("%q: %d CPUs, want %d", text, got, want)
		}
	}
	if got := fakeRoot(t, nil).CPUs(7); got != 7 {
		t.Errorf("without sysfs: %d", got)
	}
}

func TestOOMScore(t *testing.T) {
	s := fakeRoot(t, map[string]string{"proc/self/oom_score_adj": "0"})
	if err := s.SetOOMScore(-999); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.read("proc/self/oom_score_adj"); got != -999 {
		t.Errorf("wrote %d", got)
	}
	if err := (System{Root: filepath.Join(s.Root, "none")}).SetOOMScore(1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
