// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroups are the mount points of all cgroup hierarchies of the machine: of version 1 one for each controller, of version 2
// a single one. A machine with both (hybrid) has its controllers in version 1.
type cgroups struct {
	mounts []string
	v2     bool
	all    []string // with version 2 beside version 1, where runc makes groups too
}

// findCgroups reads them from the text of /proc/self/mountinfo.
func findCgroups(mountinfo string) (c cgroups, err error) {
	var v2 []string
	for _, m := range parseMounts(mountinfo) {
		switch m.kind {
		case "cgroup":
			c.mounts = append(c.mounts, m.at)
		case "cgroup2":
			v2 = append(v2, m.at)
		}
	}
	c.all = append(v2, c.mounts...)
	if len(c.mounts) == 0 {
		c.mounts, c.v2 = v2, true
	}
	if len(c.mounts) == 0 {
		return c, errors.New("no cgroup hierarchy is mounted")
	}
	return c, nil
}

// procs are the files that a process joins a group by.
func (c cgroups) procs(group string) (files []string) {
	for _, m := range c.mounts {
		files = append(files, filepath.Join(m, group, "cgroup.procs"))
	}
	return files
}

// create makes a group with its parents in every hierarchy.
func (c cgroups) create(group string) error {
	for _, m := range c.mounts {
		at := m
		for _, part := range strings.Split(strings.Trim(group, "/"), "/") {
			parent := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cgroup: %w", err)
			}
			if err := c.prepare(parent, at); err != nil {
				return fmt.Errorf("cgroup %s: %w", at, err)
			}
		}
	}
	return nil
}

// prepare makes a new group usable. In version 1 a cpuset starts out empty, and takes no process before it has CPUs and
// memory nodes; in version 2 controllers are to be handed down.
func (c cgroups) prepare(parent, group string) error {
	if c.v2 {
		have, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, controller := range strings.Fields(string(have)) {
			// One by one, and it may fail: which ones can be handed down depends on the machine. The kubelet says what it lacks.
			os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		}
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another controller
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// tree lists the directories of a group and all below it, the deepest first.
func tree(top string) (dirs []string) {
	filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // groups vanish while we walk
	})
	slices.Reverse(dirs)
	return dirs
}

// members are the processes of a group and all below it.
func members(top string) (pids []int) {
	for _, d := range tree(top) {
		text, _ := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// remove kills every process of a group and all below it, and removes the groups. Only what the cluster started is in
// them: a process leaves its group by nothing but root's own will.
func (c cgroups) remove(group string, within time.Duration) error {
	deadline := time.Now().Add(within)
	for _, m := range c.all {
		top := filepath.Join(m, group)
		for {
			pids := members(top)
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			for _, d := range tree(top) {
				os.Remove(d)
			}
			if _, err := os.Stat(top); errors.Is(err, fs.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("cgroup %s: not gone within %s; processes %v", top, within, pids)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}
