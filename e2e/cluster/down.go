// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// marker is a file that says that a directory is a cluster's, and may be removed.
const marker = "cluster.json"

// claim makes the directory, or makes sure that it is one of ours.
func (d dir) claim() error {
	if err := d.ours(); err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return err
	}
	return os.WriteFile(d.file(marker), []byte("{}\n"), 0o644)
}

// ours is nil if the directory is a cluster's, empty, or not there.
func (d dir) ours() error {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(d.file(marker)); err != nil {
		return fmt.Errorf("%s is not empty and not the directory of a cluster: %w", d, err)
	}
	return nil
}

// down removes a cluster: processes, cgroups, mounts, namespaces, and what the kubelets and shims leave outside of the
// directory. It needs nothing but the names in plan.go, so it also removes one whose start was killed.
func down(d dir) error {
	if err := d.ours(); err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	c, err := findCgroups(string(mounts))
	if err != nil {
		return err
	}
	// First the processes: they would make anew what goes next.
	if err := c.remove(d.name(), 30*time.Second); err != nil {
		return err
	}
	if err := d.removeNamespaces(); err != nil {
		return err
	}
	if err := d.removeStrays(); err != nil {
		return err
	}
	if err := d.restoreSysctls(); err != nil {
		return err
	}
	if err := unmountBelow(string(d)); err != nil {
		return err
	}
	return os.RemoveAll(string(d))
}

// removeNamespaces removes ours; interfaces, routes and rules go with them.
func (d dir) removeNamespaces() error {
	all, err := filepath.Glob("/run/netns/" + d.name() + "-*")
	if err != nil {
		return err
	}
	for _, path := range all {
		if !d.netnsName().MatchString(filepath.Base(path)) {
			continue
		}
		if err := run("ip", "netns", "delete", filepath.Base(path)); err != nil {
			return err
		}
	}
	return nil
}

// shimSocket is a shim's address in its bootstrap.json.
var shimSocket = regexp.MustCompile(`unix://(/run/containerd/s/[0-9a-f]+)`)

// removeStrays removes what lies outside of the directory whatever the configuration says: the sockets of shims below
// /run/containerd/s, the kubelets' links to logs in /var/log/containers, and what libcni remembers of pods.
func (d dir) removeStrays() error {
	var sockets []string
	err := filepath.WalkDir(d.file(), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if e.IsDir() && (e.Name() == "containerd" || e.Name() == "kubelet" || e.Name() == "rootfs") {
			return fs.SkipDir // contents of images and volumes
		}
		if e.Name() == "bootstrap.json" || e.Name() == "address" {
			text, _ := os.ReadFile(path)
			for _, m := range shimSocket.FindAllStringSubmatch(string(text), -1) {
				sockets = append(sockets, m[1])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range sockets {
		os.Remove(s)
	}
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, string(d)+"/") {
			os.Remove(l)
		}
	}
	// The name of the network, the container's ID, the interface.
	id := strings.Repeat("[0-9a-f]", 64)
	results, _ := filepath.Glob("/var/lib/cni/results/" + d.name() + "-" + id + "-*")
	for _, r := range results {
		os.Remove(r)
	}
	// Only if they are empty now.
	for _, at := range []string{
		"/var/log/containers", "/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni",
		"/var/lib/kubelet/device-plugins", "/var/lib/kubelet",
	} {
		os.Remove(at)
	}
	return nil
}

// inotifyInstances is how many watchers of files root may have on the machine, 128 by default. Each kubelet, containerd and
// kube-proxy has some, and with two clusters kube-proxy ends with "too many open files".
const inotifyInstances = "fs/inotify/max_user_instances"

// kubeletSysctls are settings of the machine, not of a namespace, that a kubelet or we change.
var kubeletSysctls = []string{
	inotifyInstances,
	"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// saveSysctls keeps what they are, to be put back by restoreSysctls.
func (d dir) saveSysctls() error {
	saved := map[string]string{}
	for _, key := range kubeletSysctls {
		value, err := os.ReadFile("/proc/sys/" + key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		saved[key] = strings.TrimSpace(string(value))
	}
	text, err := json.MarshalIndent(saved, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.file("sysctls.json"), text, 0o600)
}

// allowWatchers raises inotifyInstances if it is low.
func allowWatchers() error {
	text, err := os.ReadFile("/proc/sys/" + inotifyInstances)
	if err != nil {
		return err
	}
	const enough = 1024
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n >= enough {
		return err
	}
	return os.WriteFile("/proc/sys/"+inotifyInstances, []byte(strconv.Itoa(enough)), 0o644)
}

// restoreSysctls puts them back; without the file there is nothing to put back.
func (d dir) restoreSysctls() error {
	text, err := os.ReadFile(d.file("sysctls.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var saved map[string]string
	if err := json.Unmarshal(text, &saved); err != nil {
		return fmt.Errorf("sysctls.json: %w", err)
	}
	for key, value := range saved {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}
