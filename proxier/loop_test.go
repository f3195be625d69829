// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// hangLimit is a guard against waiting for ever, not an expectation of how fast the machine is.
const hangLimit = 2 * time.Minute

// rig is a Proxier in a network namespace of its own, fed by hand.
type rig struct {
	*Proxier
	t      *testing.T
	ns     netns.NsHandle
	kernel *faulty
	health *health.Proxy
	events chan string
	flows  *told
	logger klog.Logger    // of what start runs
	change func(*Options) // of what start makes
	ahead  atomic.Int64   // how far the clock of health is
	stop   func()
}

// faulty is the kernel's side with faults on demand, which both connections share.
type faulty struct {
	*kernel.Conn
	*faults
}

type faults struct {
	refuse atomic.Pointer[string] // refuse batches with an element of this comment
	// refusePrefix refuses batches with an element whose comment begins so, with errno if that is set.
	refusePrefix atomic.Pointer[string]
	errno        atomic.Int64
	lie          atomic.Bool // commit, and report a failure
	fail         atomic.Bool // do not commit, and report a failure that is about no element
	commits      atomic.Int64
	written      atomic.Int64 // elements
}

func (k *faulty) CommitAll(batches []*nft.Batch, _ func(kernel.Committed)) error {
	for _, b := range batches {
		if b.Empty() {
			continue
		}
		if err := k.commitOne(b); err != nil {
			return err
		}
	}
	return nil
}

func (k *faulty) commitOne(b *nft.Batch) error {
	k.commits.Add(1)
	k.written.Add(int64(b.Elements()))
	if name := k.refuse.Load(); name != nil {
		if e := findAdded(b, func(e nft.Element) bool { return e.Comment == *name }); e != nil {
			return &kernel.OpError{Op: "add elements", Family: b.Family(), Element: e, Errno: syscall.EINVAL}
		}
	}
	if prefix := k.refusePrefix.Load(); prefix != nil {
		if e := findAdded(b, func(e nft.Element) bool { return strings.HasPrefix(e.Comment, *prefix) }); e != nil {
			errno := syscall.Errno(k.errno.Load())
			if errno == 0 {
				errno = syscall.EINVAL
			}
			return &kernel.OpError{Op: "add elements", Family: b.Family(), Element: e, Errno: errno}
		}
	}
	if k.fail.Load() {
		return syscall.ENOMEM
	}
	err := k.Conn.Commit(b)
	if err == nil && k.lie.Load() {
		return errors.New("no reply")
	}
	return err
}

func newNS(t testing.TB) netns.NsHandle {
	t.Helper()
	var ns netns.NsHandle
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		ns, err = netns.New()
		done <- err
	}()
	if err := <-done; err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			t.Fatalf("network namespace: %v", err)
		}
		t.Skipf("network namespace: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func newRig(t *testing.T) *rig { return newRigWith(t, nil) }

// newRigWith is newRig with other options.
func newRigWith(t *testing.T, change func(*Options)) *rig {
	r := &rig{t: t, ns: newNS(t), events: make(chan string, 1000), logger: klog.Background(), change: change}
	r.start()
	return r
}

// Event records.
func (r *rig) Event(o kube.Ref, _, reason, message string) {
	r.events <- fmt.Sprintf("%s %s: %s", o, reason, message)
}

// start runs a new Proxier in the rig's namespace.
func (r *rig) start() {
	r.t.Helper()
	var kernels [2]*kernel.Conn
	var err error
	for i := range kernels {
		if kernels[i], err = kernel.Open(int(r.ns)); err != nil {
			r.t.Fatal(err)
		}
	}
	r.kernel = &faulty{kernels[0], &faults{}}
	r.health = health.New(time.Minute, func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }, v1.IPv4Protocol, v1.IPv6Protocol)
	listeners := health.NewListeners(r.health, func(types.NamespacedName, error) {})
	opt := Options{
		Config: &config.Config{
			NodeName: "node-1", NodeIP: netip.MustParseAddr("172.18.0.2"), MasqueradeBit: 14, SyncPeriod: time.Second,
			NodePorts: config.NodePortAddresses{Primary: true}, ExternalIPs: config.ExternalIPs{All: true},
			Own: config.Own{AffinityMapSize: 1000, StrictSourceRanges: true},
		},
		NetNS: int(r.ns), Metrics: metrics.New(v1.IPv4Protocol, v1.IPv6Protocol), Health: r.health, Listeners: listeners, Recorder: r,
	}
	if r.flows != nil {
		opt.Flows = r.flows
	}
	if r.change != nil {
		r.change(&opt)
	}
	r.Proxier = New(opt)
	watch, err := kernel.OpenWatch(int(r.ns))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(r.t.Context(), r.logger))
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.runOn(ctx, watch, r.kernel, &faulty{kernels[1], r.kernel.faults})
	}()
	r.stop = func() {
		cancel()
		<-done
		for _, k := range kernels {
			k.Close()
		}
		listeners.Close()
		r.stop = func() {}
	}
	r.t.Cleanup(func() { r.stop() })
}

func (r *rig) sync() {
	for _, k := range kube.Kinds() {
		r.Sink().Synced(k)
	}
}

// eventually waits until the tables hold exactly what the Services ask for.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(hangLimit)
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("does not come about: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// content reads the tables with a socket of its own.
func (r *rig) content(f nft.Family) *nft.Content {
	r.t.Helper()
	k, err := kernel.Open(int(r.ns))
	if err != nil {
		r.t.Fatal(err)
	}
	defer k.Close()
	c, err := k.Read(f)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// count returns how many elements a set of the IPv4 table holds.
func (r *rig) count(set nft.SetID) (n int) {
	for _, e := range r.content(nft.IPv4).Elements {
		if e.Set == set {
			n++
		}
	}
	return n
}

func (r *rig) nft(args ...string) string {
	r.t.Helper()
	var out []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = netns.Set(r.ns); err == nil {
			out, err = exec.Command("nft", args...).CombinedOutput()
		}
	}()
	<-done
	if err != nil {
		r.t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// service returns a Service with i-th ClusterIP of both families, and its slices.
func service(i, endpoints int) []kube.Object {
	name := kube.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
	svc := &kube.Service{
		Name: name, UID: "uid", Created: int64(i),
		ClusterIPs: [2]netip.Addr{
			netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", i)),
		},
		Ports: []kube.ServicePort{{Proto: kube.TCP, Port: 80, NodePort: uint16(30000 + i)}},
		Type:  kube.NodePort,
	}
	out := []kube.Object{svc}
	for _, v6 := range []bool{false, true} {
		s := &kube.EndpointSlice{Name: kube.Name{Namespace: "default", Name: fmt.Sprintf("%s-%t", name.Name, v6)},
			Service: name, IPv6: v6, Ports: []kube.SlicePort{{Proto: kube.TCP, Port: 8080}}}
		for e := range endpoints {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i), byte(e + 1)})
			if v6 {
				a = netip.MustParseAddr(fmt.Sprintf("fd00:244:%x::%x", i, e+1))
			}
			s.Endpoints = append(s.Endpoints, kube.Endpoint{Addr: a, Ready: true, Serving: true})
		}
		out = append(out, s)
	}
	return out
}

func (r *rig) set(objects ...kube.Object) {
	for _, o := range objects {
		r.Sink().Set(o)
	}
}

func (r *rig) ready() {
	r.t.Helper()
	r.eventually("first sync", func() bool { return strings.Contains(r.probe("/healthz").Body.String(), `"synced":true`) })
}

func (r *rig) healthy() bool { return r.probe("/livez").Code == http.StatusOK }

func (r *rig) probe(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.health.Handler(health.Counter{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestNothingIsTouchedBeforeAllIsListed(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.Sink().Synced(kube.KindService)
	r.Sink().Synced(kube.KindEndpointSlice)
	if r.content(nft.IPv4).Exists {
		t.Error("table made before the Node and ServiceCIDRs were listed")
	}
	r.sync()
	r.eventually("one Service", func() bool { return r.count(nft.Services) == 1 && r.count(nft.NodePorts) == 1 })
}

func TestRestartIsSilent(t *testing.T) {
	r := newRig(t)
	for i := 1; i <= 20; i++ {
		r.set(service(i, i%4)...)
	}
	r.sync()
	r.ready()
	// Slots get an order that nobody would choose.
	r.set(service(3, 1)...)
	r.set(service(3, 3)...)
	r.eventually("3 endpoints again", func() bool { return r.count(nft.NodePortEndpoints) == 5*(1+2+3) })
	r.stop()
	r.start()
	for i := 20; i >= 1; i-- {
		r.set(service(i, i%4)...)
	}
	r.sync()
	r.ready()
	if n := r.kernel.commits.Load(); n != 0 {
		t.Errorf("%d transactions although nothing changed", n)
	}
}

func TestOneEndpointCostsTwoElements(t *testing.T) {
	r := newRig(t)
	for i := 1; i <= 50; i++ {
		r.set(service(i, 3)...)
	}
	r.sync()
	r.ready()
	before := r.kernel.written.Load()
	replaced := service(7, 4)
	slice := replaced[1].(*kube.EndpointSlice)
	slice.Endpoints = slice.Endpoints[1:]
	r.set(slice)
	// The Service has a ClusterIP and a NodePort in IPv4: 2 elements each.
	r.eventually("the change", func() bool { return r.kernel.written.Load()-before >= 4 })
	if n := r.kernel.written.Load() - before; n != 4 {
		t.Errorf("%d elements written, want 4", n)
	}
}

// Only notifications lead to a repair here: the next comparison without one is an hour away.
func TestDriftIsRepaired(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.Config.SyncPeriod = time.Hour })
	for i := 1; i <= 5; i++ {
		r.set(service(i, 2)...)
	}
	r.sync()
	r.ready()
	r.nft("add", "table", "ip", "other")
	r.nft("add", "chain", "ip", "other", "mine")
	want := r.nft("list", "ruleset")
	for _, harm := range [][]string{
		{"delete", "element", "ip", "nftproxy", "services", "{ 10.96.0.1 . tcp . 80 }"},
		{"add", "element", "ip", "nftproxy", "cluster-ips", "{ 1.2.3.4 }"},
		{"flush", "chain", "ip", "nftproxy", "run"},
		{"insert", "rule", "ip6", "nftproxy", "services", "drop"},
		{"flush", "map", "ip6", "nftproxy", "endpoints"},
		{"delete", "chain", "ip", "nftproxy", "nat-prerouting"},
		{"delete", "table", "ip", "nftproxy"},
		{"flush", "table", "ip", "nftproxy"},
	} {
		r.nft(harm...)
		r.eventually(strings.Join(harm, " "), func() bool { return sameLines(r.nft("list", "ruleset"), want) })
	}
	r.nft("flush", "ruleset")
	want = strings.ReplaceAll(want, "table ip other {\n\tchain mine {\n\t}\n}\n", "")
	r.eventually("flush ruleset", func() bool { return sameLines(r.nft("list", "ruleset"), want) })
}

// sameLines compares without regard to the order of tables, chains and elements.
func sameLines(a, b string) bool {
	count := map[string]int{}
	for _, w := range strings.Fields(strings.ReplaceAll(a, ",", " ")) {
		count[w]++
	}
	for _, w := range strings.Fields(strings.ReplaceAll(b, ",", " ")) {
		count[w]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func TestRefusedServiceIsSetAside(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.sync()
	r.ready()
	bad := "default/svc-2"
	r.kernel.refuse.Store(&bad)
	for i := 2; i <= 4; i++ {
		r.set(service(i, 2)...)
	}
	r.eventually("the others", func() bool { return r.count(nft.NodePorts) == 3 })
	select {
	case e := <-r.events:
		if !strings.Contains(e, "Service default/svc-2 FailedToProgramService") {
			t.Errorf("event %q", e)
		}
	case <-time.After(hangLimit):
		t.Error("no Event")
	}
	r.kernel.refuse.Store(nil)
	r.eventually("the Service once it is accepted", func() bool { return r.count(nft.NodePorts) == 4 })
}

func TestCommitReportedAsFailed(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.sync()
	r.ready()
	r.kernel.lie.Store(true)
	r.set(service(2, 2)...)
	r.eventually("the commit", func() bool { return r.count(nft.NodePorts) == 2 })
	r.kernel.lie.Store(false)
	r.set(service(3, 2)...)
	r.eventually("the next", func() bool { return r.count(nft.NodePorts) == 3 })
}

func TestOlderServiceKeepsItsAddress(t *testing.T) {
	r := newRig(t)
	r.set(service(2, 1)...)
	twin := service(2, 3)
	svc := *twin[0].(*kube.Service)
	svc.Name.Name, svc.Created = "younger", 99
	r.set(&svc)
	r.sync()
	r.ready()
	want := func() bool {
		for _, e := range r.content(nft.IPv4).Elements {
			if e.Set == nft.Services && e.Comment != "default/svc-2" {
				return false
			}
		}
		return r.count(nft.Services) == 1
	}
	r.eventually("the older one serves", want)
	r.Sink().Delete(kube.Ref{Kind: kube.KindService, Name: kube.Name{Namespace: "default", Name: "svc-2"}})
	r.eventually("the younger one takes over", func() bool {
		for _, e := range r.content(nft.IPv4).Elements {
			if e.Set == nft.RejectServices && e.Comment == "default/younger" {
				return true
			}
		}
		return false
	})
}

// told is a Flows that remembers what it was told.
type told struct {
	mu      sync.Mutex
	offered map[ctsync.Frontend]ctsync.Change
	resyncs atomic.Int64
}

func newTold() *told { return &told{offered: map[ctsync.Frontend]ctsync.Change{}} }

func (f *told) Announce([]ctsync.Change)       {}
func (f *told) SetNodePortAddrs([]netip.Addr)  {}
func (f *told) SetServiceCIDRs([]netip.Prefix) {}
func (f *told) Resync()                        { f.resyncs.Add(1) }
func (f *told) Update(changes []ctsync.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range changes {
		f.offered[c.Frontend] = c
	}
}

// A Service that was deleted while nobody watched is still in the tables: its flows are told to be gone.
func TestServiceDeletedWhileDown(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.set(service(2, 2)...)
	r.sync()
	r.ready()
	r.stop()
	r.flows = &told{offered: map[ctsync.Frontend]ctsync.Change{}}
	r.start()
	r.set(service(1, 2)...)
	r.sync()
	r.ready()
	r.eventually("both told", func() bool {
		r.flows.mu.Lock()
		defer r.flows.mu.Unlock()
		kept := r.flows.offered[ctsync.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: ctsync.TCP}]
		gone := r.flows.offered[ctsync.Frontend{Addr: netip.IPv4Unspecified(), Port: 30002, Proto: ctsync.TCP}]
		return len(kept.Endpoints) == 2 && !kept.Removed && gone.Removed
	})
}

// findAdded returns the first added element that satisfies ok, nil if there is none.
func findAdded(b *nft.Batch, ok func(nft.Element) bool) *nft.Element {
	for i := range b.Ops {
		for j := range b.Ops[i].Elements {
			if e := &b.Ops[i].Elements[j]; b.Ops[i].Kind == nft.AddElements && ok(*e) {
				return e
			}
		}
	}
	return nil
}
