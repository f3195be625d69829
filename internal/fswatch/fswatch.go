// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package fswatch reports that something in one of a few directories may have changed.
//
// In come directories, out comes "read again": no names and no kinds of events, because a reader that compares content
// needs neither, and because inotify loses both when its queue overflows. The package never reads a file.
//
// It watches directories, not files: a ConfigMap volume swaps a symbolic link beside the file, and editors rename. A
// machine has a limited number of inotify instances and watches (fs.inotify.max_user_instances, often 128, and
// max_user_watches), which clusters in containers use up; the watcher then polls instead of failing.
package fswatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// Poll is the interval of polling where the kernel offers no watch: the kubelet itself takes up to a minute to
	// bring a changed ConfigMap.
	Poll = 2 * time.Second
	// backstop is how late a change is noticed whose event was lost, such as in a directory that was removed and made
	// again.
	backstop = time.Minute
	// quiet is how long a directory has to be left alone before it is read: a writer that truncates and writes in several
	// calls is not caught in the middle. It delays every change. longest bounds the wait beside a writer that never pauses.
	quiet, longest = 50 * time.Millisecond, 250 * time.Millisecond
)

// Watcher watches directories. It is for one goroutine.
type Watcher struct {
	dirs  []string
	inner *fsnotify.Watcher // nil: polling
	cause error             // why it polls
	poll  time.Duration
}

// New starts to watch. A directory that does not exist is an error that wraps fs.ErrNotExist; any other failure to
// watch makes the watcher poll (see Polls). Changes from now on end the next Wait. Close it after use.
func New(dirs ...string) (*Watcher, error) {
	return open(dirs, fsnotify.NewWatcher, (*fsnotify.Watcher).Add)
}

// open is New with the two calls that the kernel may refuse.
func open(dirs []string, instance func() (*fsnotify.Watcher, error), add func(*fsnotify.Watcher, string) error) (*Watcher, error) {
	w := &Watcher{dirs: dirs, poll: Poll}
	inner, err := instance()
	if err != nil {
		w.cause = fmt.Errorf("inotify instance: %w", err)
	}
	for _, dir := range dirs {
		if w.cause != nil {
			break
		}
		if err := add(inner, dir); err != nil {
			w.cause = errors.Join(fmt.Errorf("watch directory %s: %w", dir, err), inner.Close())
		}
	}
	if errors.Is(w.cause, fs.ErrNotExist) {
		return nil, w.cause
	}
	if w.cause == nil {
		w.inner = inner
	}
	return w, nil
}

// Polls returns why the directories are polled, nil when they are watched.
func (w *Watcher) Polls() error { return w.cause }

// Wait blocks until something may have changed since the last Wait, or until ctx is done, when it returns false.
func (w *Watcher) Wait(ctx context.Context) bool {
	if w.inner == nil {
		return sleep(ctx, w.poll)
	}
	for _, dir := range w.dirs {
		_ = w.inner.Add(dir) // renews the watch of a directory that was replaced; the backstop covers a failure
	}
	late := time.NewTimer(backstop)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-late.C:
		return true
	case <-w.inner.Events:
	case err := <-w.inner.Errors:
		_ = err // the queue overflowed: anything may have changed
	}
	w.drain(ctx)
	return ctx.Err() == nil
}

// drain takes events until there are none for a moment.
func (w *Watcher) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.inner.Events:
		case err := <-w.inner.Errors:
			_ = err
		case <-time.After(quiet):
			return
		}
	}
}

// Close ends the watch; a Wait that runs must be ended by its context first.
func (w *Watcher) Close() error {
	if w.inner == nil {
		return nil
	}
	return w.inner.Close()
}

// sleep waits, and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
