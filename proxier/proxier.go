// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// Options are what a Proxier works with.
type Options struct {
	Config *config.Config
	// NetNS is the descriptor of the network namespace to work in, 0 for that of the process.
	NetNS int
	// Families are those to keep a table for; none means both. Metrics and Health must be made for the same.
	Families []nft.Family
	// Metrics, Health and Listeners report what happens. None may be nil.
	Metrics   *metrics.Metrics
	Health    *health.Proxy
	Listeners *health.Listeners
	// Recorder writes Events about objects; nil writes none.
	Recorder Recorder
	// Flows gets, after each commit, what is offered now; nil is none.
	Flows Flows
	// Localhost gets, after each commit, the NodePorts to serve on loopback addresses; nil is none.
	Localhost Localhost
	// APIServer returns the remote addresses of the proxy's own connections to the API server: no Service gets them. nil is
	// none. It is called in each pass and must not block.
	APIServer func() []netip.AddrPort
	// FirstSync is called once, after the first pass that made the tables what they are to be.
	FirstSync func()
}

// Recorder writes Events.
type Recorder interface {
	// Event is about a Service; uid may be empty.
	Event(object kube.Ref, uid string, reason, message string)
}

// Proxier keeps the tables of the kernel equal to what the sources ask for. Make one with New and call Run once.
type Proxier struct {
	*counters // of packets and connections
	opt       Options
	families  []nft.Family
	tracker   *tracker
	kicked    chan struct{}
	links     *interfaceWatch
	drift     atomic.Bool // another program has changed our tables

	// What follows belongs to the goroutine of Run.
	planner   *planner
	tables    *tables
	report    *reporter
	flows     flowsListener
	localhost localhostListener
	ports     portsListener
	timing    timing
}

// timing is when the loop does what.
type timing struct {
	retry    backoff
	retryAt  time.Time      // before that nothing is tried that failed, whatever happens meanwhile
	repairs  *rate.Limiter  // of comparisons
	repaired time.Time      // when the last of them began
	verifyAt time.Time      // when the tables are to be compared at the latest
	verify   bool           // because the last comparison wrote something, or one before it may have
	released time.Time      // when memory was last given back
	warned   rate.Sometimes // of a repair
	endless  rate.Sometimes // of repairs without end
	warn     func()         // reports the latter
	synced   bool           // at least once
}

// New returns a Proxier. Its Sink may be given to a source at once.
func New(opt Options) *Proxier {
	families := opt.Families
	if len(families) == 0 {
		families = nft.Families()
	}
	report := newReporter(opt.Metrics, opt.Recorder, families)
	p := &Proxier{
		counters:  newCounters(opt.NetNS, families, opt.Metrics),
		opt:       opt,
		families:  families,
		kicked:    make(chan struct{}, 1),
		tables:    newTables(families, opt.Metrics),
		report:    report,
		flows:     flowsListener{flows: opt.Flows},
		localhost: localhostListener{localhost: opt.Localhost},
		ports:     portsListener{listeners: opt.Listeners, wanted: health.Services{}},
		timing: timing{repairs: rate.NewLimiter(repairs, repairBurst), warned: rate.Sometimes{First: 1, Interval: time.Minute},
			endless: rate.Sometimes{First: 1, Interval: time.Minute}, warn: func() { report.endlessRepairs(opt.Config.NodeName) }},
	}
	p.links = newInterfaceWatch(opt.NetNS, opt.Config.Own.Routing.Masquerade.Enabled, func() { kick(p.kicked) })
	p.tracker = newTracker(func() {
		for _, f := range families {
			opt.Health.Queued(ipFamily(f))
		}
		kick(p.kicked)
	}, p.report.changes)
	p.planner = newPlanner(&opt.Config.Own, p.tracker, p.report)
	return p
}

// Sink takes the objects of the sources.
func (p *Proxier) Sink() kube.Sink { return p.tracker }

// Run works until ctx ends, and returns nil then; the tables stay as they are. It returns an error when the kernel cannot
// be reached at the start. It needs CAP_NET_ADMIN.
func (p *Proxier) Run(ctx context.Context) error {
	var conns []dataplane
	for range p.families {
		conn, err := kernel.Open(p.opt.NetNS)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	watch, err := kernel.OpenWatch(p.opt.NetNS)
	if err != nil {
		return err
	}
	p.runOn(ctx, watch, conns...)
	return nil
}

// runOn is Run with the connections given. The watchers have ended when it returns.
func (p *Proxier) runOn(ctx context.Context, watch *kernel.Watch, conns ...dataplane) {
	p.tables.conns = conns
	ctx, cancel := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	changed := func() {
		p.drift.Store(true)
		kick(p.kicked)
	}
	own := p.tables.own // to be ignored from the first transaction on
	if err := errors.Join(own.update(conns), own.set(watch)); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot distinguish own transactions from those of other programs; the tables are compared more often")
	}
	watchers.Go(func() { watchTables(ctx, p.opt.NetNS, watch, p.tables.own, changed) })
	watchers.Go(func() { watchInterfaces(ctx, p.links) })
	watchers.Go(func() { p.sampleAffinity(ctx) })
	p.loop(ctx)
}

// loop waits for something to do, gathers what comes within the batch window, and does it.
func (p *Proxier) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.kicked:
			// A change that comes alone goes at once, and those of a burst go together.
			wait := max(time.Until(p.timing.retryAt), 0)
			if !last.IsZero() {
				wait = max(wait, max(p.opt.Config.Own.BatchWindow.Duration, p.opt.Config.MinSyncPeriod)-time.Since(last))
			}
			if wait > 0 && !sleep(ctx, wait) {
				return
			}
		}
		next := p.round(ctx)
		last = time.Now()
		timer.Reset(next)
	}
}

// round brings the kernel up to date and returns when to come again at the latest.
func (p *Proxier) round(ctx context.Context) time.Duration {
	if !p.tracker.complete() {
		return idle // the source kicks
	}
	now := time.Now()
	cause, wait := p.timing.comparison(now, &p.drift, p.tables.known)
	if cause == "" && !p.tables.known {
		return wait // and without a known state there is nothing to change
	}
	work := p.tracker.take()
	p.report.problems(work.problems, func(n kube.Name) string {
		if svc, _ := p.tracker.service(n); svc != nil {
			return svc.UID
		}
		return ""
	})
	err := p.pass(ctx, &work, cause)
	if err == nil {
		p.timing.retry.reset()
		now = time.Now()
		return min(wait, p.planner.next(now), max(p.timing.verifyAt.Sub(now), 0))
	}
	p.tables.known = false
	p.tracker.giveBack(work)
	p.report.failed(err)
	for _, f := range p.families { // also if nothing was queued: our tables may be gone
		p.opt.Health.Queued(ipFamily(f))
	}
	wait = p.timing.retry.next(firstRetry, p.opt.Config.SyncPeriod)
	p.timing.retryAt = time.Now().Add(min(wait, eagerRetry))
	klog.FromContext(ctx).Error(err, "Sync failed, will read the tables and try again", "services", len(work.services), "in", wait)
	return wait
}

// The causes of a comparison.
const (
	causeStart   = "start"
	causeTime    = "time"    // the last one wrote something, or is long ago
	causeDrift   = "drift"   // another program changed our tables
	causeFailure = "failure" // the state of the tables is not known
	causeRules   = "rules"   // others are wanted
)

// comparison returns why this pass is to compare the tables with the kernel, "" if it is not, and when to look again.
func (t *timing) comparison(now time.Time, drift *atomic.Bool, known bool) (cause string, wait time.Duration) {
	switch {
	case !t.synced:
		cause = causeStart
	case !known:
		cause = causeFailure
	case drift.Load():
		cause = causeDrift
	case !now.Before(t.verifyAt):
		return causeTime, idle
	default:
		return "", idle
	}
	if gap := repairGap - now.Sub(t.repaired); gap > 0 && cause == causeDrift {
		return "", gap
	}
	reserved := t.repairs.ReserveN(now, 1)
	if wait := reserved.DelayFrom(now); wait > 0 && cause != causeStart {
		reserved.CancelAt(now)
		t.endless.Do(t.warn)
		return "", wait
	}
	t.repaired = now
	drift.Store(false)
	return cause, idle
}

// pass plans and commits a batch of work, by a comparison with the kernel if there is a cause for one.
func (p *Proxier) pass(ctx context.Context, work *pending, cause string) error {
	start := time.Now()
	p.markTaken(work)
	interfaces := p.links.current()
	var connections []netip.AddrPort
	if p.opt.APIServer != nil {
		connections = p.opt.APIServer()
	}
	node := p.tracker.state(p.opt.Config, interfaces, connections)
	eligible, missing := p.eligibility()
	p.opt.Health.SetNode(eligible)
	if cause == causeTime && !p.timing.verify || !p.timing.synced || !node.sameServices(&p.planner.state) {
		p.planner.everything(work.services)
	}
	p.planner.state = node
	p.report.node(&node, missing)
	updates := p.planner.plan(ctx, work.services)
	for _, u := range updates {
		work.services[u.name] = true // to be given back if the pass fails
	}
	done := &isolation{tables: p.tables, planner: p.planner, node: &node}
	done.committed = func(updates []*update) { p.committed(updates, done, interfaces.addrs) }
	p.flows.announce(updates)
	if cause == "" && !p.tables.sameConfig(&node) {
		cause = causeRules
	}
	var err error
	if cause != "" {
		err = p.compare(ctx, done, updates, cause)
	} else {
		err = done.change(ctx, updates)
	}
	if err != nil {
		return err
	}
	p.tables.sweep(ctx)
	p.finish(ctx, work, updates, start, cause != "", done.elements)
	return nil
}

// markTaken reports health that what was queued is being worked on.
func (p *Proxier) markTaken(work *pending) {
	if work.since.IsZero() {
		return
	}
	for _, f := range p.families {
		p.opt.Health.Taken(ipFamily(f))
		p.opt.Metrics.Family(ipFamily(f)).Queued(work.since)
	}
}

// eligibility is what load balancers are to know of the node, and whether it has no Node object. With manifests it needs none.
func (p *Proxier) eligibility() (h health.Node, missing bool) {
	node, gone, _ := p.tracker.cluster()
	if node == nil {
		return health.Node{Known: p.opt.Config.Manifests != ""}, true
	}
	return health.Node{Known: !gone, Deleting: node.Deleting, ScaledDown: node.ToBeDeleted}, gone
}

// compare makes the tables what they are to be, whatever the kernel has.
func (p *Proxier) compare(ctx context.Context, done *isolation, updates []*update, cause string) error {
	start := time.Now()
	err := done.compare(ctx, p.planner.withKept(updates), !p.timing.synced)
	if err != nil {
		return err
	}
	now := time.Now()
	p.timing.verifyAt, p.timing.verify = now.Add(idle), done.wrote > 0 || cause == causeFailure
	if p.timing.verify {
		p.timing.verifyAt = now.Add(max(verifyAfter, verifyShare*now.Sub(start)))
	}
	if done.wrote > 0 && cause == causeDrift {
		p.timing.warned.Do(func() {
			klog.FromContext(ctx).Info("Another program changed the tables of nftproxy; they are repaired", "program", p.tables.own.changedBy(), "transactions", done.wrote, "elements", done.elements)
		})
	}
	return nil
}

// committed passes on what the kernel has from now on.
func (p *Proxier) committed(updates []*update, done *isolation, local []netip.Addr) {
	changed := slices.DeleteFunc(slices.Clone(updates), func(u *update) bool { return u.kept && u.next == u.prev })
	p.planner.remember(changed)
	p.report.countNoLocal(changed)
	p.flows.committed(changed, done.node, slices.Concat(p.tables.before[0], p.tables.before[1]), done.repaired)
	done.repaired = false
	p.localhost.committed(changed, done.node, local, p.planner.committed)
	p.ports.committed(changed, done.node)
}

// finish ends a successful pass.
func (p *Proxier) finish(ctx context.Context, work *pending, updates []*update, start time.Time, compared bool, elements int) {
	log := klog.FromContext(ctx)
	p.report.synced(work, start, compared)
	for _, f := range p.families {
		p.opt.Health.Synced(ipFamily(f))
	}
	if !compared && (elements > 0 || len(updates) > 0) {
		log.V(2).Info("Synced", "services", len(updates), "elements", elements, "took", time.Since(start))
	}
	if !p.timing.synced {
		p.timing.synced = true
		p.tables.before = [2][]ctsync.Change{}
		log.Info("Serving", "services", len(p.planner.committed), "endpoints", p.tracker.endpoints(), "setAside", len(p.planner.aside), "took", time.Since(start))
		if p.opt.FirstSync != nil {
			p.opt.FirstSync()
		}
	}
	if compared && time.Since(p.timing.released) >= releaseGap { // what FirstSync let go of too
		p.timing.released = time.Now()
		// A comparison took the elements of all Services and their encoding, twice what is kept.
		go debug.FreeOSMemory()
	}
}

// releaseGap is how far apart releases of memory are at least: each costs a garbage collection.
const releaseGap = 10 * time.Second
