// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// ownPorts are the netlink ports of our own connections, whose transactions the watch ignores. Safe for concurrent use.
type ownPorts struct {
	mu    sync.Mutex
	watch *kernel.Watch // nil is none
	ports [2]uint32
}

// set makes a watch ignore our own transactions.
func (o *ownPorts) set(w *kernel.Watch) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watch = w
	if w == nil {
		return nil
	}
	return w.Ignore(o.ports[:]...)
}

// changedBy returns the program that last changed our tables, as far as that is known.
func (o *ownPorts) changedBy() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch == nil {
		return ""
	}
	return o.watch.By()
}

// update follows the ports of the connections: any failure may have made one open a new socket.
func (o *ownPorts) update(conns []dataplane) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var now [2]uint32 // 0, where there is no second connection, is the kernel's own port
	for i, c := range conns {
		now[i] = c.PortID()
	}
	if now == o.ports || o.watch == nil {
		o.ports = now
		return nil
	}
	if err := o.watch.Ignore(now[:]...); err != nil {
		return err
	}
	o.ports = now
	return nil
}

// watchTables calls changed when another program changes our tables, until ctx ends. It closes the watch. A watch that fails
// is opened again; what changed meanwhile is not known, so that changed is called then too.
func watchTables(ctx context.Context, netNS int, watch *kernel.Watch, own *ownPorts, changed func()) {
	var retry backoff
	for {
		err := own.set(watch)
		if err == nil {
			err = watch.Run(ctx, func(nft.Family) { changed() })
		}
		_ = own.set(nil)
		_ = watch.Close()
		for err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Changes of the tables by other programs are not noticed at once, will try again")
			if !sleep(ctx, retry.next(firstWatchRetry, watchRetry)) {
				return
			}
			if watch, err = kernel.OpenWatch(netNS); err == nil {
				changed()
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// watchInterfaces runs a watch again whenever it fails, until ctx ends.
func watchInterfaces(ctx context.Context, w *interfaceWatch) {
	var retry backoff
	for ctx.Err() == nil {
		if err := w.run(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Changes of the node's interfaces are not noticed, will try again")
			sleep(ctx, retry.next(firstWatchRetry, watchRetry))
		}
	}
}

// sleep waits, and returns false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
