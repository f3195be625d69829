// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	. "github.com/nftproxy/nftproxy/nft"
)

func read(t testing.TB, c *Conn, f Family) *Content {
	t.Helper()
	content, err := c.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// program brings a family's table to a state.
func program(t testing.TB, c *Conn, f Family, want []*Service, node []Element) {
	t.Helper()
	content := read(t, c, f)
	if err := c.CommitAll(NewTable(content).Reconcile(content, Config{}, want, node), nil); err != nil {
		t.Fatal(err)
	}
}

func elementsOf(services []*Service) (out []Element) {
	for _, s := range services {
		out = append(out, Elements(s)...)
	}
	return out
}

// A refused transaction names the element at fault, wherever it is in the batch.
func TestRefusedElementIsNamed(t *testing.T) {
	for _, ignoreOffsets := range []bool{false, true} { // as Linux 5.17 and later, and before
		c := newNamespace(t).open(t)
		c.ignoreOffsets = ignoreOffsets
		program(t, c, IPv4, cluster(2, 3), nil)
		services := cluster(3, 3)
		bad, good := Elements(services[1])[1], Elements(services[2])[1]
		bad.Data = bad.Data[:3] + "\xff"
		b := &Batch{}
		b.Change(IPv4, Change{Add: []Element{good, bad}})
		err := c.Commit(b)
		var op *OpError
		if !errors.As(err, &op) || !errors.Is(err, unix.EEXIST) {
			t.Fatalf("got %v, want an *OpError with EEXIST", err)
		}
		if op.Element == nil || *op.Element != bad {
			t.Errorf("names %v of %s, want %v", op.Element, op.Op, bad)
		}
		b = &Batch{}
		b.Change(IPv4, Change{Add: []Element{good}})
		if err := c.Commit(b); err != nil {
			t.Errorf("after a refused commit: %v", err)
		}
	}
}

func TestWatchReportsOthersOnly(t *testing.T) {
	n := newNamespace(t)
	c := n.open(t)
	w, err := OpenWatch(int(n.fd))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Ignore(c.PortID()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan Family, 1000)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, func(f Family) { seen <- f }) }()
	program(t, c, IPv4, cluster(2, 3), nil)
	program(t, c, IPv6, nil, AddrElements(NodePortAddresses, IPv6, []netip.Addr{netip.MustParseAddr("fd00::1")}))
	// The kernel reports in order: events of our own commits would come before this one.
	n.nft(t, "", "add", "table", "ip", "other")
	n.nft(t, "", "delete", "element", "ip6", "nftproxy", "nodeport-addresses", "{ fd00::1 }")
	if f := <-seen; f != IPv6 {
		t.Errorf("first report is about %s, want ip6", f)
	}
	// The end of a transaction, with the name of its program, comes before the next one.
	n.nft(t, "", "add", "element", "ip6", "nftproxy", "nodeport-addresses", "{ fd00::1 }")
	<-seen
	if by := w.By(); !strings.HasPrefix(by, "nft (process ") {
		t.Errorf("the program is %q", by)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The connection replaces a lost socket with the next request: the loop reads before it commits anything.
func TestBrokenSocketIsReplaced(t *testing.T) {
	c := newNamespace(t).open(t)
	services := cluster(1, 1)
	program(t, c, IPv4, services, nil)
	_ = c.conn.Close()
	if _, err := c.Read(IPv4); err == nil {
		t.Error("read from a closed socket")
	}
	if content := read(t, c, IPv4); len(content.Elements) != len(elementsOf(services)) {
		t.Errorf("%d elements", len(content.Elements))
	}
}

// A lost reply ends with an error, and the next request works.
func TestLostReply(t *testing.T) {
	c := newNamespace(t).open(t)
	program(t, c, IPv4, cluster(1, 1), nil)
	drop, err := bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: 0}})
	if err != nil {
		t.Fatal(err)
	}
	for what, request := range map[string]func() error{
		"read": func() error { _, err := c.Read(IPv4); return err },
		"commit": func() error {
			b := &Batch{}
			b.Change(IPv4, Change{Delete: Elements(cluster(1, 1)[0])})
			return c.Commit(b)
		},
	} {
		c.timeout = 20 * time.Millisecond
		if err := c.conn.SetBPF(drop); err != nil {
			t.Fatal(err)
		}
		if err := request(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want an exceeded deadline", what, err)
		}
		c.timeout = replyTimeout
		read(t, c, IPv4)
	}
}

// Other programs may commit to tables of their own without pause, more often than a large table can be read.
func TestReadWhileOthersCommit(t *testing.T) {
	n := newNamespace(t)
	c, other := n.open(t), n.open(t)
	services := cluster(10000, 3)
	program(t, c, IPv4, services, nil)
	var chains strings.Builder // so that a list of all chains takes several messages
	for i := range 10000 {
		fmt.Fprintf(&chains, "chain c%d {\n}\n", i)
	}
	n.nft(t, "table ip other {\n"+chains.String()+"}\n", "-f", "-")
	var stop atomic.Bool
	started, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for i := 0; err == nil && !stop.Load(); i++ {
			b := &Batch{}
			b.AddTable(IPv6)
			b.DeleteTable(IPv6, TableName)
			if err = other.Commit(b); i == 0 {
				close(started)
			}
		}
		done <- err
	}()
	<-started
	for range 3 {
		content, err := c.Read(IPv4)
		if err != nil {
			t.Error(err)
			break
		}
		if d := DiffElements(content.Elements, elementsOf(services)); d.Len() != 0 {
			t.Errorf("%d elements too many, %d missing", len(d.Delete), len(d.Add))
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The kernel resizes a hash table after it took many elements: a list of it then has elements twice and lacks others, without
// being interrupted. Read returns all of them nevertheless.
func TestReadWhileASetIsResized(t *testing.T) {
	const limit = 32768 * 3 / 4 // of elements, above which the kernel doubles the buckets
	repeated := 0
	for range 6 {
		c := newNamespace(t).open(t)
		large, more := cluster(1, limit-100), cluster(1, limit+400)
		program(t, c, IPv4, large, nil)
		read(t, c, IPv4)
		b := &Batch{}
		b.Change(IPv4, Diff(large[0], more[0]))
		if err := c.Commit(b); err != nil {
			t.Fatal(err)
		}
		if _, err := c.elements(IPv4, Endpoints); errors.Is(err, errRepeated) {
			repeated++
		}
		if d := DiffElements(read(t, c, IPv4).Elements, Elements(more[0])); d.Len() != 0 {
			t.Errorf("%d elements too many, %d missing", len(d.Delete), len(d.Add))
		}
	}
	t.Logf("%d of 6 lists had repeated keys", repeated)
}

// A list with a repeated key is read again, each time with all it has: it may lack other elements.
func TestRepeatedKeyIsReadAgain(t *testing.T) {
	for _, c := range []struct{ repeated, lists int }{{0, 1}, {2, 3}, {dumpAttempts, dumpAttempts}} {
		lists := 0
		conn := nltest.Dial(func(req []netlink.Message) ([]netlink.Message, error) {
			lists++
			keys := []string{"\x01", "\x02", "\x03"}
			if lists <= c.repeated {
				keys[2] = keys[1]
			}
			body := message(IPv4)
			list := body.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, k := range keys {
				appendElement(&body, &Element{Set: ClusterIPs, Key: "\x0a\x00\x00" + k}, false)
			}
			body.Close(list)
			return nltest.Multipart([]netlink.Message{{Header: netlink.Header{Sequence: req[0].Header.Sequence}, Data: body}, {}})
		})
		k := &Conn{conn: conn, timeout: replyTimeout}
		r := &reader{c: k, f: IPv4, steady: true}
		content := NewContent(IPv4)
		content.Sets["cluster-ips"] = Model(IPv4, Config{}, nil, nil).Sets["cluster-ips"]
		if err := r.readElements(content); err != nil {
			t.Fatal(err)
		}
		steady := c.repeated < dumpAttempts
		if lists != c.lists || r.steady != steady || steady && len(content.Elements) != 3 {
			t.Errorf("%d lists with repeated keys: %d lists, steady %v, %d elements", c.repeated, lists, r.steady, len(content.Elements))
		}
	}
}

// Sticky clients are counted in parts where the kernel does not report their number, and all maps have their turn.
func TestAffinityCounts(t *testing.T) {
	n := newNamespace(t)
	c := n.open(t)
	services := cluster(3, 1)
	table := NewTable(NewContent(IPv4))
	for _, s := range services {
		s.Affinity = time.Hour
		table.Number(s)
	}
	program(t, c, IPv4, services, nil)
	for i, s := range services {
		n.nft(t, fmt.Sprintf("add element ip nftproxy affinity-%d { 192.0.2.1 : 1:1, 192.0.2.2 : 1:1, 192.0.2.%d : 1:1 }\n", s.AffinityIDs[0], i+2), "-f", "-")
	}
	want := map[string]int{}
	for i, s := range services {
		want[AffinityOwner(s.Name, ClusterView)] = min(2+i, 3)
	}
	for _, c.ignoreCounts = range []bool{false, true} {
		if !c.ignoreCounts && !kernelAtLeast(t, 6, 16) {
			continue // it does not report them
		}
		c.countedClients = 1
		got, calls := map[string]int{}, 0
		for complete := false; len(got) < len(services); calls++ {
			var counts []AffinityCount
			var err error
			if counts, complete, err = c.AffinityCounts(IPv4); err != nil || complete == c.ignoreCounts {
				t.Fatalf("complete %v, %v", complete, err)
			}
			for _, a := range counts {
				got[a.Owner] = a.Clients
			}
		}
		if !maps.Equal(got, want) || calls > len(services) {
			t.Errorf("%v after %d calls, want %v", got, calls, want)
		}
	}
}

// A person gets a table in motion rather than none, with each element once.
func TestSnapshotOfATableInMotion(t *testing.T) {
	n := newNamespace(t)
	c, other := n.open(t), n.open(t)
	program(t, c, IPv4, cluster(100, 3), nil)
	if s, err := c.Snapshot(IPv4); err != nil || !s.Steady {
		t.Fatalf("at rest: %v", err)
	}
	var stop atomic.Bool
	done := make(chan error)
	e := AddrElements(NodePortAddresses, IPv4, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	go func() {
		var err error
		for err == nil && !stop.Load() {
			for _, change := range []Change{{Add: e}, {Delete: e}} {
				b := &Batch{}
				b.Change(IPv4, change)
				if err == nil {
					err = other.Commit(b)
				}
			}
		}
		done <- err
	}()
	unsteady := 0
	for range 20 {
		s, err := c.Snapshot(IPv4)
		if err != nil {
			t.Error(err)
			break
		}
		if !s.Steady {
			unsteady++
		}
		n := len(s.Elements)
		if s.Elements, _ = Distinct(s.Elements); len(s.Elements) != n {
			t.Errorf("%d elements, %d of them distinct", n, len(s.Elements))
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of 20 were unsteady", unsteady)
	if s, err := c.Snapshot(IPv4); err != nil || !s.Steady {
		t.Errorf("at rest again: %v", err)
	}
}
