// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

func named(n string) kube.Name { return kube.Name{Namespace: "ns", Name: n} }

// aged is service with a name and a creation time.
func aged(t testing.TB, name string, created int64, text string) *kube.Service {
	s := service(t, nft.IPv4, text)
	s.Name, s.Created = named(name), created
	s.ClusterIPs[0] = address(nft.IPv4, 96, int(name[0])) // one each, unless a test says otherwise
	return s
}

// TestContested: of two Services that want the same, the older one gets it, whichever comes first.
func TestContested(t *testing.T) {
	sameClusterIP := func(a, b *kube.Service) { b.ClusterIPs = a.ClusterIPs }
	for _, tt := range []struct {
		name         string
		winner       string
		loser        string
		adapt        func(winner, loser *kube.Service)
		lost         []string
		createdTwice int64 // when both were created; 0: the winner at 1, the loser at 2
	}{
		{name: "ClusterIP", winner: ":80", loser: ":80", adapt: sameClusterIP, lost: []string{"tcp 10.96.0.98:80"}},
		{name: "ClusterIP with several ports", winner: "a:80 b:81", loser: "a:80 c:82", adapt: sameClusterIP, lost: []string{"tcp 10.96.0.98:80"}},
		{name: "ClusterIP, other protocol", winner: ":80", loser: "/UDP:80", adapt: sameClusterIP},
		{name: "NodePort", winner: ":80:30080", loser: ":81:30080", lost: []string{"tcp NodePort 30080 (ip)"}},
		{name: "NodePort, other protocol", winner: ":80:30080", loser: "/UDP:80:30080"},
		{name: "external IP", winner: ":80 external=1", loser: ":80 external=1,2", lost: []string{"tcp 10.2.0.1:80"}},
		{name: "external IP, other port", winner: ":80 external=1", loser: ":81 external=1"},
		{name: "load balancer that shares its address", winner: ":80 lb=1", loser: ":80 lb=1", lost: []string{"tcp 10.3.0.1:80"}},
		{name: "external IP of one, load balancer of the other", winner: ":80 lb=1", loser: ":80",
			adapt: func(a, b *kube.Service) { b.ExternalIPs = a.LoadBalancerIPs }, lost: []string{"tcp 10.3.0.1:80"}},
		{name: "external IP that is another's ClusterIP", winner: ":80", loser: ":80",
			adapt: func(a, b *kube.Service) { b.ExternalIPs = a.ClusterIPs[:1] }, lost: []string{"tcp 10.96.0.98:80"}},
		{name: "equally old: by name", winner: ":80:30080", loser: ":80:30080", createdTwice: 7, lost: []string{"tcp NodePort 30080 (ip)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			winner, loser := aged(t, "b", 1, tt.winner), aged(t, "a", 2, tt.loser) // the name alone would turn it around
			if tt.createdTwice != 0 {
				winner, loser = aged(t, "b", tt.createdTwice, tt.winner), aged(t, "c", tt.createdTwice, tt.loser)
			}
			if tt.adapt != nil {
				tt.adapt(winner, loser)
			}
			for _, order := range [][]*kube.Service{{winner, loser}, {loser, winner}} {
				checkContested(t, order, winner, loser, tt.lost)
			}
		})
	}
}

func checkContested(t *testing.T, order []*kube.Service, winner, loser *kube.Service, lost []string) {
	t.Helper()
	x := NewIndex()
	x.Set(order[0].Name, order[0].Created, Claims(order[0]))
	changed := x.Set(order[1].Name, order[1].Created, Claims(order[1]))
	var want []kube.Name
	if len(lost) > 0 && order[0] == loser {
		want = []kube.Name{loser.Name}
	}
	if !slices.Equal(changed, want) {
		t.Errorf("changed %v, want %v", changed, want)
	}
	var got []string
	for _, l := range x.Losses(loser.Name) {
		got = append(got, l.Claim.String())
		if l.Winner != winner.Name {
			t.Errorf("%s was granted to %s, want %s", l.Claim, l.Winner, winner.Name)
		}
	}
	if !slices.Equal(got, lost) {
		t.Errorf("lost %q, want %q", got, lost)
	}
	if f := x.Lost(winner.Name); f != nil || x.Losses(winner.Name) != nil {
		t.Error("the winner lost something")
	}
	p := Build(Input{Service: loser, Lost: x.Lost(loser.Name)})
	if n := len(Claims(loser)) - len(lost); countFrontends(p) != n {
		t.Errorf("%d frontends left, want %d", countFrontends(p), n)
	}
	if changed := x.Remove(winner.Name); len(lost) > 0 != slices.Equal(changed, []kube.Name{loser.Name}) {
		t.Errorf("after removal of the winner: changed %v", changed)
	}
	if x.Lost(loser.Name) != nil {
		t.Error("after removal of the winner: still lost")
	}
}

func countFrontends(out Output) (n int) {
	for i := range out.Ports {
		n += len(out.Ports[i].Frontends)
	}
	return n
}

// TestPrecedence: who has given the address decides before age does. A user who writes addresses of the service CIDR or of
// the load balancers' pool into spec.externalIPs in advance gets nothing of the Services that are given them later.
func TestPrecedence(t *testing.T) {
	cluster, balancer := address(nft.IPv4, 96, 50), address(nft.IPv4, 203, 77)
	squatter := aged(t, "a", 1, ":80")
	squatter.ExternalIPs = []netip.Addr{cluster, balancer}
	victim := aged(t, "b", 2, ":80")
	victim.ClusterIPs[0] = cluster
	victim.LoadBalancerIPs = []netip.Addr{balancer}
	controller := aged(t, "c", 3, ":80") // its load balancer was given an address that is a ClusterIP
	controller.LoadBalancerIPs = []netip.Addr{cluster}
	all := []*kube.Service{squatter, victim, controller}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}} {
		x := NewIndex()
		for _, i := range order {
			x.Set(all[i].Name, all[i].Created, Claims(all[i]))
		}
		if x.Losses(victim.Name) != nil || len(x.Losses(squatter.Name)) != 2 || len(x.Losses(controller.Name)) != 1 {
			t.Errorf("order %v: the victim lost %v, the squatter %v, the controller %v", order,
				x.Losses(victim.Name), x.Losses(squatter.Name), x.Losses(controller.Name))
		}
		x.Remove(victim.Name)
		if l := x.Losses(squatter.Name); len(l) != 1 || l[0].Winner != controller.Name {
			t.Errorf("order %v: a load balancer's address is %v's", order, l)
		}
	}
}

// ownerOf returns who has been granted a claim.
func ownerOf(x *Index, c Claim) (kube.Name, bool) {
	id, ok := x.owners[keyOf(c).bare()]
	if !ok {
		return kube.Name{}, false
	}
	return x.claimants[id].name, true
}

// TestInheritance: three Services on one NodePort, and what happens as the one that has it goes or changes.
func TestInheritance(t *testing.T) {
	claim := func(port uint16) []Claim { return []Claim{{Family: nft.IPv4, Proto: nft.TCP, Port: port}} }
	x := NewIndex()
	check := func(step string, changed []kube.Name, want []kube.Name, owner string) {
		t.Helper()
		if !slices.Equal(changed, want) {
			t.Errorf("%s: changed %v, want %v", step, changed, want)
		}
		if got, ok := ownerOf(x, claim(30080)[0]); ok != (owner != "") || ok && got != named(owner) {
			t.Errorf("%s: owner %v, want %q", step, got, owner)
		}
	}
	one := func(n string) []kube.Name { return []kube.Name{named(n)} }
	check("first", x.Set(named("c"), 30, claim(30080)), nil, "c")
	check("older", x.Set(named("a"), 10, claim(30080)), one("c"), "a")
	check("between", x.Set(named("b"), 20, claim(30080)), nil, "a")
	check("of unknown age", x.Set(named("0"), 0, claim(30080)), nil, "a")
	check("again", x.Set(named("a"), 10, claim(30080)), nil, "a")
	check("made anew", x.Set(named("a"), 25, claim(30080)), one("b"), "b")
	check("other port", x.Set(named("b"), 20, claim(30081)), one("a"), "a")
	check("back", x.Set(named("b"), 20, claim(30080)), one("a"), "b")
	check("removed", x.Remove(named("b")), one("a"), "a")
	check("removed again", x.Remove(named("b")), nil, "a")
	check("claims nothing", x.Set(named("a"), 25, nil), one("c"), "c")
	check("last but one", x.Remove(named("c")), one("0"), "0")
	check("last", x.Remove(named("0")), nil, "")
	if n := len(x.owners) + len(x.losers) + len(x.ids) - 1; n != 0 { // a is there, without claims
		t.Errorf("%d entries left", n)
	}
}

// model is the obvious index: it looks at everything for every answer.
type model map[kube.Name]modelService

type modelService struct {
	created int64
	claims  []Claim
}

// bare is a claim without its source: claims compete whatever their source is.
func bare(c Claim) Claim {
	c.Source = FromAllocator
	return c
}

func (m model) owners() map[Claim]kube.Name {
	out := map[Claim]kube.Name{}
	for n, s := range m {
		for _, c := range s.claims {
			if o, ok := out[bare(c)]; !ok || m.before(bare(c), n, o) {
				out[bare(c)] = n
			}
		}
	}
	return out
}

// before tells whether a goes before b where both make a claim.
func (m model) before(c Claim, a, b kube.Name) bool {
	age := func(n kube.Name) uint64 { return uint64(m[n].created) - 1 } // 0, not known, is the greatest
	source := func(n kube.Name) ClaimSource {
		strongest := FromUser
		for _, o := range m[n].claims {
			if bare(o) == c {
				strongest = min(strongest, o.Source)
			}
		}
		return strongest
	}
	return cmp.Or(cmp.Compare(source(a), source(b)), cmp.Compare(age(a), age(b)), a.Compare(b)) < 0
}

// changed lists the Services other than n whose grants differ.
func changedOwners(before, after map[Claim]kube.Name, n kube.Name) []kube.Name {
	var out []kube.Name
	note := func(owner kube.Name, ok bool) {
		if ok && owner != n {
			out = append(out, owner)
		}
	}
	for c, o := range before {
		if after[c] != o {
			note(o, true)
			note(after[c], after[c] != kube.Name{})
		}
	}
	for c, o := range after {
		_, had := before[c]
		note(o, !had)
	}
	slices.SortFunc(out, kube.Name.Compare)
	return slices.Compact(out)
}

// TestIndexLaw walks at random and compares the index with the model at each step.
func TestIndexLaw(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	x, m := NewIndex(), model{}
	for step := range 3000 {
		n := named(fmt.Sprint(rng.IntN(12)))
		before := m.owners()
		var got []kube.Name
		if rng.IntN(4) == 0 {
			delete(m, n)
			got = x.Remove(n)
		} else {
			s := modelService{created: int64(rng.IntN(4)), claims: randomClaims(rng)}
			if old, ok := m[n]; ok && rng.IntN(2) == 0 {
				s.created = old.created
			}
			m[n] = s
			got = x.Set(n, s.created, s.claims)
		}
		after := m.owners()
		if want := changedOwners(before, after, n); !slices.Equal(got, want) {
			t.Fatalf("step %d, %s: changed %v, want %v", step, n, got, want)
		}
		checkIndex(t, step, x, m, after)
	}
}

func randomClaims(rng *rand.Rand) []Claim {
	addrs := []netip.Addr{{}, address(nft.IPv4, 96, 1), address(nft.IPv4, 96, 2)}
	protos := []nft.Proto{nft.TCP, nft.UDP}
	var out []Claim
	for range rng.IntN(5) {
		c := Claim{nft.IPv4, addrs[rng.IntN(len(addrs))], protos[rng.IntN(2)], uint16(80 + rng.IntN(2)), ClaimSource(rng.IntN(3))}
		if !c.Addr.IsValid() && rng.IntN(2) == 0 {
			c.Family = nft.IPv6
		}
		out = append(out, c) // at times the same twice
	}
	return out
}

func checkIndex(t *testing.T, step int, x *Index, m model, owners map[Claim]kube.Name) {
	t.Helper()
	if len(x.owners) != len(owners) || len(x.ids) != len(m) {
		t.Fatalf("step %d: %d claims of %d Services, want %d of %d", step, len(x.owners), len(x.ids), len(owners), len(m))
	}
	for c, o := range owners {
		if got, ok := ownerOf(x, c); !ok || got != o {
			t.Fatalf("step %d: %s is %v's, want %v", step, c, got, o)
		}
	}
	for n, s := range m {
		lost := x.Lost(n)
		want := map[Claim]kube.Name{}
		for _, c := range s.claims {
			c = bare(c)
			if owners[c] != n {
				want[c] = owners[c]
			}
			if (owners[c] != n) != (lost != nil && lost(c)) {
				t.Fatalf("step %d: %s lost %s: want %t", step, n, c, owners[c] != n)
			}
		}
		losses := x.Losses(n)
		if len(losses) != len(want) || lost == nil != (len(want) == 0) {
			t.Fatalf("step %d: %s lost %v, want %v", step, n, losses, want)
		}
		for _, l := range losses {
			if want[bare(l.Claim)] != l.Winner {
				t.Fatalf("step %d: %s lost %v, want %v", step, n, l, want)
			}
		}
	}
}

// TestKey: the compact form keeps every claim apart.
func TestKey(t *testing.T) {
	seen := map[key]Claim{}
	for _, f := range nft.Families() {
		for _, a := range []netip.Addr{{}, address(f, 96, 1), address(f, 96, 2), zeros(f)} {
			for _, p := range []nft.Proto{nft.TCP, nft.UDP, nft.SCTP} {
				for _, port := range []uint16{0, 1, 80, 65535} {
					c := Claim{Family: f, Addr: a, Proto: p, Port: port}
					k := keyOf(c)
					if other, ok := seen[k]; ok {
						t.Errorf("%s and %s are the same", c, other)
					}
					seen[k] = c
					if k.claim() != c {
						t.Errorf("%s came back as %s", c, k.claim())
					}
				}
			}
		}
	}
}

func zeros(f nft.Family) netip.Addr {
	if f == nft.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// TestClaimsAreFrontends: a Service that loses nothing has a frontend for each claim, and no other.
func TestClaimsAreFrontends(t *testing.T) {
	s := dualStack(t)
	claims := map[Claim]bool{}
	for _, c := range Claims(s) {
		if claims[bare(c)] {
			t.Errorf("%s twice", c)
		}
		claims[bare(c)] = true
	}
	n := 0
	for _, p := range Build(Input{Service: s}).Ports {
		for _, f := range p.Frontends {
			n++
			if !claims[Claim{Family: p.Family, Addr: f.Addr, Proto: p.Proto, Port: f.Port}] {
				t.Errorf("no claim for %v of %s", f, p.Name)
			}
		}
	}
	if n != len(claims) {
		t.Errorf("%d frontends, %d claims", n, len(claims))
	}
}

// TestIndexCost: what Services have nothing to do with each other, costs none of them anything.
func TestIndexCost(t *testing.T) {
	var allocs [2]float64
	for i, n := range []int{10, 10_000} {
		x := NewIndex()
		for j := range n {
			x.Set(numbered(j, 0))
		}
		name, created, claims := numbered(5, 0)
		_, _, other := numbered(5, 1)
		allocs[i] = testing.AllocsPerRun(100, func() {
			x.Set(name, created, other)
			x.Set(name, created, claims)
		})
	}
	if allocs[0] != allocs[1] || allocs[0] > 4 {
		t.Errorf("%v allocations for two changes among 10 and 10,000 Services, want the same, and at most 4", allocs)
	}
}

// Owner returns who has been granted a claim.
func (x *Index) Owner(c Claim) (kube.Name, bool) {
	id, ok := x.owners[keyOf(c).bare()]
	if !ok {
		return kube.Name{}, false
	}
	return x.claimants[id].name, true
}
