// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// jailVar names the root file system that this binary, started in place of a proxy, runs /nftproxy in. What a container
// runtime does is done for it with what the manifests say: a read-only root, /proc/sys and /sys read-only, one capability.
const jailVar = "NFTPROXY_TEST_JAIL"

func TestMain(m *testing.M) {
	if root := os.Getenv(jailVar); root != "" {
		fmt.Fprintln(os.Stderr, "jail:", jail(root, os.Args))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const asKubeProxy = "/usr/local/bin/kube-proxy"

// jail becomes /nftproxy in the jail. Files of the configuration are where they were, below the same path.
func jail(root string, argv []string) error {
	runtime.LockOSThread() // mounts and capabilities are those of a thread, and exec goes on with this one
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	shared := filepath.Dir(root)
	for _, bind := range []struct{ from, to string }{
		{root, root}, {"/proc", root + "/proc"}, {"/proc/sys", root + "/proc/sys"}, {"/sys", root + "/sys"}, {shared, root + shared},
	} {
		if err := os.MkdirAll(bind.to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(bind.from, bind.to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", bind.to, err)
		}
	}
	for _, dir := range []string{"/proc/sys", "/sys", shared, ""} {
		if err := unix.Mount("", root+dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", root+dir, err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := onlyNetAdmin(); err != nil {
		return err
	}
	env := os.Environ()
	for i, v := range env {
		if strings.HasPrefix(v, jailVar+"=") {
			env[i] = "JAILED=1"
		}
	}
	// By the path that kubeadm's DaemonSet has, which leads to /nftproxy.
	return syscall.Exec(asKubeProxy, append([]string{asKubeProxy}, argv[1:]...), env)
}

// onlyNetAdmin gives up all capabilities but CAP_NET_ADMIN for what is executed next, and getting any back.
func onlyNetAdmin() error {
	for c := range uintptr(64) {
		if c == unix.CAP_NET_ADMIN {
			continue
		}
		// EINVAL: the kernel has no such capability.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	set := uint32(1 << unix.CAP_NET_ADMIN)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: set, Permitted: set, Inheritable: set}}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
