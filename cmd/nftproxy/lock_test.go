// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// Who holds the lock can be found out, and a second process hears of the first.
func TestLock(t *testing.T) {
	name := fmt.Sprintf("@nftproxy-test-%d", os.Getpid())
	if pid, held := lockHolder(name); held {
		t.Fatalf("held by %d before", pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		holdLock(ctx, name, func(pid int) { t.Errorf("held by %d", pid) })
	}()
	for {
		if pid, held := lockHolder(name); held {
			if pid != os.Getpid() {
				t.Errorf("held by %d, want %d", pid, os.Getpid())
			}
			break
		}
	}
	second, stop := context.WithCancel(t.Context())
	holdLock(second, name, func(pid int) {
		if pid != os.Getpid() {
			t.Errorf("busy by %d, want %d", pid, os.Getpid())
		}
		stop()
	})
	cancel()
	<-done
	if pid, held := lockHolder(name); held {
		t.Errorf("held by %d afterwards", pid)
	}
}
