// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// lockName is the abstract Unix socket that a serving proxy holds. Abstract sockets belong to a network namespace, as our
// tables do, and go with their process. Any process of the namespace could hold it; so what it guards is never done
// silently, but it does not keep a proxy from serving.
const lockName = "@nftproxy"

// lockPoll is the pause between two attempts to take the lock from another process.
const lockPoll = 5 * time.Second

// holdLock holds a lock until ctx ends. While another process has it, it reports that once and tries again.
func holdLock(ctx context.Context, name string, busy func(pid int)) {
	for reported := false; ctx.Err() == nil; {
		listener, err := new(net.ListenConfig).Listen(ctx, "unix", name)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
			answer(ctx, listener)
			stop()
			return
		}
		if pid, held := lockHolder(name); held && !reported {
			busy(pid)
			reported = true
		}
		pause(ctx)
	}
}

// answer closes each connection: whoever connects only wants to know who listens.
func answer(ctx context.Context, listener net.Listener) {
	for ctx.Err() == nil {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.Close()
		} else {
			pause(ctx) // no file descriptor is left, or ctx ended
		}
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lockPoll):
	}
}

// lockHolder returns the process that holds the lock; 0 is one of another PID namespace.
func lockHolder(name string) (pid int, held bool) {
	conn, err := net.Dial("unix", name)
	if err != nil {
		return 0, false
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, true
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, true
}

// holdNamespace holds the lock, and reports another proxy: of two with different objects each removes what the other wrote.
func (p *parts) holdNamespace(ctx context.Context) error {
	holdLock(ctx, lockName, func(pid int) {
		klog.ErrorS(nil, "Another nftproxy serves this network namespace; stop one of them, each may undo the changes of the other", "pid", pid)
		if p.events != nil {
			p.events.Node(true, "SecondProxy", "another nftproxy serves the network namespace of this node")
		}
	})
	return nil
}
