// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// newRand returns a source of randomness whose seed is printed and can be set by NFTPROXY_SEED.
func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("NFTPROXY_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("NFTPROXY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func endpointAt(f Family, i int) netip.AddrPort {
	if f == IPv4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), uint16(8000+i%3))
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), uint16(8000+i%3))
}

func randomEndpoints(r *rand.Rand, f Family) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range 12 {
		if r.IntN(3) == 0 {
			out = append(out, endpointAt(f, i))
		}
	}
	return out
}

// randomService returns a version of Service i; versions of different Services share no frontend.
func randomService(r *rand.Rand, f Family, i int) *Service {
	if r.IntN(6) == 0 {
		return nil
	}
	cluster := randomEndpoints(r, f)
	s := &Service{Name: "ns/svc-" + strconv.Itoa(i), Proto: []Proto{TCP, UDP, SCTP}[r.IntN(3)], Served: len(cluster) > 0, Cluster: cluster}
	for _, e := range cluster {
		if r.IntN(2) == 0 {
			s.Local = append(s.Local, e)
		}
	}
	s.Hairpin, s.Counted = s.Local, r.IntN(2) == 0
	if r.IntN(3) == 0 {
		s.Affinity, s.AffinityIDs = time.Duration(1+r.IntN(3))*time.Hour, [2]uint32{uint32(2*i + 1), uint32(2*i + 2)}
	}
	vip := endpointAt(f, 1000+i).Addr()
	s.Frontends = []Frontend{{Kind: ClusterIP, Addr: vip, Port: 80, Local: r.IntN(2) == 0}}
	switch r.IntN(4) {
	case 0:
		s.Frontends[0].Steered = true
	case 2:
		s.Frontends[0].HandedOver = true
	case 1:
		s.Frontends[0].HostEndpoint = endpointAt(f, 4000+r.IntN(3))
	}
	if r.IntN(2) == 0 {
		fe := Frontend{Kind: External, Addr: endpointAt(f, 2000+i).Addr(), Port: 80, Local: r.IntN(2) == 0, Restricted: r.IntN(2) == 0}
		if fe.Restricted && r.IntN(4) > 0 {
			fe.Sources = MergePrefixes([]netip.Prefix{netip.PrefixFrom(endpointAt(f, 3000+r.IntN(9)).Addr(), 30)})
		}
		s.Frontends = append(s.Frontends, fe)
	}
	if r.IntN(2) == 0 {
		s.Frontends = append(s.Frontends, Frontend{Kind: NodePort, Port: uint16(30000 + i), Local: r.IntN(2) == 0})
	}
	return s
}

// apply carries out a change on a model of the sets, as the kernel does.
func apply(t *testing.T, have map[Element]bool, c Change) {
	t.Helper()
	for _, e := range c.Delete {
		if !have[e] {
			t.Fatalf("deletes %+v, which is not there", e)
		}
		delete(have, e)
	}
	for _, e := range c.Add {
		for h := range have {
			if h.sameKey(&e) {
				t.Fatalf("adds %+v, but has %+v", e, h)
			}
		}
		have[e] = true
	}
}

func elementsOf(s *Service) []Element {
	if s == nil {
		return nil
	}
	return Elements(s)
}

func elementSet(services []*Service) map[Element]bool {
	out := map[Element]bool{}
	for _, s := range services {
		if s != nil {
			for _, e := range Elements(s) {
				out[e] = true
			}
		}
	}
	return out
}

// Apply(have, Diff(have, want)) == want, nothing is deleted that is not there, and no key is there twice.
func TestDiffLeadsFromOneToTheOther(t *testing.T) {
	r := newRand(t)
	for _, f := range Families() {
		services := make([]*Service, 6)
		have, counter := map[Element]bool{}, Counter{}
		for range 2000 {
			i := r.IntN(len(services))
			next := randomService(r, f, i)
			if prev := services[i]; prev != nil && next != nil {
				next.Cluster = AssignSlots(prev.Cluster, next.Cluster)
				next.Local = AssignSlots(prev.Local, next.Local)
			}
			raw := Diff(services[i], next)
			c := counter.Apply(raw)
			if r.IntN(4) == 0 { // refused: as if it had not been
				counter.Undo(raw)
				continue
			}
			apply(t, have, c)
			services[i] = next
			if want := elementSet(services); !maps.Equal(have, want) {
				t.Fatalf("%s: %d elements, want %d", f, len(have), len(want))
			}
			if n := len(elementsOf(next)); next != nil && (next.Size() < n || next.Size() > n+len(next.Frontends)) {
				t.Fatalf("%s: size %d of %d elements, %d frontends", f, next.Size(), n, len(next.Frontends))
			}
			if d := Diff(next, next); d.Len() != 0 {
				t.Fatalf("%s: differs from itself: %+v", f, d)
			}
		}
	}
}

// After each stage, whatever leads to something finds it.
func TestStagesAreSafe(t *testing.T) {
	r := newRand(t)
	for range 200 {
		var from, to []*Service
		for i := range 5 {
			from, to = append(from, randomService(r, IPv4, i)), append(to, randomService(r, IPv4, i))
		}
		have, want := elementSet(from), elementSet(to)
		c := DiffElements(slices.Collect(maps.Keys(have)), slices.Collect(maps.Keys(want)))
		for _, part := range Stage(c, 5) {
			if part.Len() > 6 {
				t.Fatalf("stage of %d elements, want at most 6", part.Len())
			}
			apply(t, have, part)
			checkReferences(t, have)
		}
		if !maps.Equal(have, want) {
			t.Fatalf("ends with %d elements, want %d", len(have), len(want))
		}
	}
}

// checkReferences looks for services without program of the view, and balancers without slot 0.
func checkReferences(t *testing.T, have map[Element]bool) {
	t.Helper()
	keys := map[place]bool{}
	for e := range have {
		keys[place{e.Set, e.Key}] = true
	}
	for e := range have {
		if e.Set != Services {
			continue
		}
		d := decoder{e.Data, true}
		p := Program(d.classID())
		switch {
		case p.Kind().IsPolicy():
			if !keys[place{ClusterPrograms, e.Key}] && !keys[place{LocalPrograms, e.Key}] {
				t.Fatalf("policy of %s leads nowhere", e.Comment)
			}
		case p.Kind() == KindCluster:
			if !keys[place{Endpoints, e.Key + string(appendClassID(nil, uint32(NewSlot(ClusterView, 0))))}] {
				t.Fatalf("balancer of %s has no slot 0", e.Comment)
			}
		case p.Kind() == KindAffinity:
			if !keys[place{StickyDraws, e.Data}] {
				t.Fatalf("sticky %s has no draw", e.Comment)
			}
		}
	}
}

func TestAssignSlots(t *testing.T) {
	r := newRand(t)
	var prev []netip.AddrPort
	for range 2000 {
		want := randomEndpoints(r, IPv4)
		got := AssignSlots(prev, want)
		sorted := slices.SortedFunc(slices.Values(got), netip.AddrPort.Compare)
		if !slices.Equal(sorted, slices.SortedFunc(slices.Values(want), netip.AddrPort.Compare)) {
			t.Fatalf("AssignSlots(%v, %v) = %v", prev, want, got)
		}
		// Whatever keeps its index costs nothing; the rest is bounded by what came and went.
		moved := 0
		for i, e := range got {
			if slices.Contains(prev, e) && (i >= len(prev) || prev[i] != e) {
				moved++
			}
		}
		gone := 0
		for _, e := range prev {
			if !slices.Contains(want, e) {
				gone++
			}
		}
		if moved > gone {
			t.Fatalf("AssignSlots(%v, %v) = %v: %d moved for %d gone", prev, want, got, moved, gone)
		}
		prev = got
	}
}

func TestModulus(t *testing.T) {
	last := uint32(0)
	for n := 1; n <= 300000; n++ {
		m := Modulus(n)
		if int(m) < n || m < last || m > maxProgramArg {
			t.Fatalf("Modulus(%d) = %d after %d", n, m, last)
		}
		if n <= exactModulus && int(m) != n || float64(m)/float64(n) > 1+1.0/32+1e-9 {
			t.Fatalf("Modulus(%d) = %d", n, m)
		}
		last = m
	}
}

func TestMergeRanges(t *testing.T) {
	p := func(s ...string) (out []netip.Prefix) {
		for _, v := range s {
			out = append(out, netip.MustParsePrefix(v))
		}
		return out
	}
	for _, c := range []struct {
		in   []netip.Prefix
		want string
	}{
		{p(), ""},
		{p("10.0.0.0/24", "10.0.1.0/24"), "10.0.0.0-10.0.1.255 "},
		{p("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"), "10.0.0.0-10.255.255.255 "},
		{p("10.0.2.0/24", "10.0.0.0/24"), "10.0.0.0-10.0.0.255 10.0.2.0-10.0.2.255 "},
		{p("0.0.0.0/0", "255.255.255.255/32"), "0.0.0.0-255.255.255.255 "},
		{p("255.255.255.254/31", "255.255.255.253/32"), "255.255.255.253-255.255.255.255 "},
		{p("ffff::/16", "::/0"), "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff "},
		{p("255.255.255.255/32", "::/128"), "255.255.255.255-255.255.255.255 ::-:: "},
	} {
		got := ""
		for _, r := range MergeRanges(c.in) {
			got += r.From.String() + "-" + r.To.String() + " "
		}
		if got != c.want {
			t.Errorf("MergeRanges(%v) = %s, want %s", c.in, got, c.want)
		}
	}
}

// Ids are stable: they depend on the endpoint, not on its slot or company, but for collisions.
func TestEndpointIDs(t *testing.T) {
	r := newRand(t)
	all := make([]netip.AddrPort, 5000)
	for i := range all {
		all[i] = endpointAt(IPv4, i)
	}
	ids := endpointIDs(LocalView, all)
	seen := map[uint32]bool{}
	for _, id := range ids {
		if seen[id] || id>>31 != 1 || id<<1 == 0 {
			t.Fatalf("id %x twice, or of the wrong view", id)
		}
		seen[id] = true
	}
	some := slices.Clone(all[:100])
	want := endpointIDs(ClusterView, some)
	order := r.Perm(len(some))
	shuffled := make([]netip.AddrPort, len(some))
	for i, o := range order {
		shuffled[i] = some[o]
	}
	for i, id := range endpointIDs(ClusterView, shuffled) {
		if id != want[order[i]] {
			t.Fatalf("id of %s depends on its slot", shuffled[i])
		}
	}
}

func TestRangedIsDeclared(t *testing.T) {
	for _, id := range append(Sets(), AllowedSources(24)) {
		if id.IsInterval() != id.spec().interval {
			t.Errorf("%s: ranged %v, declared %v", id, id.IsInterval(), id.spec().interval)
		}
	}
}

// The first start of a node with many sticky Services.
func TestNumberingIsLinear(t *testing.T) {
	table := NewTable(&Content{Family: IPv4})
	const n = 30000
	var last [2]uint32
	steps := 0
	for i := range n {
		s := &Service{Name: fmt.Sprintf("default/sticky-%d:http", i), Affinity: time.Hour}
		before := table.free
		table.Number(s)
		steps += int(table.free - before)
		last = s.AffinityIDs
	}
	if steps > 2*n {
		t.Errorf("%d steps to number %d Services", steps, n)
	}
	if last != [2]uint32{59999, 60000} {
		t.Errorf("last numbers %v", last)
	}
}

// Who may write EndpointSlices can choose addresses of one hash.
func TestEndpointIDsOfOneHash(t *testing.T) {
	eps := sameHash()
	ids := endpointIDs(ClusterView, eps)
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

// A list that names an element twice, and leaves another out, as that of a hash table which the kernel resizes: no element
// that is wanted is deleted, none twice.
func TestRepeatedElementsAreNotDeleted(t *testing.T) {
	e := func(i int) Element { return Element{Set: ClusterIPs, Key: addrKey(endpointAt(IPv4, i).Addr())} }
	have, want := []Element{e(1), e(2), e(1), e(3), e(3)}, []Element{e(1), e(2), e(4)}
	c := DiffElements(have, want)
	if len(c.Delete) != 1 || c.Delete[0] != e(3) || len(c.Add) != 1 || c.Add[0] != e(4) {
		t.Errorf("%+v", c)
	}
	list, repeated := Distinct(slices.Clone(have))
	if !repeated || len(list) != 3 {
		t.Errorf("%d distinct elements, repeated %v", len(list), repeated)
	}
	if list, repeated := Distinct(slices.Clone(want)); repeated || len(list) != 3 {
		t.Errorf("%d distinct elements, repeated %v", len(list), repeated)
	}
}

// place is the key of an endpoint; set separates VIPs from NodePorts.
type place struct {
	set SetID
	key string
}
