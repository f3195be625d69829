// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
)

// watchAddresses keeps p.local, the addresses of the node's interfaces, until ctx ends: NodePorts follow addresses
// that come and go. A notification is a trigger to list them again.
func (p *Proxier) watchAddresses(ctx context.Context) error {
	ns := netns.None()
	if p.opt.NetNS != 0 {
		ns = netns.NsHandle(p.opt.NetNS)
	}
	handle, err := newHandle(ns)
	if err != nil {
		return fmt.Errorf("open route netlink socket: %w", err)
	}
	defer handle.Close()
	for ctx.Err() == nil {
		if err := p.followAddresses(ctx, handle, ns); err != nil {
			return err
		}
	}
	return nil
}

// addressPause is how long to wait for more changes of addresses before they are listed: where thousands come at once, each
// of them is a notification.
const addressPause = 10 * time.Millisecond

// followAddresses lists the addresses after each notification. It returns without an error when ctx ends or notifications
// were lost.
func (p *Proxier) followAddresses(ctx context.Context, handle *netlink.Handle, ns netns.NsHandle) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan netlink.AddrUpdate, 64)
	opt := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		klog.FromContext(ctx).V(4).Info("Notification of an address was lost", "err", err) // and the channel is closed
	}}
	if ns != netns.None() {
		opt.Namespace = &ns
	}
	if err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), opt); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer func() { // the sender must not wait for us for ever
		cancel()
		go func() {
			for range updates {
			}
		}()
	}()
	for open := true; open; open = wait(updates, addressPause) {
		err := p.listAddresses(handle)
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted): // they changed meanwhile
			continue
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open = <-updates:
			if !open {
				return nil
			}
		}
	}
	return nil
}

// wait drops what comes in within a pause, and tells whether the channel is still open.
func wait(updates <-chan netlink.AddrUpdate, pause time.Duration) bool {
	over := time.After(pause)
	for {
		select {
		case _, open := <-updates:
			if !open {
				return false
			}
		case <-over:
			return true
		}
	}
}

func newHandle(ns netns.NsHandle) (*netlink.Handle, error) {
	if ns == netns.None() {
		return netlink.NewHandle()
	}
	return netlink.NewHandleAt(ns)
}

// listAddresses reads the addresses and kicks the loop if they are others than before.
func (p *Proxier) listAddresses(h *netlink.Handle) error {
	var list []netip.Addr
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			list = append(list, ip.Unmap())
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	var names links
	if p.opt.Config.Own.Routing.Masquerade.Enabled { // only its rule names a device
		devices, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		names = namesOf(devices, addrs)
	}
	p.mu.Lock()
	changed := !slices.Equal(list, p.local) || !names.equal(p.links)
	p.local, p.links = list, names
	p.mu.Unlock()
	if changed {
		p.kick()
	}
	return nil
}

// lookAround computes the surroundings from what is known now.
func (p *Proxier) lookAround() surroundings {
	node, cidrs := p.tracker.cluster()
	p.mu.Lock()
	local, names := p.local, p.links
	p.mu.Unlock()
	return surround(inputs{config: p.opt.Config, node: node, cidrs: cidrs, local: local, links: names})
}

// sameConfig tells whether the tables' rules were made for these surroundings.
func (p *Proxier) sameConfig(s surroundings) bool {
	for f, t := range p.tables {
		if t.config != s.byFam[f].config {
			return false
		}
	}
	return len(p.tables) == len(p.families)
}

// healthAddrs are the addresses that health check servers listen on: those that take NodePorts, the unspecified one for all
// of one family, nil for all.
func (p *Proxier) healthAddrs() []netip.Addr {
	var out []netip.Addr
	all := 0
	for f, wild := range map[nft.Family]netip.Addr{nft.IPv4: netip.IPv4Unspecified(), nft.IPv6: netip.IPv6Unspecified()} {
		s := p.around.byFam[f]
		if s.config.NodePortAll {
			all++
			out = append(out, wild)
			continue
		}
		out = append(out, s.nodePorts...)
	}
	if all == len(nft.Families()) {
		return nil
	}
	slices.SortFunc(out, netip.Addr.Compare) // the listeners move when the list does
	return out
}
