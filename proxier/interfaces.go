// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"k8s.io/klog/v2"
)

// interfaces are the addresses and names of the node's interfaces.
type interfaces struct {
	addrs []netip.Addr // unmapped and sorted
	// byAddr and byAlias are the names of interfaces by address and by alternative or former name; nil unless a rule needs them.
	byAddr  map[netip.Addr]string
	byAlias map[string]string
}

func (i *interfaces) equal(o *interfaces) bool {
	return slices.Equal(i.addrs, o.addrs) && maps.Equal(i.byAddr, o.byAddr) && maps.Equal(i.byAlias, o.byAlias)
}

// interfaceWatch holds the interfaces as last listed. NodePorts follow addresses that come and go, and the rule of the
// masquerade subnet follows the name of its device. Safe for concurrent use.
type interfaceWatch struct {
	ns      netns.NsHandle // netns.None() for that of the process
	names   bool           // whether names of interfaces matter
	changed func()

	known map[string]int // the index of each name, former ones included; of list

	mu  sync.Mutex
	now interfaces
}

func newInterfaceWatch(netNS int, names bool, changed func()) *interfaceWatch {
	w := &interfaceWatch{ns: netns.None(), names: names, changed: changed, known: map[string]int{}}
	if netNS != 0 {
		w.ns = netns.NsHandle(netNS)
	}
	return w
}

func (w *interfaceWatch) current() interfaces {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// run follows the interfaces until ctx ends or the kernel cannot be reached. A notification is a trigger to list them again.
func (w *interfaceWatch) run(ctx context.Context) error {
	handle, err := w.open()
	if err != nil {
		return err
	}
	defer handle.Close()
	for ctx.Err() == nil {
		if err := w.follow(ctx, handle); err != nil {
			return err
		}
	}
	return nil
}

func (w *interfaceWatch) open() (*netlink.Handle, error) {
	open := func() (*netlink.Handle, error) { return netlink.NewHandleAt(w.ns) }
	if w.ns == netns.None() {
		open = func() (*netlink.Handle, error) { return netlink.NewHandle() }
	}
	handle, err := open()
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	return handle, nil
}

// listPause is how long to wait for more notifications before the interfaces are listed: where thousands of addresses come
// at once, each of them is a notification.
const listPause = 10 * time.Millisecond

// follow lists the interfaces after each notification. It returns without an error when ctx ends or notifications were lost.
func (w *interfaceWatch) follow(ctx context.Context, handle *netlink.Handle) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := func(err error) { // and the channel is closed
		klog.FromContext(ctx).V(4).Info("Notifications about interfaces were lost", "err", err)
	}
	var ns *netns.NsHandle
	if w.ns != netns.None() {
		ns = &w.ns
	}
	addrs, links := make(chan netlink.AddrUpdate, 64), make(chan netlink.LinkUpdate, 64)
	err := netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: lost, Namespace: ns})
	if err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer drain(cancel, addrs)
	if w.names {
		err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: lost, Namespace: ns})
		if err != nil {
			return fmt.Errorf("watch interfaces: %w", err)
		}
		defer drain(cancel, links)
	}
	for {
		listed, err := w.list(handle)
		if errors.Is(err, netlink.ErrDumpInterrupted) { // they changed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		w.set(listed)
		if !notified(ctx, addrs, links) {
			return nil
		}
	}
}

// notified waits for a notification, and takes those that follow within a pause. It returns false when ctx ends or a channel
// is closed.
func notified(ctx context.Context, addrs <-chan netlink.AddrUpdate, links <-chan netlink.LinkUpdate) bool {
	var over <-chan time.Time
	for {
		open := true
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case _, open = <-addrs:
		case _, open = <-links:
		}
		if !open {
			return false
		}
		if over == nil {
			over = time.After(listPause)
		}
	}
}

// drain ends a subscription: its sender must not wait for us for ever.
func drain[T any](cancel func(), updates <-chan T) {
	cancel()
	go func() {
		for range updates {
		}
	}()
}

// list lists the interfaces once.
func (w *interfaceWatch) list(h *netlink.Handle) (out interfaces, err error) {
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return out, fmt.Errorf("list addresses: %w", err)
	}
	names := map[int]string{}
	if w.names {
		links, err := h.LinkList()
		if err != nil {
			return out, fmt.Errorf("list interfaces: %w", err)
		}
		out.byAddr, out.byAlias = map[netip.Addr]string{}, map[string]string{}
		for _, l := range links {
			a := l.Attrs()
			names[a.Index] = a.Name
			for _, alias := range a.AltNames {
				out.byAlias[alias] = a.Name
			}
			w.known[a.Name] = a.Index
		}
		for was, index := range w.known { // a renamed device stays the configured one until another takes the name, as in routing
			if names[index] == "" {
				delete(w.known, was)
			} else if names[index] != was && out.byAlias[was] == "" {
				out.byAlias[was] = names[index]
			}
		}
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		out.addrs = append(out.addrs, ip.Unmap())
		if w.names {
			out.byAddr[ip.Unmap()] = names[a.LinkIndex]
		}
	}
	slices.SortFunc(out.addrs, netip.Addr.Compare)
	out.addrs = slices.Compact(out.addrs)
	return out, nil
}

// listOnce lists the interfaces for a caller that does not follow them.
func (w *interfaceWatch) listOnce() (out interfaces, err error) {
	handle, err := w.open()
	if err != nil {
		return out, err
	}
	defer handle.Close()
	for range listAttempts {
		if out, err = w.list(handle); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// listAttempts bounds how often a list that changes meanwhile is read anew.
const listAttempts = 10

// set takes the interfaces as they are now.
func (w *interfaceWatch) set(now interfaces) {
	w.mu.Lock()
	changed := !now.equal(&w.now)
	w.now = now
	w.mu.Unlock()
	if changed {
		w.changed()
	}
}
