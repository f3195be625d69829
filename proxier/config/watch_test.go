// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if err := errors.Join(os.Symlink(target, path+".tmp"), os.Rename(path+".tmp", path)); err != nil {
		t.Fatal(err)
	}
}

// TestWatch: after each of these a file has, or has not, changed. A change that
// is none is followed by a real one elsewhere, so that the test need not wait
// to see that nothing happens: the other file is reported.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(t *testing.T, dir string)
		changed bool
	}{
		"written in place": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "new") }, true},
		"replaced by rename": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "x"), "new")
			if err := os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "c")); err != nil {
				t.Fatal(err)
			}
		}, true},
		"same content": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "old") }, false},
		"another file": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "y"), "new") }, false},
		"removed":      {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "c")) }, false},
		"removed and written again": {func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "c"))
			write(t, filepath.Join(dir, "c"), "new")
		}, true},
		"emptied": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "c"), "") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
			path := filepath.Join(dir, "c")
			write(t, path, "old")
			write(t, other, "old")
			expectChanged(t, []string{path, other}, func() {
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
	expectChanged(t, []string{path}, func() { link(t, "..v2", filepath.Join(dir, "..data")) }, path)
}

// expectChanged watches files, lets something happen, and expects one of them to
// be reported.
func expectChanged(t *testing.T, paths []string, happen func(), changed string) {
	t.Helper()
	w, err := NewWatcher(append(paths, "")...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got := make(chan error, 1)
	go func() {
		got <- w.Run(t.Context(), func() error { return nil }, func(err error) { t.Errorf("invalid: %v", err) })
	}()
	happen()
	if err := <-got; !errors.Is(err, ErrChanged) || !strings.HasSuffix(err.Error(), ": "+changed) {
		t.Errorf("got %v, want a change of %s", err, changed)
	}
}

// TestWatchInvalid: a bad edit does not end the watch, a good one does. Each
// content is reported once, and its withdrawal too.
func TestWatchInvalid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	write(t, path, "good")
	w, err := NewWatcher(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	errBad := errors.New("bad")
	check := func() error {
		if text, err := os.ReadFile(path); err != nil || strings.HasPrefix(string(text), "bad") {
			return errors.Join(errBad, err)
		}
		return nil
	}
	reports, done := make(chan error), make(chan error, 1)
	go func() { done <- w.Run(t.Context(), check, func(err error) { reports <- err }) }()
	for _, step := range []struct {
		text string
		want error
	}{{"bad 1", errBad}, {"bad 2", errBad}, {"good", nil}, {"bad 3", errBad}} {
		write(t, path, step.text)
		select {
		case got := <-reports:
			if !errors.Is(got, step.want) || (got == nil) != (step.want == nil) {
				t.Errorf("%s: reported %v, want %v", step.text, got, step.want)
			}
		case err := <-done:
			t.Fatalf("%s: the watch ended: %v", step.text, err)
		}
	}
	write(t, path, "better")
	select {
	case got := <-reports:
		t.Errorf("better: reported %v", got)
	case err := <-done:
		if !errors.Is(err, ErrChanged) {
			t.Errorf("better: %v", err)
		}
	}
}

func TestWatchEnds(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(w.Run(ctx, nil, nil), w.Close()); err != nil {
		t.Errorf("at the end: %v", err)
	}
	if _, err := NewWatcher(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
