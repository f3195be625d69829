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
	"time"

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

// lookAgain is how often files are read where the kernel cannot tell of changes:
// the kubelet itself takes up to a minute to bring a changed ConfigMap.
const lookAgain = 2 * time.Second

// Watcher notices when configuration files change. It watches the directories,
// not the files: a ConfigMap volume swaps a link beside them, which a watch on
// the file would not see.
//
// A machine has a limited number of inotify instances (sysctl
// fs.inotify.max_user_instances, often 128), which clusters in containers use
// up. A proxy that does not start for that serves nobody, so the files are then
// read again and again.
type Watcher struct {
	inotify *os.File // nil: none was left
	every   time.Duration
	before  map[string][]byte
}

// NewWatcher starts watching. Empty paths are skipped; what the files hold now
// is what later content is compared with. Close it when done.
func NewWatcher(paths ...string) (*Watcher, error) {
	return newWatcher(func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) }, paths)
}

// newWatcher is NewWatcher with the way to an inotify instance.
func newWatcher(instance func() (int, error), paths []string) (*Watcher, error) {
	w := &Watcher{every: lookAgain, before: map[string][]byte{}}
	fd, err := instance()
	switch {
	case errors.Is(err, unix.EMFILE): // inotify(7): the limit on instances
	case err != nil:
		return nil, fmt.Errorf("inotify: %w", err)
	default:
		w.inotify = os.NewFile(uintptr(fd), "inotify")
	}
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

// Polls reports whether changes are noticed by reading the files again and
// again, because no inotify instance was left.
func (w *Watcher) Polls() bool { return w.inotify == nil }

// add watches first and reads then, so that no change falls between.
func (w *Watcher) add(fd int, path string) error {
	if w.inotify != nil {
		if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), watchedEvents); err != nil {
			return fmt.Errorf("watch directory of %s: %w", path, err)
		}
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
	if w.Polls() {
		return w.poll(ctx)
	}
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

// poll is Wait without inotify.
func (w *Watcher) poll(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
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
	if w.inotify == nil {
		return nil
	}
	if err := w.inotify.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
