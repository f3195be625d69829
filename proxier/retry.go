// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import "time"

// These are all retry policies of the loop.
const (
	// firstRetry is the pause after the first failed sync: most failures are a transaction that another program's overtook.
	// It doubles up to the sync period.
	firstRetry = 20 * time.Millisecond
	// eagerRetry bounds for how long a failed sync is not tried again although objects change: a change may be what helps,
	// but each try reads the tables as a whole.
	eagerRetry = time.Second
	// refusedRetry is the longest pause between two tries of a Service that the kernel refused.
	refusedRetry = 5 * time.Minute
	// firstWatchRetry and watchRetry are the shortest and the longest pause before a watch that failed, for want of memory or
	// descriptors, is opened again.
	firstWatchRetry, watchRetry = 100 * time.Millisecond, 30 * time.Second

	// idle is how long the tables are not compared although there is no sign of a change. kube-proxy rewrites everything
	// once an hour.
	idle = time.Hour
	// repairGap is how far apart two repairs are at least: half of the 100 ms in which a change by another program is to be
	// repaired.
	repairGap = 50 * time.Millisecond
	// repairs and repairBurst bound the comparisons that changes by other programs and failures cause: after a burst, one
	// in a second. In between changes of objects are committed without a comparison.
	repairs, repairBurst = 1, 20
	// verifyAfter and verifyShare say when a comparison that wrote something is followed by another: the kernel lists a hash
	// table that it resizes incompletely, which it does within some 10 ms of many additions. The share keeps comparisons
	// of a large table from taking more than a tenth of the time.
	verifyAfter, verifyShare = 2 * time.Second, 10

	// largeService is the estimated number of elements from which on a Service has a time budget: it takes some 5 ms to
	// build. buildShare is the part of the time that its builds take at most, as a divisor.
	largeService, buildShare = 20_000, 5
)

// backoff doubles a pause from try to try. The zero value is ready for use.
type backoff struct{ wait time.Duration }

// next returns the pause before the next try.
func (b *backoff) next(first, limit time.Duration) time.Duration {
	b.wait = min(max(2*b.wait, first), limit)
	return b.wait
}

func (b *backoff) reset() { b.wait = 0 }

// kick wakes the receiver of a channel of length one; it never blocks.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
