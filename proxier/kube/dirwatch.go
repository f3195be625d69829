// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dirEvent is something that happened to an entry of a directory.
type dirEvent struct {
	mask   uint32 // IN_ constants of inotify(7)
	cookie uint32 // the same in the two events of a rename
	name   string
}

// renames tells whether e is the second half of a rename within the directory, and from the first one.
func (e dirEvent) renames(from dirEvent) bool {
	return e.mask&unix.IN_MOVED_TO != 0 && from.mask&unix.IN_MOVED_FROM != 0 && e.cookie == from.cookie
}

// dirMask is what is watched for. That a writer has closed its file is the reason to use inotify itself: no portable
// library tells it, and without it a file that is half written cannot be told from a short one.
const dirMask = unix.IN_CLOSE_WRITE | unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// watchDir returns a channel of what happens in dir, in batches, which is closed when the watch ends: by stop, or
// because the directory is gone. stop must be called.
func watchDir(dir string) (events <-chan []dirEvent, stop func(), err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("inotify: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify") // non-blocking: Close ends a Read
	if _, err := unix.InotifyAddWatch(fd, dir, dirMask); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("inotify watch of %s: %w", dir, err)
	}
	out, done := make(chan []dirEvent), make(chan struct{})
	go func() {
		defer close(out)
		buf := make([]byte, 1<<16) // some hundred events; what does not fit stays in the kernel's queue
		for {
			n, err := file.Read(buf)
			batch := parseEvents(buf[:max(n, 0)])
			if err != nil {
				return
			}
			select {
			case out <- batch:
			case <-done:
				return
			}
			if gone(batch) {
				return
			}
		}
	}()
	return out, func() { close(done); file.Close() }, nil
}

// gone tells whether the watch is of no use any more.
func gone(batch []dirEvent) bool {
	for _, e := range batch {
		if e.mask&(unix.IN_IGNORED|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0 {
			return true
		}
	}
	return false
}

// parseEvents reads struct inotify_event: wd, mask, cookie and len of 32 bits each in the machine's order, then the
// name, padded with zeros to len.
func parseEvents(buf []byte) (out []dirEvent) {
	for len(buf) >= unix.SizeofInotifyEvent {
		size := binary.NativeEndian.Uint32(buf[12:])
		name, rest := buf[unix.SizeofInotifyEvent:], []byte(nil)
		if uint64(size) > uint64(len(name)) {
			return out
		}
		name, rest = name[:size], name[size:]
		name, _, _ = bytes.Cut(name, []byte{0})
		out = append(out, dirEvent{binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint32(buf[8:]), string(name)})
		buf = rest
	}
	return out
}
