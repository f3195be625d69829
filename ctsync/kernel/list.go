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

// List shows the flows of both families whose destination was translated, as they come from the kernel: at no time is
// more than one datagram in memory (about 170 entries). It returns the number of entries that the kernel returned, and
// whether the table was not resized meanwhile: otherwise some entries may be missing or counted twice. begin is called
// before the first flow, and again when everything comes anew after a resize. The Flow is valid during the call.
//
// netns is the descriptor of the network namespace, 0 for that of the calling thread. Needs CAP_NET_ADMIN there. A table
// of 1,000,000 entries takes about a second; it is read in stretches of less than a millisecond, as a Syncer reads it.
func List(ctx context.Context, netns int, begin func(), show func(*ctsync.Flow)) (scanned int, exact bool, err error) {
	t, err := openTable(netns)
	if err != nil {
		return 0, false, err
	}
	defer t.close()
	err = nl.Retry(ctx, func() (err error) {
		begin()
		scanned, err = t.dump(ctsync.Query{}, func(flows []ctsync.Flow) error {
			for i := range flows {
				if flows[i].Translated() {
					show(&flows[i])
				}
			}
			return ctx.Err()
		})
		return err
	})
	if errors.Is(err, syscall.EINTR) {
		return scanned, false, nil
	}
	return scanned, err == nil, err
}
