// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
)

// namespace is a network namespace of a test's own.
type namespace struct {
	fd netns.NsHandle
}

// newNamespace makes one, or skips the test where that is not allowed. With NFTPROXY_KERNEL=required it fails.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	done := make(chan error, 1)
	n := &namespace{}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var err error
		n.fd, err = netns.New()
		done <- err
	}()
	if err := <-done; err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			t.Fatalf("network namespace: %v", err)
		}
		t.Skipf("network namespace: %v", err)
	}
	t.Cleanup(func() { n.fd.Close() })
	return n
}

func (n *namespace) open(t testing.TB) *Conn {
	t.Helper()
	k, err := Open(int(n.fd))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// nft runs Debian's nft inside and returns what it prints.
func (n *namespace) nft(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := n.tryNFT(stdin, args...)
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (n *namespace) tryNFT(stdin string, args ...string) (out string, err error) {
	return n.run(stdin, "nft", args...)
}

// run runs a program inside and returns what it prints.
func (n *namespace) run(stdin, name string, args ...string) (out string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = netns.Set(n.fd); err != nil {
			return
		}
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		var b []byte
		b, err = cmd.CombinedOutput()
		out = string(b)
	}()
	<-done
	return out, err
}
