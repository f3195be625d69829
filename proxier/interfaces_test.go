// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nftproxy/nftproxy/nft"
)

// Addresses come and go by the thousand, faster than they are looked at: the last one counts in the end, and nothing ends.
func TestManyAddressesComeAndGo(t *testing.T) {
	r := newRig(t)
	r.opt.Config.NodePorts.CIDRs = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}
	h, err := netlink.NewHandleAt(r.ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	link, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	r.set(service(1, 1)...)
	r.sync()
	r.ready()
	const n = 3000
	addr := func(i int) *netlink.Addr {
		a, err := netlink.ParseAddr(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String() + "/32")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for i := range n {
		if err := h.AddrAdd(link, addr(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n - 1 {
		if err := h.AddrDel(link, addr(i)); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("the last address alone", func() bool {
		for _, e := range r.content(nft.IPv4).Elements {
			if e.Set == nft.NodePortAddresses && e.Key == string([]byte{198, 18, (n - 1) >> 8, (n - 1) & 0xff}) {
				return r.count(nft.NodePortAddresses) == 2
			}
		}
		return false
	})
}

// A device is renamed: the rule of the masquerade subnet names it.
func TestRenamedDevice(t *testing.T) {
	ns := newNS(t)
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	address, err := netlink.ParseAddr("198.18.0.1/24")
	if err != nil {
		t.Fatal(err)
	}
	device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "before"}, PeerName: "peer"}
	if err := errors.Join(h.LinkAdd(device), h.AddrAdd(device, address)); err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	w := newInterfaceWatch(int(ns), true, func() { kick(changed) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); watchInterfaces(ctx, w) }()
	at := netip.MustParseAddr("198.18.0.1")
	for w.current().byAddr[at] != "before" {
		<-changed
	}
	if err := h.LinkSetName(device, "after"); err != nil {
		t.Fatal(err)
	}
	for w.current().byAddr[at] != "after" {
		<-changed
	}
	if got := w.current().byAlias["before"]; got != "after" {
		t.Errorf("the former name leads to %q", got)
	}
	// No address changes by that. The kernel notifies of other names of a device that is up only.
	if err := errors.Join(h.LinkSetUp(device), h.LinkAddAltName(device, "alias")); err != nil {
		t.Fatal(err)
	}
	for w.current().byAlias["alias"] != "after" {
		<-changed
	}
	cancel()
	<-done
}
