// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// refuseAll makes the kernel refuse every element whose comment begins with a prefix.
func (r *rig) refuseAll(prefix string) { r.kernel.refusePrefix.Store(&prefix) }

// named returns a Service of another name.
func renamed(objects []kube.Object, name string) []kube.Object {
	for _, o := range objects {
		switch o := o.(type) {
		case *kube.Service:
			o.Name.Name = name
		case *kube.EndpointSlice:
			o.Name.Name, o.Service.Name = strings.Replace(o.Name.Name, o.Service.Name, name, 1), name
		}
	}
	return objects
}

// More Services than any number are refused, some of them at the first comparison, some as changes: all others are served, and
// each refused one is once they are accepted.
func TestManyRefusedServices(t *testing.T) {
	const good, bad = 100, 300
	r := newRig(t)
	r.refuseAll("default/bad")
	i := 1
	add := func(n, refused int) {
		for range n {
			r.set(service(i, 2)...)
			i++
		}
		for range refused {
			r.set(renamed(service(i, 2), fmt.Sprint("bad-", i))...)
			i++
		}
	}
	go func() {
		for range r.events {
		}
	}()
	add(good/2, bad/2)
	r.sync()
	r.ready()
	r.eventually("the others at the start", func() bool { return r.count(nft.Services) == good/2 })
	add(good/2, bad/2)
	r.eventually("the others that come later", func() bool { return r.count(nft.Services) == good })
	if !r.healthy() {
		t.Error("unhealthy although all that can be is served")
	}
	r.refuseAll("none")
	for i := 1; i <= good+bad; i++ { // a change of the objects tries at once
		name := kube.Name{Namespace: "default", Name: fmt.Sprint("bad-", i)}
		if svc, _ := r.tracker.service(name); svc != nil {
			r.set(svc)
		}
	}
	r.eventually("all", func() bool { return r.count(nft.Services) == good+bad })
}

// A Service that is committed and refused later, after another program flushed the table, keeps no other from being served.
func TestRefusedAfterItWasCommitted(t *testing.T) {
	r := newRig(t)
	for i := 1; i <= 20; i++ {
		r.set(service(i, 2)...)
	}
	r.sync()
	r.ready()
	r.refuseAll("default/svc-1") // and 10 to 19
	r.nft("flush", "table", "ip", nft.TableName)
	for _, set := range []string{"services", "nodeports", "endpoints"} {
		r.nft("flush", "map", "ip", nft.TableName, set)
	}
	r.eventually("the nine others", func() bool { return r.count(nft.Services) == 9 })
	r.set(service(21, 2)...)
	r.eventually("a new one", func() bool { return r.count(nft.Services) == 10 })
}

// Errors that are no Service's fault set none aside.
func TestNobodyIsBlamed(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.ENOMEM, syscall.EBUSY, syscall.EINTR, syscall.ENOBUFS} {
		t.Run(errno.Error(), func(t *testing.T) {
			r := newRig(t)
			r.set(service(1, 2)...)
			r.sync()
			r.ready()
			r.kernel.errno.Store(int64(errno))
			r.refuseAll("default/svc-2")
			before := r.kernel.commits.Load()
			r.set(service(2, 2)...)
			r.eventually("several tries", func() bool { return r.kernel.commits.Load() >= before+3 })
			r.refuseAll("none")
			r.eventually("served", func() bool { return r.count(nft.Services) == 2 })
			if len(r.events) > 0 {
				t.Error(<-r.events)
			}
		})
	}
}

// Flows that begin while the tables are away are confirmed untranslated: after a repair all are looked at.
func TestRepairLooksAtFlows(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.flows = newTold()
	r.start()
	r.set(service(1, 2)...)
	r.sync()
	r.ready()
	r.eventually("the look after the start", func() bool { return r.flows.resyncs.Load() == 1 })
	r.set(service(2, 2)...)
	r.eventually("a change", func() bool { return r.count(nft.Services) == 2 })
	if n := r.flows.resyncs.Load(); n != 1 {
		t.Errorf("%d looks at all flows after a change, want none", n-1)
	}
	r.nft("flush", "ruleset")
	r.eventually("the look after the repair", func() bool { return r.flows.resyncs.Load() >= 2 })
	if r.count(nft.Services) != 2 {
		t.Error("the look at the flows came before the repair")
	}
}

// Another program adds elements that match every key, which this version does not know how to delete: in the end the table is
// replaced, and until then it is not taken for what it is to be.
func TestElementForAllKeysGoes(t *testing.T) {
	r := newRig(t)
	r.set(service(1, 2)...)
	r.sync()
	r.ready()
	for _, element := range []string{"services { * : 100:2 }", "policies { * : drop }"} {
		r.nft("add element ip nftproxy " + element)
		set, _, _ := strings.Cut(element, " ")
		r.eventually("the table without "+element, func() bool {
			return !strings.Contains(r.nft("list", "map", "ip", "nftproxy", set), "*") && r.count(nft.Services) == 1
		})
		r.set(service(2, 2)...)
		r.eventually("another Service", func() bool { return r.count(nft.Services) == 2 })
		r.Sink().Delete(service(2, 2)[0].Ref())
		r.eventually("it goes", func() bool { return r.count(nft.Services) == 1 })
	}
}

// eventLog is a Recorder.
type eventLog chan string

func (l eventLog) Event(o kube.Ref, _, reason, _ string) { l <- fmt.Sprint(o, " ", reason) }

// reader is a kernel that holds nothing, whatever is written, and counts.
type reader struct {
	scale
	reads int
}

func (k *reader) Read(nft.Family) (*nft.Content, error) {
	k.reads++
	return &nft.Content{}, nil
}

// A comparison that wrote something is followed by another: the kernel may have listed a table incompletely.
func TestComparisonIsVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &reader{}
		p := starting(t, k, [][]kube.Object{service(1, 2)})
		wait := p.round(t.Context())
		if k.reads != 2 || wait > 10*verifyAfter {
			t.Fatalf("%d reads, the next look in %v", k.reads, wait)
		}
		time.Sleep(wait)
		p.round(t.Context())
		if k.reads != 4 {
			t.Errorf("%d reads, want one more of each family", k.reads)
		}
	})
}

// Another program changes the tables without end: comparisons are rare after some, and changes of objects are committed
// without one.
func TestEndlessDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &reader{}
		p := starting(t, k, [][]kube.Object{service(1, 2)})
		events := make(eventLog, 100)
		p.report.recorder = events
		p.round(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.loop(ctx) }()
		changed := func() {
			p.drift.Store(true)
			kick(p.kicked)
		}
		const seconds = 60
		for range 20 * seconds {
			changed()
			time.Sleep(time.Second / 20)
		}
		synctest.Wait()
		if n := k.reads / 2; n > seconds+repairBurst+2 {
			t.Errorf("%d comparisons in %d seconds", n, seconds)
		}
		if n := len(events); n == 0 || n > 2 || !strings.Contains(<-events, "node-1 TablesChangeAllTheTime") {
			t.Errorf("%d Events in a minute", n)
		}
		changed() // and there is no token for another comparison
		time.Sleep(repairGap)
		synctest.Wait()
		reads := k.reads
		for _, o := range service(2, 2) {
			p.Sink().Set(o)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if len(p.planner.committed) != 2 || k.reads != reads {
			t.Errorf("%d Services after %d more reads, want 2 after none", len(p.planner.committed), k.reads-reads)
		}
		cancel()
		<-done
	})
}

// Sticky Services that come at run time are several transactions, as each takes the kernel some time under its lock.
func TestManyStickyServices(t *testing.T) {
	k := &largest{}
	p := starting(t, k, [][]kube.Object{service(0, 2)})
	p.round(t.Context())
	*k = largest{}
	const n = 5 * nft.ViewsAtOnce
	for i := range n {
		for _, o := range service(i+1, 2) {
			if s, ok := o.(*kube.Service); ok {
				s.Affinity = time.Hour
			}
			p.Sink().Set(o)
		}
	}
	p.round(t.Context())
	if k.sets != 2*n || k.most > nft.ViewsAtOnce+1 {
		t.Errorf("%d maps of clients, up to %d in one transaction; want %d, and up to %d", k.sets, k.most, 2*n, nft.ViewsAtOnce)
	}
}

// largest counts the sets that transactions make.
type largest struct{ sets, most int }

func (k *largest) CommitAll(batches []*nft.Batch, _ func(kernel.Committed)) error {
	for _, b := range batches {
		n := 0
		for i := range b.Ops {
			if b.Ops[i].Kind == nft.AddSet {
				n++
			}
		}
		k.sets, k.most = k.sets+n, max(k.most, n)
	}
	return nil
}

func (k *largest) Read(nft.Family) (*nft.Content, error) { return &nft.Content{}, nil }
func (k *largest) PortID() uint32                        { return 0 }

// An external IP that is where the proxy reaches the API server is not served, with an Event; the Service's other addresses are.
func TestAPIServerIsNoExternalIP(t *testing.T) {
	api := netip.MustParseAddrPort("192.0.2.5:80")
	r := newRig(t)
	r.stop()
	r.change = func(o *Options) { o.APIServer = func() []netip.AddrPort { return []netip.AddrPort{api} } }
	r.start()
	objects := service(1, 0) // without endpoints it would be refused
	objects[0].(*kube.Service).ExternalIPs = []netip.Addr{api.Addr(), netip.MustParseAddr("198.51.100.7")}
	r.set(objects...)
	r.sync()
	r.ready()
	for _, e := range r.content(nft.IPv4).Elements {
		if strings.HasPrefix(e.Key, string(api.Addr().AsSlice())) {
			t.Errorf("the API server's address is in %s", e.Set)
		}
	}
	if n := r.count(nft.RejectServices); n != 2 {
		t.Errorf("%d addresses are refused, want the ClusterIP and the other external IP", n)
	}
	if event := <-r.events; !strings.Contains(event, "192.0.2.5:80 is where the API server is reached") {
		t.Error(event)
	}
}
