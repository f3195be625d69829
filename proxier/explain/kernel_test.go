// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// namespace makes a network namespace of the test's own.
func namespace(t *testing.T) int {
	t.Helper()
	type made struct {
		ns  netns.NsHandle
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		done <- made{ns, err}
	}()
	m := <-done
	if m.err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			t.Fatalf("network namespace: %v", m.err)
		}
		t.Skipf("network namespace: %v", m.err)
	}
	t.Cleanup(func() { m.ns.Close() })
	return int(m.ns)
}

// Rules that the kernel returns are understood as those that were sent.
func TestExplainReadsTheKernel(t *testing.T) {
	k, err := kernel.Open(namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, f := range nft.Families() {
		c, err := k.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range nft.NewTable(c).Reconcile(c, config(), services(f), nodeElements(f)) {
			if err := k.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		got, err := k.Snapshot(f)
		if err != nil {
			t.Fatal(err)
		}
		want := nft.Model(f, config(), services(f), nodeElements(f))
		n := node(f)
		n.Client = clients(want)
		for _, c := range scenarios() {
			if d := cmp.Diff(Explain(inspect.Read(want), nil, c.packet(f), n), Explain(inspect.Read(got), nil, c.packet(f), n)); d != "" {
				t.Errorf("%s %s %s from %s: (-model +kernel)\n%s", f, c.proto, c.to, c.from, d)
			}
		}
	}
}
