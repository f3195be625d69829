// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoint is a line of /proc/self/mountinfo.
type mountPoint struct{ at, kind string }

// parseMounts reads the text of /proc/self/mountinfo: see proc_pid_mountinfo(5). The fifth field is where; optional fields
// follow, up to a dash, and then the type.
func parseMounts(text string) (mounts []mountPoint) {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 5 || dash+1 >= len(fields) {
			continue
		}
		mounts = append(mounts, mountPoint{unescape(fields[4]), fields[dash+1]})
	}
	return mounts
}

// unescape turns the \040 of a mount point back into a blank.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// below are the mount points at a directory or below it, the latest first: they lie on top of the others.
func below(mounts []mountPoint, top string) (at []string) {
	for _, m := range mounts {
		if m.at == top || strings.HasPrefix(m.at, top+"/") {
			at = append(at, m.at)
		}
	}
	slices.Reverse(at)
	return at
}

// unmountBelow takes away all mounts at a directory and below. Processes that used them are dead; what a dying one still
// holds is let go of when it is.
func unmountBelow(top string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	for _, at := range below(parseMounts(string(text)), top) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && err != unix.EINVAL { // propagation may have been faster
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// shareMounts makes a directory a mount of its own that passes mounts on to containers that ask for it.
func shareMounts(top string) error {
	if err := unix.Mount(top, top, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", top, err)
	}
	if err := unix.Mount("", top, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", top, err)
	}
	return nil
}
