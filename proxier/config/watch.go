// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nftproxy/nftproxy/internal/fswatch"
)

// ErrChanged is wrapped by the result of Watcher.Run when the files have new content that is valid. With those of the
// configuration the process then exits, and the kubelet starts it again with the new one.
var ErrChanged = errors.New("configuration changed")

// Watcher waits until configuration files change. It is for one goroutine.
type Watcher struct {
	dirs   *fswatch.Watcher
	before map[string][]byte
}

// NewWatcher starts to watch. Empty paths are skipped. Later content is compared with what the files contain now. Close
// it after use.
func NewWatcher(paths ...string) (*Watcher, error) {
	w := &Watcher{before: map[string][]byte{}}
	dirs := map[string]bool{}
	for _, path := range paths {
		if path != "" {
			dirs[filepath.Dir(path)], w.before[path] = true, nil
		}
	}
	var err error
	if w.dirs, err = fswatch.New(slices.Sorted(maps.Keys(dirs))...); err != nil {
		return nil, err
	}
	// Read after the watch has begun, so that no change falls between.
	if w.before, _, err = w.read(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Polls returns why the files are polled, nil when the kernel reports changes.
func (w *Watcher) Polls() error { return w.dirs.Polls() }

// Run waits until the files have other content and check accepts it, and returns an error that wraps ErrChanged and
// names a file; when ctx is done it returns nil. invalid is called with the error of check for content that is not
// accepted, and with nil once the files are again as they were: the accepted content stays in use meanwhile. Run may be
// called again, and waits for the next change.
func (w *Watcher) Run(ctx context.Context, check func() error, invalid func(error)) error {
	last, refused := w.before, false
	for w.dirs.Wait(ctx) {
		now, changed, err := w.read()
		if err == nil && maps.EqualFunc(now, last, bytes.Equal) {
			continue
		}
		if err == nil && changed != "" {
			err = check()
		}
		switch {
		case err != nil:
			refused = true
			invalid(err)
		case changed != "":
			w.before = now // for the next Run
			return fmt.Errorf("%w: %s", ErrChanged, changed)
		case refused:
			refused = false
			invalid(nil)
		}
		last = now
	}
	return nil
}

// read returns the files' content, and the first of them that differs from what it was at the start. A file that is
// missing counts as unchanged: a writer may be about to replace it.
func (w *Watcher) read() (now map[string][]byte, changed string, err error) {
	now = map[string][]byte{}
	for _, path := range slices.Sorted(maps.Keys(w.before)) {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && w.before[path] != nil {
			content, err = w.before[path], nil
		}
		if err != nil {
			return now, "", err
		}
		if now[path] = content; changed == "" && !bytes.Equal(content, w.before[path]) {
			changed = path
		}
	}
	return now, changed, nil
}

// Close ends the watch.
func (w *Watcher) Close() error { return w.dirs.Close() }
