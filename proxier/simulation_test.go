// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/e2e/nftmodel"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

var (
	simSeeds  = flag.Int("simulate.seeds", 0, "number of seeds of the simulation; 0 is what fits in some ten seconds")
	simFaults = flag.Int("simulate.faults", 10, "faults in percent of the calls of the kernel")
	simScript = flag.String("simulate.script", "", "seed and steps of one run, as a violation prints them")
)

// TestSimulation plays random histories through the production code, from the sink of the sources to the transactions: objects
// that come, change, collide and go, restarts at any transaction, edits of our tables by other hands, and a kernel (package
// nftmodel) that refuses, loses acknowledgements and lists tables incompletely. After each step the invariants of docs/reliability.md
// hold. A violation prints the shortest script that shows it, which -simulate.script plays again.
func TestSimulation(t *testing.T) {
	klog.SetLogger(logr.Discard())
	t.Cleanup(klog.ClearLogger)
	synctest.Test(t, func(t *testing.T) {
		lab := newSimLab(t)
		if *simScript != "" {
			seed, steps := parseScript(t, *simScript)
			if err := lab.run(seed, steps, t.Logf); err != nil {
				t.Fatal(err)
			}
			return
		}
		first, n := uint64(1), *simSeeds
		if s, err := strconv.ParseUint(os.Getenv("NFTPROXY_SEED"), 10, 64); err == nil {
			first = s
		} else if n == 0 {
			first = uint64(os.Getpid())<<20 + 1
		}
		if n == 0 {
			n = 300
		}
		t.Logf("NFTPROXY_SEED=%d, %d seeds, %d%% faults", first, n, *simFaults)
		for seed := first; seed < first+uint64(n); seed++ {
			steps := lab.steps(seed)
			err := lab.run(seed, steps, func(string, ...any) {})
			if err == nil {
				continue
			}
			steps, err = lab.shrink(seed, steps, err)
			t.Fatalf("%v\nplay it again: go test ./proxier -run TestSimulation -simulate.script %s", err, formatScript(seed, steps))
		}
		t.Logf("%d steps, %d transactions, %d of them with a fault; %d comparisons; %d edits by other hands, %d restarts",
			lab.total.steps, lab.total.commits, lab.total.faults, lab.total.reads, lab.total.edits, lab.total.restarts)
		if lab.total.commits == 0 || lab.total.faults == 0 && *simFaults > 0 {
			t.Error("the simulation meets nothing")
		}
	})
}

// simLab is what all runs share, because it is expensive to make.
type simLab struct {
	metrics   *metrics.Metrics
	health    *health.Proxy
	listeners *health.Listeners
	total     struct{ steps, commits, faults, reads, edits, restarts int }
}

func newSimLab(t *testing.T) *simLab {
	l := &simLab{
		metrics: metrics.New(v1.IPv4Protocol, v1.IPv6Protocol),
		health:  health.New(time.Minute, time.Now, v1.IPv4Protocol, v1.IPv6Protocol),
	}
	l.listeners = health.NewListeners(l.health, func(types.NamespacedName, error) {})
	t.Cleanup(func() { l.listeners.Close() })
	return l
}

// stepKind is one kind of thing that happens.
type stepKind int

const (
	stepService stepKind = iota // a Service comes or changes
	stepSlice                   // its endpoints change
	stepGone                    // a Service or slice goes
	stepRepeat                  // an object is delivered again
	stepNode                    // the Node object comes, changes or goes
	stepCIDR                    // a ServiceCIDR comes or goes
	stepEdit                    // another program edits our table
	stepFlush                   // another program flushes the ruleset
	stepRestart                 // the proxy starts anew, perhaps in the middle of a change
	stepTime                    // time passes
	numSteps
)

func (k stepKind) String() string {
	return [...]string{"service", "slice", "gone", "repeat", "node", "cidr", "edit", "flush", "restart", "time"}[k]
}

// steps are the indices of a whole run: what each does follows from the seed and its index alone, so that others can be left
// out.
func (l *simLab) steps(seed uint64) []int {
	n := 8 + rand.New(rand.NewPCG(seed, 1<<32)).IntN(25)
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func formatScript(seed uint64, steps []int) string {
	return fmt.Sprintf("%d:%s", seed, strings.Trim(strings.ReplaceAll(fmt.Sprint(steps), " ", ","), "[]"))
}

func parseScript(t *testing.T, s string) (seed uint64, steps []int) {
	head, tail, _ := strings.Cut(s, ":")
	seed, err := strconv.ParseUint(head, 10, 64)
	for _, f := range strings.Split(tail, ",") {
		i, e := strconv.Atoi(f)
		err = errors.Join(err, e)
		steps = append(steps, i)
	}
	if err != nil {
		t.Fatal(err)
	}
	return seed, steps
}

// shrink leaves out steps as long as a violation remains.
func (l *simLab) shrink(seed uint64, steps []int, err error) ([]int, error) {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps); {
			fewer := slices.Delete(slices.Clone(steps), at, at+size)
			if e := l.run(seed, fewer, func(string, ...any) {}); e != nil {
				steps, err = fewer, e
			} else {
				at += size
			}
		}
	}
	return steps, err
}

// simulation is one run.
type simulation struct {
	*simLab
	seed   uint64
	kernel nftmodel.Kernel
	proxy  *Proxier
	logf   func(string, ...any)

	services map[int]*kube.Service
	slices   map[[2]int]*kube.EndpointSlice // by Service and family
	node     *kube.Node
	cidrs    map[int]*kube.ServiceCIDR

	faults    *rand.Rand // nil: no faults
	violation error
	// disturbed says that other hands have changed our table since the last comparison that succeeded: until the next one
	// what the table serves is not ours to answer for.
	disturbed bool
	// incomplete says that the last list of a family lacked elements: what was not to be there may have stayed.
	incomplete [2]bool
	crashed    bool // the proxy is gone in the middle of a transaction
	// refused says that an element was refused, or may have been because of a list that lacked elements: only then may a
	// Service be set aside as one that the kernel refuses.
	refused bool
	// stale says, for each family, that flows may have begun while the table was away, and nobody has looked at them since.
	stale   [2]bool
	resting bool // nothing has changed: nothing is to be written
}

// simFlows is the part of conntrack: the flows are looked at when all tables are there.
type simFlows struct{ *simulation }

func (simFlows) Announce([]ctsync.Change)       {}
func (simFlows) Update([]ctsync.Change)         {}
func (simFlows) SetNodePortAddrs([]netip.Addr)  {}
func (simFlows) SetServiceCIDRs([]netip.Prefix) {}
func (f simFlows) Resync() {
	for i, family := range nft.Families() {
		f.stale[i] = f.stale[i] && !f.kernel.Read(family).Exists
	}
}

var errCrash = errors.New("the process is gone")

// run plays some steps of a seed and then waits for the fixed point.
func (l *simLab) run(seed uint64, steps []int, logf func(string, ...any)) error {
	s := &simulation{simLab: l, seed: seed, logf: logf, services: map[int]*kube.Service{}, slices: map[[2]int]*kube.EndpointSlice{}, cidrs: map[int]*kube.ServiceCIDR{}}
	s.other()
	s.start()
	for _, i := range steps {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		s.faults = rand.New(rand.NewPCG(seed, uint64(i)|1<<40))
		kind := stepKind(r.IntN(int(numSteps)))
		l.total.steps++
		logf("step %d: %s", i, kind)
		s.step(kind, r)
		s.settle(1 + r.IntN(3))
		if s.violation != nil {
			return fmt.Errorf("seed %d, step %d (%s): %w", seed, i, kind, s.violation)
		}
	}
	s.faults = nil
	if s.node == nil { // a running proxy keeps the facts of a Node that is gone, a new one cannot know them
		s.setNode(2)
	}
	return s.fixedPoint()
}

// other makes a table of another program, which nobody may touch.
func (s *simulation) other() {
	_ = s.kernel.Commit(&nft.Batch{Ops: []nft.Op{{Kind: nft.AddTable, Family: nft.IPv4, Table: "other"},
		{Kind: nft.AddChain, Family: nft.IPv4, Table: "other", Name: "theirs", Chain: &nft.Chain{Name: "theirs"}}}})
}

// options are those of each Proxier of a run.
func (s *simulation) options() Options {
	return Options{
		Config: &config.Config{
			NodeName: "node-1", NodeIP: netip.MustParseAddr("172.18.0.2"), MasqueradeBit: 14, SyncPeriod: time.Second,
			NodePorts: config.NodePortAddresses{Primary: true}, ExternalIPs: config.ExternalIPs{All: true},
			Own: config.Own{AffinityMapSize: 1000, StrictSourceRanges: true},
		},
		Metrics: s.metrics, Health: s.health, Listeners: s.listeners, Flows: simFlows{s},
	}
}

// start makes a Proxier that has listed all objects.
func (s *simulation) start() {
	s.crashed = false
	s.proxy = New(s.options())
	s.proxy.tables.conns = []dataplane{s}
	s.proxy.timing.released = time.Now().Add(1000 * 24 * time.Hour) // a garbage collection takes as long as the rest of a run
	sink := s.proxy.Sink()
	for _, svc := range s.services {
		sink.Set(svc)
	}
	for _, slice := range s.slices {
		sink.Set(slice)
	}
	if s.node != nil {
		sink.Set(s.node)
	}
	for _, c := range s.cidrs {
		sink.Set(c)
	}
	for _, k := range kube.Kinds() {
		sink.Synced(k)
	}
}

// settle lets the loop work for some rounds, with the pauses that it asks for.
func (s *simulation) settle(rounds int) {
	for range rounds {
		wait := s.proxy.round(context.Background())
		if s.crashed {
			s.logf("  the process dies")
			s.total.restarts++
			s.start()
			continue
		}
		for name, a := range s.proxy.planner.aside {
			if a.reason == refused && !s.refused {
				s.violate("%s is blamed for what is not its fault", name)
			}
		}
		if s.proxy.tables.known && !s.proxy.drift.Load() {
			if s.disturbed = s.incomplete != [2]bool{}; !s.disturbed {
				s.checkInStep()
			}
		}
		time.Sleep(min(max(wait, time.Millisecond), 3*time.Second))
	}
}

// fault draws whether a call fails.
func (s *simulation) fault() bool { return s.faults != nil && s.faults.IntN(100) < *simFaults }

// PortID is part of dataplane.
func (s *simulation) PortID() uint32 { return 1 }

// Read lists a table: at times it fails, and at times elements are missing in it or listed twice, as while the kernel resizes
// a hash table.
func (s *simulation) Read(f nft.Family) (*nft.Content, error) {
	s.total.reads++
	if s.crashed {
		return nil, errCrash
	}
	if s.fault() {
		s.total.faults++
		errno := []syscall.Errno{syscall.EINTR, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN}[s.faults.IntN(4)]
		s.logf("  read: %v", errno)
		return nil, fmt.Errorf("read table: %w", errno)
	}
	c := s.kernel.Read(f)
	s.incomplete[familyIndex(f)] = false
	if s.fault() && len(c.Elements) > 0 {
		s.total.faults++
		var out []nft.Element
		repeat := s.faults.IntN(2) == 0 // or leave out
		for _, e := range c.Elements {
			if s.faults.IntN(6) > 0 {
				out = append(out, e)
			} else if repeat {
				out = append(out, e, e)
			}
		}
		s.logf("  read %s: %d elements listed as %d", f, len(c.Elements), len(out))
		c.Elements = out
		if !repeat {
			s.incomplete[familyIndex(f)], s.disturbed, s.refused = true, true, true
		}
	}
	return c, nil
}

// CommitAll carries out transactions, or fails: before, or after the kernel has carried out one, or for good.
func (s *simulation) CommitAll(batches []*nft.Batch, done func(kernel.Committed)) error {
	for _, b := range batches {
		if b.Empty() {
			continue
		}
		if s.crashed {
			return errCrash
		}
		s.total.commits++
		s.checkBatch(b)
		if s.fault() {
			s.total.faults++
			switch n := s.faults.IntN(8); n {
			case 0: // the acknowledgement is lost
				err := s.kernel.Commit(b)
				s.logf("  commit (%v), acknowledgement lost", err)
				return cmp.Or(err, error(syscall.ENOBUFS))
			case 1:
				if s.faults.IntN(2) == 0 {
					_ = s.kernel.Commit(b)
				}
				s.crashed = true
				return errCrash
			case 2: // refused because of an element, for no reason that lasts
				if e := findAdded(b, func(nft.Element) bool { return s.faults.IntN(3) == 0 }); e != nil {
					s.logf("  commit: element refused")
					s.refused = true
					return &kernel.OpError{Op: "add elements", Family: b.Family(), Element: e, Errno: syscall.EINVAL}
				}
				fallthrough
			default:
				errno := []syscall.Errno{syscall.ENOMEM, syscall.EBUSY, syscall.EINTR, syscall.ENOBUFS, syscall.ENOSPC}[s.faults.IntN(5)]
				s.logf("  commit: %v", errno)
				return &kernel.OpError{Op: "commit", Family: b.Family(), Errno: errno}
			}
		}
		if err := s.kernel.Commit(b); err != nil {
			s.logf("  commit: %v", err)
			return err
		}
		s.logf("  commit of %d operations, %d elements, disturbed %t", len(b.Ops), b.Elements(), s.disturbed)
		for i := range b.Ops {
			if len(b.Ops) < 12 {
				s.logf("    %s %d", b.Ops[i].String(), len(b.Ops[i].Elements))
			}
		}
		s.checkServed()
		if done != nil {
			done(kernel.Committed{Family: b.Family(), Elements: b.Elements()})
		}
	}
	return nil
}

// violate notes the first violation.
func (s *simulation) violate(format string, args ...any) {
	if s.violation == nil {
		s.violation = fmt.Errorf(format, args...)
	}
}

// checkBatch: a transaction concerns our tables only, and is no longer than the bound unless it makes a table anew.
func (s *simulation) checkBatch(b *nft.Batch) {
	replaces := false
	for i := range b.Ops {
		if b.Ops[i].Table != nft.TableName {
			s.violate("%s: not our table", b.Ops[i].String())
		}
		replaces = replaces || b.Ops[i].Kind == nft.DeleteTable
		if s.resting && !tidies(&b.Ops[i]) {
			s.violate("a restart at rest: %s", b.Ops[i].String())
		}
	}
	if n := b.Elements(); n > nft.ChunkSize && !replaces {
		s.violate("a transaction of %d elements, at most %d", n, nft.ChunkSize)
	}
}

// tidies tells operations that only remove chains of sticky views: a running proxy keeps that of NodePorts until the view
// goes, a new one sees that nothing leads there.
func tidies(o *nft.Op) bool {
	switch o.Kind {
	case nft.FlushChain, nft.DeleteChain:
		return strings.Contains(o.Name, "affinity-")
	case nft.DeleteElements:
		return !slices.ContainsFunc(o.Elements, func(e nft.Element) bool { return !e.Set.IsVerdictMap() })
	}
	return false
}

// checkInStep: when the loop takes the tables for known, they are: they hold what was committed, all of it, and nothing else.
func (s *simulation) checkInStep() {
	for _, f := range nft.Families() {
		want := map[nft.Element]bool{}
		for _, e := range s.proxy.planner.state.of(f).elements {
			want[e] = true
		}
		for _, entry := range s.proxy.planner.committed {
			for i := range entry.ports {
				if port := &entry.ports[i]; port.Family == f {
					for _, e := range nft.Elements(&port.Service) {
						want[e] = true
					}
				}
			}
		}
		have := map[nft.Element]bool{}
		for _, e := range s.kernel.Read(f).Elements {
			if have[e] = true; !want[e] {
				s.violate("%s: the loop believes it is in step, but the table has %s %x, which was not committed", f, e.Set, e.Key)
				return
			}
		}
		for e := range want {
			if !have[e] {
				s.violate("%s: the loop believes it is in step, but the table lacks %s %x", f, e.Set, e.Key)
				return
			}
		}
	}
}

// checkServed: after each transaction, what a served address is led to exists. A program has its chain and its entry in a
// verdict map, and slot 0 of its view has an endpoint, so that no packet is led into the void.
func (s *simulation) checkServed() {
	if s.disturbed {
		return
	}
	for _, f := range nft.Families() {
		content := s.kernel.Read(f)
		if !content.Exists {
			continue
		}
		decoder, slots := nft.NewDecoder(f), map[string]bool{}
		type ledTo struct {
			key     string
			program nft.Program
			set     nft.SetID
		}
		var led []ledTo
		for i := range content.Elements {
			e := &content.Elements[i]
			switch e.Set {
			case nft.Endpoints, nft.NodePortEndpoints, nft.EndpointIDs, nft.NodePortEndpointIDs:
				if d, ok := decoder.Decode(e); ok && nft.Slot(d.Slot).Index() == 0 {
					slots[fmt.Sprint(e.Set, e.Key[:len(e.Key)-4], nft.Slot(d.Slot).View())] = true
				}
			case nft.Services, nft.NodePorts, nft.ClusterPrograms, nft.LocalPrograms, nft.NodePortClusterPrograms, nft.NodePortLocalPrograms:
				if d, ok := decoder.Decode(e); ok {
					led = append(led, ledTo{e.Key, d.Program, e.Set})
				}
			}
		}
		for _, l := range led {
			kind := l.program.Kind()
			if _, ok := content.Chains[l.program.Chain()]; !ok || !content.Leads(l.program) {
				s.violate("%s: an element of %s leads to %s, which is not there", f, l.set, l.program.Chain())
				return
			}
			if kind.IsPolicy() || kind.IsAffinity() {
				continue
			}
			set := nft.Endpoints
			if kind.IsNodePort() {
				set = nft.NodePortEndpoints
			}
			if !slots[fmt.Sprint(set, l.key, kind.View())] {
				s.violate("%s: an element of %s leads to %s, but slot 0 has no endpoint", f, l.set, l.program.Chain())
				return
			}
		}
	}
}

// fixedPoint: once faults stop, the loop comes to rest before the hourly comparison, which would hide what was forgotten; a
// proxy that starts then writes nothing, and one that starts on an empty kernel makes the same table, but for the order of
// slots, the numbers of sticky views and chains of endpoint counts that occur no more.
func (s *simulation) fixedPoint() error {
	const rounds = 300
	for began, i := time.Now(), 0; ; i++ {
		wait := s.proxy.round(context.Background())
		if s.violation != nil {
			return fmt.Errorf("seed %d, without faults: %w", s.seed, s.violation)
		}
		if s.crashed {
			s.start()
			continue
		}
		if wait >= 2*refusedRetry {
			break
		}
		if i == rounds || time.Since(began) > idle/2 {
			return fmt.Errorf("seed %d: no rest within %d rounds, %s", s.seed, i, time.Since(began))
		}
		time.Sleep(max(wait, time.Millisecond))
	}
	if s.stale != [2]bool{} {
		return fmt.Errorf("seed %d, at rest: flows that began while the table was away are not looked at", s.seed)
	}
	s.proxy.round(context.Background()) // chains that were released are deleted by the next pass, whenever that is
	s.checkInStep()
	s.checkServed()
	if s.violation != nil {
		return fmt.Errorf("seed %d, at rest: %w", s.seed, s.violation)
	}
	var want [2]string
	var had [2]*nft.Content
	for i, f := range nft.Families() {
		had[i] = s.kernel.Read(f)
		want[i] = fingerprint(had[i])
		if _, ok := had[i].Chains["stranger"]; ok {
			return fmt.Errorf("seed %d: %s: a chain that others added stays", s.seed, f)
		}
	}
	s.logf("a restart at rest")
	s.resting = true
	s.start()
	s.proxy.round(context.Background())
	s.resting = false
	if s.violation != nil {
		return fmt.Errorf("seed %d: %w", s.seed, s.violation)
	}
	if len(s.kernel.TableNames()) < 1 || !slices.Contains(s.kernel.TableNames(), "other") {
		return fmt.Errorf("seed %d: the table of another program is gone: %v", s.seed, s.kernel.TableNames())
	}
	s.kernel = nftmodel.Kernel{}
	s.start()
	s.proxy.round(context.Background())
	for i, f := range nft.Families() {
		fresh := s.kernel.Read(f)
		if got := fingerprint(fresh); got != want[i] {
			return fmt.Errorf("seed %d: %s differs from what a fresh start makes:\n%s", s.seed, f, differ(want[i], got))
		}
		for name, chain := range fresh.Chains {
			if name == "source-ranges" { // prefix lengths that occur no more keep their rule
				continue
			}
			if !strings.Contains(name, "affinity-") && !slices.Equal(had[i].Chains[name].Rules, chain.Rules) {
				return fmt.Errorf("seed %d: %s: chain %s has other rules than a fresh start makes", s.seed, f, name)
			}
		}
	}
	return nil
}

// fingerprint is a table as text, without what a history may leave otherwise than a fresh start: which slot and number an
// endpoint has, and chains of endpoint counts that occur no more.
func fingerprint(c *nft.Content) string {
	lines := []string{fmt.Sprintf("exists %t dormant %t", c.Exists, c.Dormant)}
	decoder := nft.NewDecoder(c.Family)
	for i := range c.Elements {
		e := c.Elements[i]
		d, ok := decoder.Decode(&e)
		switch {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s %x %x %x", e.Set, e.Key, e.End, e.Data))
			continue
		case e.Set == nft.StickyDraws:
			continue
		case e.Set == nft.EndpointIDs, e.Set == nft.NodePortEndpointIDs:
			lines = append(lines, fmt.Sprintf("%s %x", e.Set, e.Key))
			continue
		case e.Set == nft.EndpointsByID, e.Set == nft.NodePortEndpointsByID:
			lines = append(lines, fmt.Sprintf("%s %x %v %x", e.Set, e.Key[:len(e.Key)-4], nft.Slot(d.Slot).View(), e.Data))
			continue
		case e.Set == nft.Endpoints, e.Set == nft.NodePortEndpoints:
			lines = append(lines, fmt.Sprintf("%s %x %v %x", e.Set, e.Key[:len(e.Key)-4], nft.Slot(d.Slot).View(), e.Data))
			continue
		case d.Program.Kind().IsAffinity():
			lines = append(lines, fmt.Sprintf("%s %x sticky", e.Set, e.Key))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %x %x %s", e.Set, e.Key, e.Data, e.Comment))
	}
	for name, ch := range c.Chains {
		if ch.Hook != nil {
			lines = append(lines, fmt.Sprintf("chain %s %v %v", name, *ch.Hook, ch.Rules))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// differ shows the lines that only one of two texts has.
func differ(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out []string
	for _, l := range as {
		if !slices.Contains(bs, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}
