// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Options are what a Proxier works with.
type Options struct {
	Config *config.Config
	// NetNS is the descriptor of the network namespace to work in, 0 for that of the process.
	NetNS int
	// Families are those to keep a table for; none means both. Metrics and Health must be made for the same.
	Families []nft.Family
	// Metrics, Health and Listeners are told what happens. None may be nil.
	Metrics   *metrics.Metrics
	Health    *health.Proxy
	Listeners *health.Listeners
	// Recorder writes Events about objects; nil writes none.
	Recorder Recorder
	// Flows is told, after each commit, what is offered now; nil tells nobody.
	Flows Flows
	// Localhost is told, after each commit, which NodePorts to serve on loopback addresses; nil is none.
	Localhost Localhost
	// FirstSync is called once, after the first time that the tables were as they should be.
	FirstSync func()
}

// Recorder writes Events.
type Recorder interface {
	// Event is about a Service; uid may be empty.
	Event(object kube.Ref, uid string, reason, message string)
}

// dataplane is the kernel's side: kernel.Conn, or one that fails on purpose in a test.
type dataplane interface {
	Read(nft.Family) (*nft.Content, error)
	CommitAll([]*nft.Batch, func(kernel.Committed)) error
	PortID() uint32
}

// Proxier keeps the kernel's tables true to what the sources say. Make one with New and call Run once.
type Proxier struct {
	opt      Options
	families []nft.Family
	tracker  *tracker
	kicked   chan struct{}

	// What other goroutines tell the loop.
	tallies  tallies
	counting sync.Mutex // held while counters of connections are read
	mu       sync.Mutex
	drift    bool
	local    []netip.Addr
	links    links

	ignoring sync.Mutex
	ignored  [2]uint32 // the ports that the watch does not report; guarded by ignoring

	// What follows belongs to the goroutine of Run.
	kernel dataplane
	// second is another connection, so that both families can be compared with the kernel at once; nil is none.
	second  dataplane
	watch   *kernel.Watch
	around  surroundings
	index   *services.Index
	entries map[kube.Name]*entry // committed
	size    int                  // of all entries
	aside   map[kube.Name]*aside
	losses  map[kube.Name]string // told about each Service's frontends that others have
	tables  map[nft.Family]*table
	known   bool         // entries and tables are what the kernel has
	synced  bool         // at least once
	flowsAt surroundings // what Flows were told of
	// formerly is what the tables led to when we came, until Flows were told.
	formerly map[nft.Family][]ctsync.Change
	// localhostAt are the node's addresses that Localhost was told of.
	localhostAt nodeAddrs
	healths     health.Services
	noLocal     map[nft.Family]*noLocal
	// healthsAt are the addresses that the health check servers listen on.
	healthsAt []netip.Addr
	retry     backoff
	// retryAt is before when nothing is tried that failed, whatever happens meanwhile.
	retryAt time.Time
	repair  time.Time // when drift was last looked for
	// compared is when the tables were last read.
	compared time.Time
	// released is when memory was last given back.
	released time.Time
}

// table is what is known of one family's table.
type table struct {
	*nft.Table
	shared nft.Counter
	counts counts
	node   []nft.Element
	config nft.Config
}

// entry is what one Service asks of the dataplane in both families.
type entry struct {
	ports []services.Port
	size  int                        // in elements
	byKey map[portKey]*services.Port // made at need
}

// New returns a Proxier. Its Sink may be given to a source at once.
func New(opt Options) *Proxier {
	p := &Proxier{
		opt:      opt,
		kicked:   make(chan struct{}, 1),
		index:    services.NewIndex(),
		entries:  map[kube.Name]*entry{},
		aside:    map[kube.Name]*aside{},
		losses:   map[kube.Name]string{},
		tables:   map[nft.Family]*table{},
		healths:  health.Services{},
		formerly: map[nft.Family][]ctsync.Change{},
		tallies:  tallies{last: map[judgeKey]nft.DropCounter{}, sum: map[judgeKey]uint64{}},
		noLocal:  map[nft.Family]*noLocal{nft.IPv4: {}, nft.IPv6: {}},
	}
	if p.families = opt.Families; len(p.families) == 0 {
		p.families = nft.Families()
	}
	p.tracker = newTracker(func() {
		for _, f := range p.families {
			opt.Health.Queued(ipFamily(f))
		}
		p.kick()
	})
	return p
}

// Sink takes what the sources learn.
func (p *Proxier) Sink() kube.Sink { return p.tracker }

// kick makes the loop look again; it never blocks.
func (p *Proxier) kick() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and returns nil then; the tables stay as they are. It returns an error when the
// kernel cannot be reached at all. It needs CAP_NET_ADMIN.
func (p *Proxier) Run(ctx context.Context) error {
	first, err := kernel.Open(p.opt.NetNS)
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := kernel.Open(p.opt.NetNS)
	if err != nil {
		return err
	}
	defer second.Close()
	if p.watch, err = kernel.OpenWatch(p.opt.NetNS); err != nil {
		return err
	}
	defer p.watch.Close()
	return p.runOn(ctx, first, second)
}

// runOn is Run with the connections given. It ends when the loop or one of the watchers does.
func (p *Proxier) runOn(ctx context.Context, kernel, second dataplane) error {
	p.kernel, p.second = kernel, second
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchers := []func(context.Context) error{p.watchAddresses, p.watchAffinity}
	if p.watch != nil {
		if err := p.ignoreOurs(); err != nil {
			return err
		}
		watchers = append(watchers, func(ctx context.Context) error {
			return p.watch.Run(ctx, func(nft.Family) { p.suspect() })
		})
	}
	failed := make(chan error, len(watchers))
	for _, w := range watchers {
		go func() { failed <- w(ctx) }()
	}
	err := p.loop(ctx, failed)
	cancel()
	return err
}

// suspect notes that somebody else changed our tables.
func (p *Proxier) suspect() {
	p.mu.Lock()
	p.drift = true
	p.mu.Unlock()
	p.kick()
}

// loop waits for something to do, gathers what comes within the batch window, and does it.
func (p *Proxier) loop(ctx context.Context, failed <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if err != nil && ctx.Err() == nil {
				return err
			}
		case <-timer.C:
		case <-p.kicked:
			if !p.gather(ctx, last) {
				return nil
			}
		}
		next := p.round(ctx)
		last = time.Now()
		timer.Reset(next)
	}
}

// gather waits until the last round is as long ago as the batch window and the minimum period ask for, so that a change
// that comes alone goes at once, and those of a burst go together. It returns false when ctx ends.
func (p *Proxier) gather(ctx context.Context, last time.Time) bool {
	var wait time.Duration
	if !last.IsZero() {
		wait = max(p.opt.Config.Own.BatchWindow.Duration, p.opt.Config.MinSyncPeriod) - time.Since(last)
	}
	wait = max(wait, time.Until(p.retryAt))
	if wait <= 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// eagerRetry bounds for how long a failed sync is not tried again although something changed: that may be what helps, but
// each try reads the tables as a whole.
const eagerRetry = time.Second

// idle is when to look again although nothing was heard of. kube-proxy rewrites everything once an hour; we read
// and compare.
const idle = time.Hour

// round brings the kernel up to date and returns when to come again at the latest.
func (p *Proxier) round(ctx context.Context) time.Duration {
	if !p.tracker.complete() {
		return idle // the source kicks
	}
	log := klog.FromContext(ctx)
	drift := p.takeDrift()
	work := p.tracker.take()
	p.reportProblems(work.problems)
	err := p.apply(ctx, work)
	if err == nil {
		p.retry.reset()
		return min(p.nextAside(), drift)
	}
	p.known = false
	p.tracker.giveBack(work)
	p.countFailure(err)
	for _, f := range p.families { // also if nothing was queued: our tables may be gone
		p.opt.Health.Queued(ipFamily(f))
	}
	wait := p.retry.next(p.opt.Config.SyncPeriod)
	p.retryAt = time.Now().Add(min(wait, eagerRetry))
	log.Error(err, "Sync failed, will read the tables and try again", "services", len(work.services), "in", wait)
	return wait
}

// repairGap is how far apart looks at drift are at least, so that somebody who keeps changing our tables cannot
// keep us busy. It is half of the 100 ms in which a change is to be repaired.
const repairGap = 50 * time.Millisecond

// takeDrift makes the tables unknown if somebody changed them, or if the last comparison is too long ago. It returns
// when to come again: if the last look at a change was just now, soon.
func (p *Proxier) takeDrift() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.compared) >= idle {
		p.known = false
	}
	if !p.drift {
		return idle
	}
	if since := now.Sub(p.repair); since < repairGap {
		return repairGap - since
	}
	p.drift, p.known = false, false
	p.repair = now
	return idle
}

// apply commits a batch of work, by a comparison with the kernel if what it has is not known.
func (p *Proxier) apply(ctx context.Context, work pending) error {
	start := time.Now()
	p.markTaken(work)
	around := p.lookAround()
	p.opt.Health.SetNode(p.eligibility())
	full := !p.known || !p.sameConfig(around)
	if full || !around.node.equal(p.around.node) {
		p.everything(work.services)
	}
	p.around = around
	updates := p.prepare(ctx, work)
	var err error
	if full {
		err = p.resync(ctx, updates)
		p.compared = time.Now()
	} else {
		err = p.sync(ctx, updates, start)
	}
	if err != nil {
		return err
	}
	p.finish(ctx, work, updates, start, full)
	return nil
}

// eligibility is what health says of the node. Manifests need no Node object: there is nobody to remove the node.
func (p *Proxier) eligibility() health.Node {
	node, _ := p.tracker.cluster()
	if node == nil {
		return health.Node{Known: p.opt.Config.Manifests != ""}
	}
	return health.Node{Known: true, Deleting: node.Deleting, ScaledDown: node.ToBeDeleted}
}

// markTaken tells health that what was queued is being worked on.
func (p *Proxier) markTaken(work pending) {
	for _, f := range p.families {
		if !work.since.IsZero() {
			p.opt.Health.Taken(ipFamily(f))
			p.opt.Metrics.Family(ipFamily(f)).Queued(work.since)
		}
	}
}

func ipFamily(f nft.Family) v1.IPFamily {
	if f == nft.IPv4 {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// countFailure counts a failed sync in the family that it is about, or in both.
func (p *Proxier) countFailure(err error) {
	var op *kernel.OpError
	for _, f := range p.families {
		if !errors.As(err, &op) || op.Family == f {
			p.opt.Metrics.Family(ipFamily(f)).SyncFailed()
		}
	}
}

// ignoreOurs makes the watch ignore what we commit: any failure may have made the kernel's side open a new socket. Safe for
// concurrent use.
func (p *Proxier) ignoreOurs() error {
	if p.watch == nil {
		return nil
	}
	p.ignoring.Lock()
	defer p.ignoring.Unlock()
	now := [2]uint32{p.kernel.PortID()}
	if p.second != nil {
		now[1] = p.second.PortID()
	}
	if now == p.ignored {
		return nil
	}
	if err := p.watch.Ignore(now[:]...); err != nil { // 0, where there is no second, is the kernel's own port
		return err
	}
	p.ignored = now
	return nil
}

// commitAll carries out transactions one after the other, and removes from the list those that are done.
func (p *Proxier) commitAll(conn dataplane, batches []*nft.Batch, f nft.Family) error {
	err := p.ignoreOurs()
	if err == nil {
		err = errors.Join(conn.CommitAll(batches, func(c kernel.Committed) {
			p.opt.Metrics.Family(ipFamily(f)).Transaction(c.Took, c.Elements, c.Bytes)
		}), p.ignoreOurs())
	}
	if err != nil {
		return fmt.Errorf("commit to table %s %s: %w", f, nft.TableName, err)
	}
	return nil
}
