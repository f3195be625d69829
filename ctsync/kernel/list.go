// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"syscall"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/internal/nl"
)

// Listing is the result of List.
type Listing struct {
	// Scanned is the number of entries that the kernel returned.
	Scanned int
	// Exact means that the table was not resized meanwhile: otherwise some entries may be missing or counted twice.
	Exact bool
}

// List shows the flows of both families whose destination was translated, as they come from the kernel: at no time is
// more than one datagram in memory (about 170 entries). begin is called before the first one, and again when the table was
// resized meanwhile and everything comes anew; after some attempts the last one counts. The Flow is valid during the
// call.
//
// netns is the descriptor of the network namespace, 0 for that of the calling thread. Needs CAP_NET_ADMIN there. A table
// of 1,000,000 entries takes about a second; it is read as a Syncer reads it, in stretches of less than a millisecond.
func List(ctx context.Context, netns int, begin func(), show func(*ctsync.Flow)) (l Listing, err error) {
	t, err := openTable(netns)
	if err != nil {
		return Listing{}, err
	}
	defer t.close()
	err = nl.Retry(ctx, func() (err error) {
		begin()
		l.Scanned, err = t.dump(ctsync.Query{}, func(flows []ctsync.Flow) error {
			for i := range flows {
				if flows[i].Translated() {
					show(&flows[i])
				}
			}
			return ctx.Err()
		})
		return err
	})
	l.Exact = err == nil
	if errors.Is(err, syscall.EINTR) {
		err = nil
	}
	return l, err
}
