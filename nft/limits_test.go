// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// crowd is n Services in 10.x.0.0/16, one endpoint each.
func crowd(n int, x byte, affinity time.Duration) []*Service {
	var out []*Service
	for i := range n {
		out = append(out, &Service{
			Name: fmt.Sprintf("default/crowd-%d-%d:http", x, i), Proto: TCP, Served: true, Affinity: affinity,
			Frontends: []Frontend{{Kind: ClusterIP, Addr: netip.AddrFrom4([4]byte{10, x, byte(i >> 8), byte(i)}), Port: 80}},
			Cluster:   []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:80")},
		})
	}
	return out
}

func programCrowd(t *testing.T, k *Kernel, want []*Service, node []Element) {
	t.Helper()
	c := read(t, k, IPv4)
	table := NewTable(c)
	for _, s := range want {
		table.Number(s)
	}
	for _, b := range table.Reconcile(c, Config{}, want, node) {
		if err := k.Commit(b); err != nil {
			t.Fatalf("%d messages, %d bytes: %v", len(b.msgs), b.Size(), err)
		}
	}
}

// More programs than the 16 bits of a list's length can tell.
func TestManyStickyServices(t *testing.T) {
	k := newNamespace(t).open(t)
	const n = 1400
	programCrowd(t, k, crowd(n, 96, time.Hour), nil)
	c := read(t, k, IPv4)
	if len(c.Programs) != n || len(c.Policies) != len(policies()) {
		t.Errorf("%d programs and %d policies, want %d and %d", len(c.Programs), len(c.Policies), n, len(policies()))
	}
	programCrowd(t, k, nil, nil)
	if c := read(t, k, IPv4); len(c.Programs) != 0 || len(c.Elements) != 0 {
		t.Errorf("left behind: %d programs, %d elements", len(c.Programs), len(c.Elements))
	}
}

// A table of another version is replaced in one transaction, however large that is.
func TestReplacesLargeTable(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.nft(t, "table ip nftproxy {\n map services {\n type ipv4_addr : classid\n }\n}\n", "-f", "-")
	const services = 50000
	programCrowd(t, k, append(crowd(services, 96, 0), crowd(services, 97, 0)...), nil)
	for end := time.Now().Add(5 * time.Second); ; { // while the kernel still resizes a hash table, a list of it may lack some
		c := read(t, k, IPv4)
		if len(c.Elements) == 2*3*services {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d elements", len(c.Elements))
		}
	}
}

// Ranges that change in the midst of a large change overlap with those that they replace.
func TestStageKeepsRangesTogether(t *testing.T) {
	k := newNamespace(t).open(t)
	balanced := func(x byte, sources ...string) []*Service {
		var prefixes []netip.Prefix
		for _, s := range sources {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		lb := &Service{Name: "default/lb:http", Proto: TCP, Served: true, Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:80")},
			Frontends: []Frontend{{Kind: External, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80, Restricted: true, Sources: MergeRanges(prefixes)}}}
		return append(crowd(ChunkSize, x, 0), lb)
	}
	pods := func(p string) []Element { return RangeElements(Pods, IPv4, []netip.Prefix{netip.MustParsePrefix(p)}) }
	for _, step := range []struct {
		services []*Service
		pods     []Element
	}{
		{balanced(96, "10.0.0.0/8", "192.0.2.0/24"), pods("10.244.0.0/16")},
		{balanced(97, "10.0.0.0/16", "192.0.2.0/25"), pods("10.244.0.0/14")},
		{balanced(98, "10.0.0.0/9"), pods("10.244.0.0/17")},
		{balanced(99, "0.0.0.0/1", "192.0.2.0/24"), pods("10.0.0.0/8")},
	} {
		programCrowd(t, k, step.services, step.pods)
		// While the kernel still resizes a hash table, a list of it may lack some.
		want := wantedElements(step.services, step.pods)
		for end := time.Now().Add(5 * time.Second); ; {
			d := DiffElements(read(t, k, IPv4).Elements, want)
			if d.Len() == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("kernel differs: %d deleted, %d added", len(d.Delete), len(d.Add))
			}
		}
	}
	for _, id := range Sets() {
		if id.ranged() != id.IsInterval() {
			t.Errorf("%s: ranged %v, declared %v", id, id.ranged(), id.IsInterval())
		}
	}
}

// A socket that was lost comes back with the next use: the loop reads before it commits anything.
func TestBrokenSocketIsReplaced(t *testing.T) {
	k := newNamespace(t).open(t)
	programCrowd(t, k, crowd(1, 96, 0), nil)
	_ = k.conn.Close()
	if _, err := k.Read(IPv4); err == nil {
		t.Error("read from a closed socket")
	}
	if c := read(t, k, IPv4); len(c.Elements) != 3 {
		t.Errorf("%d elements", len(c.Elements))
	}
}

// Others may commit more often than a large table can be read.
func TestReadWhileOthersCommit(t *testing.T) {
	n := newNamespace(t)
	k, other := n.open(t), n.open(t)
	services := crowd(10000, 96, 0)
	programCrowd(t, k, services, nil)
	var chains strings.Builder // so that to list them takes several messages
	for i := range 10000 {
		fmt.Fprintf(&chains, "chain c%d {\n}\n", i)
	}
	n.nft(t, "table ip other {\n"+chains.String()+"}\n", "-f", "-")
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			b := &Batch{}
			b.AddTable(IPv6)
			b.DeleteTable(IPv6, TableName)
			err := other.Commit(b)
			select {
			case <-stop:
				done <- err
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	c, err := k.Read(IPv4)
	for end := time.Now().Add(20 * time.Second); errors.Is(err, errUnsteady) && time.Now().Before(end); { // on a busy machine, as the loop does
		c, err = k.Read(IPv4)
	}
	if err != nil {
		t.Fatal(err)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := DiffElements(c.Elements, wantedElements(services, nil)); d.Len() != 0 {
		t.Errorf("read otherwise: %d too many, %d missing", len(d.Delete), len(d.Add))
	}
}

// The first start of a node with many sticky Services.
func TestNumberingIsLinear(t *testing.T) {
	table := NewTable(&Content{Family: IPv4})
	start := time.Now()
	services := crowd(30000, 96, time.Hour)
	for _, s := range services {
		table.Number(s)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%d Services numbered in %v", len(services), took)
	}
	if last := services[len(services)-1].AffinityIDs; last != [2]uint32{59999, 60000} {
		t.Errorf("last numbers %v", last)
	}
}

// Who may write EndpointSlices can choose addresses of one hash.
func TestEndpointIDsOfOneHash(t *testing.T) {
	eps, others := sameHash(), []netip.AddrPort{}
	for i := range eps {
		others = append(others, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80))
	}
	start := time.Now()
	endpointIDs(ClusterView, others)
	usual := time.Since(start)
	start = time.Now()
	ids := endpointIDs(ClusterView, eps)
	if took := time.Since(start); took > 30*usual {
		t.Errorf("ids of %d endpoints took %v instead of %v", len(eps), took, usual)
	}
	taken := map[uint32]bool{}
	for _, id := range ids {
		if id == 0 || taken[id] {
			t.Fatalf("id %d twice", id)
		}
		taken[id] = true
	}
}

// sameHash finds endpoints whose FNV-1a hashes differ in the top bit at most, by meeting in the middle: three bytes from
// the front, three from the back.
func sameHash() []netip.AddrPort {
	const basis, prime = 2166136261, 16777619
	inverse := uint32(1) // of prime, modulo 2^32
	for range 5 {
		inverse *= 2 - prime*inverse
	}
	front := map[uint32][3]byte{} // by the upper 24 bits of the state behind them
	for i := range uint32(1 << 21) {
		b := [3]byte{byte(i >> 16), byte(i >> 8), byte(i)}
		h := uint32(basis)
		for _, c := range b {
			h = (h ^ uint32(c)) * prime
		}
		front[h>>8] = b
	}
	var out []netip.AddrPort
	for i := range uint32(1 << 17) {
		lo, hi := byte(i), byte(i>>8)
		h := uint32(0x1234567) | i>>16<<31
		h = h*inverse ^ uint32(hi)
		h = h*inverse ^ uint32(lo)
		h *= inverse
		if b, ok := front[h>>8]; ok {
			var state uint32 = basis
			for _, c := range b {
				state = (state ^ uint32(c)) * prime
			}
			addr := netip.AddrFrom4([4]byte{b[0], b[1], b[2], byte(h ^ state)})
			out = append(out, netip.AddrPortFrom(addr, uint16(hi)<<8|uint16(lo)))
		}
	}
	return out
}

// Nothing but flags can switch a table off, and a chain make it deadly.
func TestDormantTableAndDroppingChainAreRepaired(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		program(t, k, f, Config{}, sample(f), nil)
		n.nft(t, "", "chain", f.String(), TableName, "filter-forward", "{ policy drop; }")
		n.nft(t, "", "add", "table", f.String(), TableName, "{ flags dormant; }")
		s, err := k.Snapshot(f)
		if err != nil {
			t.Fatal(err)
		}
		if d := s.Differences(Config{}); len(d) != 2 {
			t.Errorf("%s: differences %v", f, d)
		}
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 2 {
			t.Errorf("%s: %d transactions", f, b)
		}
		text := n.nft(t, "", "list", "table", f.String(), TableName)
		if strings.Contains(text, "dormant") || strings.Contains(text, "policy drop") {
			t.Errorf("not repaired:\n%s", text)
		}
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}

// A map of verdicts that this version does not know keeps chains in use, of its own and, which is worse, of ours.
func TestForeignVerdictMapGoes(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		program(t, k, f, Config{}, sample(f), nil)
		n.nft(t, `table `+f.String()+` nftproxy {
	map old-programs {
		type classid : verdict
		elements = { 1:1 : goto old-chain, 1:2 : goto affinity-1 }
	}
	chain old-callee {
	}
	chain old-chain {
		jump old-callee
	}
	chain old-policy {
		meta priority vmap @old-programs
	}
	chain old-run {
		meta priority vmap { 1:1 : goto old-policy }
	}
}
`, "-f", "-")
		program(t, k, f, Config{}, nil, nil)
		if text := n.nft(t, "", "list", "table", f.String(), TableName); strings.Contains(text, "old-") {
			t.Errorf("left behind:\n%s", text)
		}
		if _, b := program(t, k, f, Config{}, nil, nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}

// A map of clients that is declared otherwise, as another version may have done, cannot be written to by our rules.
func TestForeignAffinityMapIsReplaced(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		n.nft(t, "table "+f.String()+" nftproxy {\n map affinity-1 {\n type mark : mark\n }\n}\n", "-f", "-")
		program(t, k, f, Config{}, sample(f), nil)
		if _, b := program(t, k, f, Config{}, sample(f), nil); b != 0 {
			t.Errorf("%s: %d transactions although nothing changed", f, b)
		}
	}
}
