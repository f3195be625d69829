// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package ctsync

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Listing is what List went through.
type Listing struct {
	// Scanned is the number of entries that the kernel returned.
	Scanned int
	// Exact says that the table was not resized meanwhile: otherwise some entries may be missing or counted twice.
	Exact bool
}

// List shows the flows of one family whose destination was translated, as they are streamed from the kernel: at no time are
// more than a datagram's in memory (about 170). begin is called before the first one, and again when the table was
// resized meanwhile and everything comes anew; after some tries what there is counts. The Flow is valid during the call.
//
// netns is the descriptor of the network namespace, 0 for that of the calling thread. Needs CAP_NET_ADMIN there. A table of
// 1,000,000 entries takes about a second; it is read as a Syncer reads it, without a long stretch in which a CPU receives no
// packets.
func List(ctx context.Context, netns int, ipv6 bool, begin func(), show func(*Flow)) (Listing, error) {
	k, err := openKernel(netns)
	if err != nil {
		return Listing{}, err
	}
	defer k.close()
	n, err := k.entries()
	if err != nil {
		return Listing{}, err
	}
	q := &query{family: unix.AF_INET, dnat: n <= maxFiltered}
	if ipv6 {
		q.family = unix.AF_INET6
	}
	var l Listing
	for range maxDumps {
		begin()
		l.Scanned, err = k.dump(q, func(flows []Flow) error {
			for i := range flows {
				if flows[i].Status&statusDstNAT != 0 {
					show(&flows[i])
				}
			}
			return ctx.Err()
		})
		if !errors.Is(err, errInterrupted) {
			l.Exact = err == nil
			return l, err
		}
	}
	return l, nil
}
