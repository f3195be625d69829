// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrChanged is wrapped by the error of Watcher.Wait when a file has other
// content than it had. The process then exits, and the kubelet starts it with
// the new configuration.
var ErrChanged = errors.New("configuration file changed")

// watchedEvents are the inotify events of a directory after which a file in it
// may have other content: written and closed, moved in (editors, and the
// ..data link of a ConfigMap volume), created (links).
const watchedEvents = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE

// Watcher notices when configuration files change. It watches the directories,
// not the files: a ConfigMap volume swaps a link beside them, which a watch on
// the file would not see.
type Watcher struct {
	inotify *os.File
	before  map[string][]byte
}

// NewWatcher starts watching. Empty paths are skipped; what the files hold now
// is what later content is compared with. Close it when done.
func NewWatcher(paths ...string) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watcher{inotify: os.NewFile(uintptr(fd), "inotify"), before: map[string][]byte{}}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := w.add(fd, path); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// add watches first and reads then, so that no change falls between.
func (w *Watcher) add(fd int, path string) error {
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), watchedEvents); err != nil {
		return fmt.Errorf("watch directory of %s: %w", path, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	w.before[path] = content
	return nil
}

// Wait blocks until a file has changed, which it reports as an error that wraps
// ErrChanged, or until ctx is done, when it returns nil. A file that is gone
// does not count as changed: a writer may be about to put it back.
func (w *Watcher) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = w.inotify.Close() })
	defer stop()
	// One event is at most its header and a name: 16 + NAME_MAX + 1 bytes.
	events := make([]byte, 4096)
	for {
		if _, err := w.inotify.Read(events); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("inotify: %w", err)
		}
		if err := w.compare(); err != nil {
			return err
		}
	}
}

// compare reads the files and reports the first whose content differs.
func (w *Watcher) compare() error {
	for path, before := range w.before {
		now, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(now, before) {
			return fmt.Errorf("%w: %s", ErrChanged, path)
		}
	}
	return nil
}

// Close ends the watch.
func (w *Watcher) Close() error {
	if err := w.inotify.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
