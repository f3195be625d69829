// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// link swaps a symbolic link atomically, as the kubelet does with ..data.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// TestWatch: after each of these a file has, or has not, changed. A change that
// is none is followed by a real one elsewhere, so that the test need not wait
// to see that nothing happens: what is reported is the other file.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(t *testing.T, dir string)
		changed bool
	}{
		"written in place":   {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "new") }, true},
		"replaced by rename": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "x"), "new"); rename(t, dir, "x", "c") }, true},
		"same content":       {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "old") }, false},
		"another file":       {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "y"), "new") }, false},
		"removed":            {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "c")) }, false},
		"removed and back": {func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "c"))
			write(t, filepath.Join(dir, "c"), "new")
		}, true},
		"truncated to length": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
			path := filepath.Join(dir, "c")
			write(t, path, "old")
			write(t, other, "old")
			expect(t, []string{path, other}, func() {
				c.do(t, dir)
				if !c.changed {
					write(t, other, "new")
				}
			}, map[bool]string{true: path, false: other}[c.changed])
		})
	}
}

// TestWatchConfigMap: the layout of a ConfigMap volume, whose update swaps the
// link ..data beside the file's own link.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, "..v"+v), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "..v"+v, "config.conf"), "version "+v)
	}
	link(t, "..v1", filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "config.conf")
	if err := os.Symlink("..data/config.conf", path); err != nil {
		t.Fatal(err)
	}
	expect(t, []string{path}, func() { link(t, "..v2", filepath.Join(dir, "..data")) }, path)
}

// expect watches files, lets something happen, and wants one of them reported.
func expect(t *testing.T, paths []string, happen func(), changed string) {
	t.Helper()
	w, err := NewWatcher(append(paths, "")...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- w.Wait(ctx) }()
	happen()
	want := ErrChanged.Error() + ": " + changed
	if err := <-got; !errors.Is(err, ErrChanged) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestWatchEnds(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { got <- w.Wait(ctx) }()
	cancel()
	if err := <-got; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := NewWatcher(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestWatchPolls: without an inotify instance a change is noticed all the same; any other failure is one.
func TestWatchPolls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	write(t, path, "old")
	w, err := newWatcher(func() (int, error) { return -1, unix.EMFILE }, []string{path, ""})
	if err != nil || !w.Polls() {
		t.Fatalf("%v, polls: %v", err, w != nil && w.Polls())
	}
	w.every = time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- w.Wait(ctx) }()
	write(t, path, "new")
	if err := <-got; !errors.Is(err, ErrChanged) {
		t.Errorf("got %v", err)
	}
	w.before[path] = []byte("new")
	cancel()
	if err := errors.Join(w.Wait(ctx), w.Close()); err != nil {
		t.Errorf("at the end: %v", err)
	}
	if _, err := newWatcher(func() (int, error) { return -1, unix.EPERM }, nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v, want EPERM", err)
	}
}

func rename(t *testing.T, dir, from, to string) {
	t.Helper()
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
