// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package fswatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// expectChange does something and expects Wait to end for it.
func expectChange(t *testing.T, w *Watcher, do func()) {
	t.Helper()
	changed := make(chan bool, 1)
	go func() { changed <- w.Wait(t.Context()) }()
	do()
	if !<-changed {
		t.Error("Wait ended without a change")
	}
}

func TestChanges(t *testing.T) {
	dir := t.TempDir()
	w, err := New(dir)
	if err != nil || w.Polls() != nil {
		t.Fatalf("New: %v, polls: %v", err, w.Polls())
	}
	defer w.Close()
	file := filepath.Join(dir, "f")
	for _, do := range []func() error{
		func() error { return os.WriteFile(file, []byte("1"), 0o600) },
		func() error { return os.Rename(file, file+"2") },
		func() error { return os.Symlink("f2", file) },
		func() error { return os.Remove(file) },
	} {
		expectChange(t, w, func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w.Wait(ctx) {
		t.Error("a change after the context ended")
	}
	if _, err := New(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// TestPolls: whatever the kernel refuses, an instance or a watch, the directory is polled and the cause is kept.
func TestPolls(t *testing.T) {
	none := func() (*fsnotify.Watcher, error) { return nil, unix.EMFILE }
	full := func(*fsnotify.Watcher, string) error { return unix.ENOSPC }
	for cause, refused := range map[error]func() (*Watcher, error){
		unix.EMFILE: func() (*Watcher, error) { return open([]string{"/"}, none, (*fsnotify.Watcher).Add) },
		unix.ENOSPC: func() (*Watcher, error) { return open([]string{"/"}, fsnotify.NewWatcher, full) },
	} {
		w, err := refused()
		if err != nil || !errors.Is(w.Polls(), cause) {
			t.Fatalf("%v: New: %v", cause, err)
		}
		w.poll = time.Nanosecond
		expectChange(t, w, func() {})
		if err := w.Close(); err != nil {
			t.Errorf("%v: Close: %v", cause, err)
		}
	}
}
