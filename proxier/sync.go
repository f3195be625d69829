// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// update is what a batch does about one Service.
type update struct {
	name       kube.Name
	prev, next *entry // committed before, and wanted; nil where there is none
	out        services.Output
	service    *kube.Service
	refused    bool // by the kernel, so that next is prev
}

// port returns the port of an entry that is what another is in its entry, nil if there is none.
func (e *entry) port(like *services.Port) *services.Port {
	if e == nil {
		return nil
	}
	if len(e.ports) > fewPorts {
		if e.byKey == nil {
			e.byKey = make(map[portKey]*services.Port, len(e.ports))
			for i := range e.ports {
				e.byKey[keyOf(&e.ports[i])] = &e.ports[i]
			}
		}
		return e.byKey[keyOf(like)]
	}
	for i := range e.ports {
		if p := &e.ports[i]; keyOf(p) == keyOf(like) {
			return p
		}
	}
	return nil
}

// fewPorts is up to how many ports an entry is searched one by one: nearly all have fewer.
const fewPorts = 16

// portKey is what tells the ports of an entry apart.
type portKey struct {
	family    nft.Family
	name      string
	handedOff bool
}

func keyOf(p *services.Port) portKey { return portKey{p.Family, p.Name, p.HandedOff} }

// dataplaneOf returns the Service of a port, nil for none.
func dataplaneOf(p *services.Port) *nft.Service {
	if p == nil {
		return nil
	}
	return &p.Service
}

// everything adds all Services, those of the sources and those committed, to a batch.
func (p *Proxier) everything(batch map[kube.Name]bool) {
	for _, n := range p.tracker.names() {
		batch[n] = true
	}
	for n := range p.entries {
		batch[n] = true
	}
}

// prepare builds the Services of a batch, and those whose frontends are granted or withdrawn because of them:
// these join the batch.
func (p *Proxier) prepare(ctx context.Context, work pending) []*update {
	for _, n := range p.dueAside() {
		work.services[n] = true
	}
	var affected []kube.Name
	for n := range work.services {
		svc, endpoints := p.tracker.service(n)
		if svc == nil || tooMany(&p.opt.Config.Own, svc, endpoints) != nil {
			affected = append(affected, p.index.Remove(n)...)
		} else {
			affected = append(affected, p.index.Set(n, svc.Created, services.Claims(svc))...)
		}
	}
	for _, n := range affected {
		work.services[n] = true
	}
	updates := make([]*update, 0, len(work.services))
	for n := range work.services {
		updates = append(updates, p.update(ctx, n))
	}
	updates = p.fit(ctx, updates)
	// By name, so that equal input makes equal transactions.
	slices.SortFunc(updates, func(a, b *update) int { return a.name.Compare(b.name) })
	return updates
}

// update builds one Service.
func (p *Proxier) update(ctx context.Context, n kube.Name) *update {
	svc, endpoints := p.tracker.service(n)
	u := &update{name: n, prev: p.entries[n], service: svc}
	if svc == nil {
		delete(p.losses, n)
		return u
	}
	if err := tooMany(&p.opt.Config.Own, svc, endpoints); err != nil {
		p.leaveOut(ctx, u, asideTooLarge, 0, err)
		return u
	}
	u.out = services.Build(services.Input{
		Service: svc, Slices: endpoints, Node: services.Node(p.around.node),
		Options: buildOptions(&p.opt.Config.Own, &p.around),
		Lost:    p.index.Lost(n),
	})
	p.reportLosses(svc)
	size := u.out.Size()
	if err := tooLarge(&p.opt.Config.Own, size); err != nil {
		p.leaveOut(ctx, u, asideTooLarge, size, err)
		return u
	}
	u.next = &entry{ports: u.out.Ports, size: size}
	for i := range u.next.ports {
		port := &u.next.ports[i]
		if was := u.prev.port(port); was != nil {
			port.Cluster = nft.AssignSlots(was.Cluster, port.Cluster)
			port.Local = nft.AssignSlots(was.Local, port.Local)
		}
		port.AffinitySize = uint32(p.opt.Config.Own.AffinityMapSize)
	}
	return u
}

// buildOptions are the operator's choices.
func buildOptions(own *config.Own, around *surroundings) services.Options {
	return services.Options{FailOpenSourceRanges: !own.StrictSourceRanges, CountConnections: own.CountConnections, Beyond: around.beyond}
}

// sync commits what the updates change, work on which began at start. The tables are known.
func (p *Proxier) sync(ctx context.Context, updates []*update, start time.Time) error {
	p.announce(updates)
	tx := transaction{}
	for _, f := range p.families {
		tx.families = append(tx.families, p.plan(f, updates))
	}
	if err := p.carryOut(&tx); err != nil {
		for _, part := range tx.families {
			part.table.shared.Undo(part.raw)
			part.table.Discard()
		}
		return err
	}
	for _, part := range tx.families {
		part.table.Committed()
		part.table.node = p.around.byFam[part.family].elements
		part.table.counts.add(p.opt.Metrics.Family(ipFamily(part.family)), part.change)
	}
	if n := tx.elements(); n > 0 || len(updates) > 0 {
		klog.FromContext(ctx).V(2).Info("Synced", "services", len(updates), "elements", n, "took", time.Since(start))
	}
	return nil
}

// transaction is what one sync sends.
type transaction struct{ families []*familyPart }

// familyPart is one family's part of a transaction.
type familyPart struct {
	family  nft.Family
	table   *table
	chains  nft.Batch  // what the elements refer to
	raw     nft.Change // before shared elements were counted
	change  nft.Change
	release []string // sticky views out of use
}

func (t *transaction) elements() (n int) {
	for _, part := range t.families {
		n += part.change.Len()
	}
	return n
}

// plan works out one family's part. Shared elements are counted here; sync takes that back on failure.
func (p *Proxier) plan(f nft.Family, updates []*update) *familyPart {
	part := &familyPart{family: f, table: p.tables[f]}
	part.raw = nft.DiffElements(part.table.node, p.around.byFam[f].elements)
	for _, u := range updates {
		for i := range u.nextPorts() {
			if next := &u.next.ports[i]; next.Family == f {
				part.table.Number(&next.Service)
				part.table.Require(&part.chains, &next.Service)
				part.add(nft.Diff(dataplaneOf(u.prev.port(next)), &next.Service))
				part.releaseUnused(u.prev.port(next), next)
			}
		}
		for i := range u.prevPorts() {
			if prev := &u.prev.ports[i]; prev.Family == f && u.next.port(prev) == nil {
				part.add(nft.Diff(&prev.Service, nil))
				part.releaseUnused(prev, nil)
			}
		}
	}
	part.change = part.table.shared.Apply(part.raw)
	return part
}

func (u *update) nextPorts() []services.Port {
	if u.next == nil {
		return nil
	}
	return u.next.ports
}

func (u *update) prevPorts() []services.Port {
	if u.prev == nil {
		return nil
	}
	return u.prev.ports
}

func (p *familyPart) add(c nft.Change) {
	p.raw.Delete = append(p.raw.Delete, c.Delete...)
	p.raw.Add = append(p.raw.Add, c.Add...)
}

// releaseUnused notes the sticky views that prev had and next has not.
func (p *familyPart) releaseUnused(prev, next *services.Port) {
	if prev == nil {
		return
	}
	var kept []string
	if next != nil {
		kept = next.AffinityOwners()
	}
	for _, owner := range prev.AffinityOwners() {
		if !slices.Contains(kept, owner) {
			p.release = append(p.release, owner)
		}
	}
}

// carryOut commits a transaction: as one if it is small, both families together; in safe stages otherwise.
func (p *Proxier) carryOut(t *transaction) error {
	if t.elements() <= nft.ChunkSize {
		return p.carryOutAtOnce(t)
	}
	for _, part := range t.families {
		batches := []*nft.Batch{&part.chains}
		for _, c := range nft.Stage(part.change, nft.ChunkSize) {
			b := &nft.Batch{}
			b.Change(part.family, c)
			batches = append(batches, b)
		}
		last := &nft.Batch{}
		part.table.Release(last, part.release)
		if err := p.commitAll(p.kernel, append(batches, last), part.family); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxier) carryOutAtOnce(t *transaction) error {
	b := &nft.Batch{}
	for _, part := range t.families {
		b.Append(&part.chains)
		b.Change(part.family, part.change)
		part.table.Release(b, part.release)
	}
	return p.commitAll(p.kernel, []*nft.Batch{b}, nft.IPv4)
}

// finish remembers what was committed, and tells everybody.
func (p *Proxier) finish(ctx context.Context, work pending, updates []*update, start time.Time, full bool) {
	p.countNoLocal(updates)
	for _, u := range updates {
		p.size += u.next.length() - p.entries[u.name].length()
		if u.next == nil {
			delete(p.entries, u.name)
		} else {
			p.entries[u.name] = u.next
		}
	}
	p.known = true
	p.settleAside(updates)
	p.tellFlows(updates)
	p.tellLocalhost(updates)
	p.sweep(ctx)
	p.tellHealth(updates)
	p.measure(work, start, full)
	if !p.synced {
		p.synced = true
		if p.opt.FirstSync != nil {
			p.opt.FirstSync()
		}
	}
	if full { // what FirstSync let go of too
		p.releaseMemory()
	}
}

// releaseGap is how far apart releases of memory are at least: each costs a garbage collection.
const releaseGap = 10 * time.Second

// releaseMemory gives back to the system what a comparison with the kernel took: the elements of all Services and
// their encoding, twice what is kept.
func (p *Proxier) releaseMemory() {
	if time.Since(p.released) < releaseGap {
		return
	}
	p.released = time.Now()
	go debug.FreeOSMemory()
}

// sweep deletes the chains that a commit released. They are not in the way, so that a failure is for next time.
func (p *Proxier) sweep(ctx context.Context) {
	for _, f := range p.families {
		b := &nft.Batch{}
		if !p.tables[f].Sweep(b) {
			continue
		}
		if err := p.commitAll(p.kernel, []*nft.Batch{b}, f); err != nil {
			p.tables[f].Discard()
			p.opt.Metrics.Family(ipFamily(f)).CleanupFailed()
			klog.FromContext(ctx).V(2).Info("Unused chains could not be deleted yet", "family", f, "err", err)
			continue
		}
		p.tables[f].Committed()
	}
}

// tellHealth brings the health check servers up to date.
func (p *Proxier) tellHealth(updates []*update) {
	changed := false
	for _, u := range updates {
		name := types.NamespacedName{Namespace: u.name.Namespace, Name: u.name.Name}
		want, had := health.Service{Port: u.out.HealthCheckNodePort, LocalEndpoints: u.out.LocalReady}, p.healths[name]
		if want.Port == 0 {
			want = health.Service{}
		}
		if want == had {
			continue
		}
		changed = true
		if p.healths[name] = want; want.Port == 0 {
			delete(p.healths, name)
		}
	}
	addrs := p.healthAddrs()
	if changed || !slices.Equal(addrs, p.healthsAt) {
		p.healthsAt = addrs
		p.opt.Listeners.Sync(p.healths, addrs)
	}
}

// measure feeds the metrics after a successful sync.
func (p *Proxier) measure(work pending, start time.Time, full bool) {
	now := time.Now()
	m := p.opt.Metrics
	m.ServiceChanges(work.serviceChanges, 0)
	m.EndpointChanges(work.endpointChanges, 0)
	for _, f := range p.families {
		family := ipFamily(f)
		p.opt.Health.Synced(family)
		m.Family(family).Synced(metrics.Synced{Full: full, Took: now.Sub(start), At: now})
		for _, t := range work.triggers {
			m.Family(family).NetworkProgrammed(now.Sub(t))
		}
	}
}
