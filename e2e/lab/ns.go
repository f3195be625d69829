// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// threadNS names the network namespace of the calling thread; /proc/self would be the one of the main thread.
const threadNS = "/proc/thread-self/ns/net"

// Namespace is a network namespace without a name: it lives as long as its descriptor or something inside it, so a
// process that is killed leaves nothing behind. Safe for concurrent use.
type Namespace struct {
	file *os.File
}

// NewNamespace makes an empty namespace with its loopback up. It needs CAP_SYS_ADMIN.
func NewNamespace() (*Namespace, error) {
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result)
	go func() {
		// The thread is not given back: it ends with the goroutine, which is simpler and safer than restoring it.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("new network namespace: %w", err)}
			return
		}
		f, err := os.Open(threadNS)
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, r.err
	}
	return &Namespace{file: r.file}, nil
}

// Close gives up the namespace. Sockets made in it keep it alive until they are closed.
func (n *Namespace) Close() error { return n.file.Close() }

// FD is the namespace's descriptor, valid until Close.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Path is a path to the namespace, good while this process lives: nsenter --net=PATH nft list ruleset.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Do runs f on the calling goroutine with its thread inside the namespace. Sockets that f makes stay in the namespace
// wherever they are used later; goroutines that f starts are not in it. Calls may nest. If the thread cannot be brought
// back it is never used again.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	back, err := unix.Open(threadNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own namespace: %w", err)
	}
	defer unix.Close(back)
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace: %w", err)
	}
	defer func() {
		if unix.Setns(back, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Sysctl writes a setting below /proc/sys/net, named with slashes: "ipv4/ip_forward".
func (n *Namespace) Sysctl(key, value string) error {
	return n.Do(func() error {
		return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0)
	})
}

// ReadSysctl reads one.
func (n *Namespace) ReadSysctl(key string) (string, error) {
	var text []byte
	err := n.Do(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/" + key)
		return err
	})
	return strings.TrimSpace(string(text)), err
}

// sysctls writes several settings in one visit.
func (n *Namespace) sysctls(settings []sysctl) error {
	return n.Do(func() error {
		for _, s := range settings {
			err := os.WriteFile("/proc/sys/net/"+s.key, []byte(s.value), 0)
			if err != nil && !(s.optional && os.IsNotExist(err)) {
				return fmt.Errorf("set %s=%s: %w", s.key, s.value, err)
			}
		}
		return nil
	})
}
