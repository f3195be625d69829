// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/nftproxy/nftproxy/routing"
	. "github.com/nftproxy/nftproxy/routing/kernel"
)

// node is a network namespace without a name, served by one thread that lives in it. It is gone with its last
// descriptor, so a test that dies leaves nothing behind.
type node struct {
	t    testing.TB
	fd   int
	tid  int // of the thread; iproute2 takes it for a process
	work chan func()
}

// newNode makes a namespace. Without the privilege the test is skipped, or fails where NFTPROXY_KERNEL=required.
func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- fmt.Errorf("unshare: %w", err)
			return
		}
		var err error
		n.tid = unix.Gettid()
		n.fd, err = unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", n.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		ready <- err
		if err == nil {
			for f := range n.work {
				f()
			}
		}
	}()
	if err := <-ready; err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			t.Fatalf("no network namespace: %v", err)
		}
		t.Skipf("no network namespace: %v", err)
	}
	t.Cleanup(func() {
		close(n.work)
		_ = unix.Close(n.fd)
	})
	// Without a link-local address there is no neighbour discovery on behalf of others, and the check for duplicates
	// holds that address back for more than a second after the link is up.
	n.run("ip link set lo up\nsysctl -qw net.ipv6.conf.default.accept_dad=0")
	return n
}

// in runs f on the thread that lives in the namespace.
func (n *node) in(f func()) {
	done := make(chan struct{})
	n.work <- func() { defer close(done); f() }
	<-done
}

// try runs a command in the namespace and returns its output.
func (n *node) try(line string) (string, error) {
	var out []byte
	var err error
	n.in(func() {
		words := strings.Fields(line)
		out, err = exec.Command(words[0], words[1:]...).CombinedOutput()
	})
	return strings.TrimSpace(string(out)), err
}

// run runs commands, one per line, and fails the test if one fails.
func (n *node) run(lines string) string {
	n.t.Helper()
	var last string
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		out, err := n.try(line)
		if err != nil {
			n.t.Fatalf("%s: %v\n%s", line, err, out)
		}
		last = out
	}
	return last
}

// script feeds text to a command in the namespace.
func (n *node) script(line, input string) {
	n.t.Helper()
	n.in(func() {
		words := strings.Fields(line)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			n.t.Errorf("%s: %v\n%s", line, err, out)
		}
	})
	if n.t.Failed() {
		n.t.FailNow()
	}
}

// wire joins two namespaces by a veth pair and sets both ends up with the addresses given.
func (n *node) wire(name, addresses string, peer *node, peerName, peerAddresses string) {
	n.t.Helper()
	n.run(fmt.Sprintf("ip link add %s type veth peer name %s netns %d", name, peerName, peer.tid))
	for _, end := range []struct {
		*node
		name, addresses string
	}{{n, name, addresses}, {peer, peerName, peerAddresses}} {
		end.run("ip link set " + end.name + " up")
		for _, a := range strings.Fields(end.addresses) {
			end.run("ip addr add " + a + " dev " + end.name + map[bool]string{true: " nodad"}[strings.Contains(a, ":")])
		}
	}
}

// kernel opens a Kernel for the namespace.
func (n *node) kernel() *Kernel {
	n.t.Helper()
	k, err := OpenAt(n.fd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(k.Close)
	return k
}

// read returns the state of the namespace.
func (n *node) read(k *Kernel) State {
	n.t.Helper()
	s, err := k.Read(context.Background(), Config{Steering: Steering{Table: DefaultTable}})
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// eventually polls until ok, and fails with what it saw last.
func eventually(t testing.TB, what string, ok func() (bool, string)) {
	t.Helper()
	var last string
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var good bool
		if good, last = ok(); good {
			return
		}
	}
	t.Fatalf("%s: not within %v; last seen:\n%s", what, soon, last)
}
