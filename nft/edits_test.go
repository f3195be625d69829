// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// editTime is how long edits are tried; every one is repaired before the next.
const editTime = 10 * time.Second

// Whatever another hand does inside our table, the next comparison repairs it.
func TestEditsAreRepaired(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	n := newNamespace(t)
	k := n.open(t)
	cfg := Config{MasqueradeBit: 14, Pods: PodMatch{CIDRs: true}}
	end, edits, refused, replaced := time.Now().Add(editTime), 0, 0, 0
	for i := 0; time.Now().Before(end); i++ {
		f := Families()[i%2]
		repair(t, k, f, cfg, false)
		var done []string
		for range 1 + r.IntN(4) {
			edit := randomEdit(r, snapshot(t, k, f))
			out, err := n.tryNFT(edit, "-f", "-")
			done = append(done, fmt.Sprintf("%s %v %s", edit, err, strings.TrimSpace(out)))
			if edits++; err != nil {
				refused++
			}
		}
		replacements := repair(t, k, f, cfg, true)
		replaced += replacements
		if t.Failed() {
			t.Fatalf("seed %d, after:\n%s", seed, strings.Join(done, "\n"))
		}
	}
	t.Logf("%d edits, %d of them refused by the kernel, %d tables replaced", edits, refused, replaced)
}

// A verdict that leads elsewhere is mended in place: as another hand or another version may leave it.
func TestVerdictThatLeadsElsewhere(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		program(t, k, f, Config{}, sample(f), sampleNode(f))
		table := f.String() + " nftproxy"
		n.nft(t, fmt.Sprintf("add chain %[1]s elsewhere; delete element %[1]s programs { 100:2 }; add element %[1]s programs { 100:2 : goto elsewhere }\n", table), "-f", "-")
		program(t, k, f, Config{}, sample(f), sampleNode(f))
		if s := snapshot(t, k, f); len(s.Differences(Config{}, sample(f))) > 0 || !s.Leads(NewProgram(KindCluster, 2)) {
			t.Errorf("%s: %v", f, s.Differences(Config{}, sample(f)))
		}
	}
}

// repair brings the table to its state as the loop does, and returns how often it had to be replaced as a whole.
func repair(t *testing.T, k *kernel.Conn, f Family, cfg Config, check bool) (replaced int) {
	t.Helper()
	var err error
	for attempt := range 3 {
		c := read(t, k, f)
		if c.Replace = attempt == 2; c.Replace {
			replaced++
		}
		table := NewTable(c)
		if err = k.CommitAll(table.Reconcile(c, cfg, sample(f), sampleNode(f)), nil); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("%s: not repaired: %v", f, err)
		return replaced
	}
	if !check {
		return replaced
	}
	s := snapshot(t, k, f)
	if d := s.Differences(cfg, sample(f)); len(d) > 0 {
		t.Errorf("%s: differences %v", f, d)
	}
	if d := DiffElements(s.Elements, WantedElements(sample(f), sampleNode(f))); d.Len() > 0 {
		t.Errorf("%s: elements differ: %+v", f, d)
	}
	if b := NewTable(s.Content).Reconcile(s.Content, cfg, sample(f), sampleNode(f)); len(b) > 0 {
		t.Errorf("%s: the next comparison is not silent: %v", f, b[0].Ops)
	}
	return replaced
}

// randomEdit returns a command of nft that changes some object of a table. The kernel may refuse it.
func randomEdit(r *rand.Rand, s *Snapshot) string {
	table := s.Family.String() + " " + TableName
	pick := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return names[r.IntN(len(names))]
	}
	chain := func() string { return pick(slices.Sorted(maps.Keys(s.Chains))) }
	set := func() string { return pick(slices.Sorted(maps.Keys(s.Sets))) }
	verdicts := func() string { return pick([]string{"programs", "policies", "draws"}) }
	var keys []VerdictKey
	for key := range s.Verdicts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b VerdictKey) int { return int(a.Program) - int(b.Program) })
	key := func() VerdictKey {
		if len(keys) == 0 {
			return VerdictKey{Map: Programs, Program: NewProgram(KindCluster, 9)}
		}
		return keys[r.IntN(len(keys))]
	}
	addr := fmt.Sprintf("192.0.2.%d", r.IntN(4))
	if s.Family == IPv6 {
		addr = fmt.Sprintf("2001:db8::%d", r.IntN(4))
	}
	statement := func() string {
		return pick([]string{"drop", "accept", "counter", "return", "jump " + chain(), "goto " + chain(), "meta mark set 1", "tcp dport { 1, 2 } drop",
			"meta priority vmap @" + verdicts()})
	}
	v := key()
	edits := []func() string{
		func() string { return fmt.Sprintf("add rule %s %s %s", table, chain(), statement()) },
		func() string { return fmt.Sprintf("insert rule %s %s %s", table, chain(), statement()) },
		func() string { return fmt.Sprintf("flush chain %s %s", table, chain()) },
		func() string {
			name := chain()
			return fmt.Sprintf("flush chain %s %s; delete chain %s %s", table, name, table, name)
		},
		func() string { return fmt.Sprintf("rename chain %s %s renamed-%d", table, chain(), r.IntN(9)) },
		func() string { return fmt.Sprintf("add chain %s odd-%d", table, r.IntN(3)) },
		func() string {
			return fmt.Sprintf("add chain %s base-%d { type filter hook %s priority %d; policy %s; }", table, r.IntN(3),
				pick([]string{"forward", "input"}), r.IntN(9), pick([]string{"accept", "drop"}))
		},
		func() string { return fmt.Sprintf("chain %s filter-forward { policy drop; }", table) },
		func() string {
			return fmt.Sprintf("add chain %s odd-%d; add rule %s odd-%d %s; delete element %s %s { %s }; add element %s %s { %s : goto odd-%d }", table, 1, table, 1,
				statement(), table, v.Map, v.Program, table, v.Map, v.Program, 1)
		},
		func() string { return fmt.Sprintf("delete element %s %s { %s }", table, v.Map, v.Program) },
		func() string {
			return fmt.Sprintf("add element %s %s { %x:%x : goto %s }", table, verdicts(), r.IntN(65536), r.IntN(65536), chain())
		},
		func() string { return fmt.Sprintf("flush set %s %s", table, set()) },
		func() string { return fmt.Sprintf("delete set %s %s", table, set()) },
		func() string {
			return fmt.Sprintf("flush ruleset %s; add table %s; add map %s %s { type mark : mark; }", s.Family, table, table, set())
		},
		func() string { return fmt.Sprintf("delete map %s affinity-%d", table, 1+r.IntN(2)) },
		func() string {
			return fmt.Sprintf("add set %s odd-%d { type mark; flags timeout; elements = { 1 timeout 1h }; }", table, r.IntN(3))
		},
		func() string {
			return fmt.Sprintf("add map %s odd-map-%d { type classid : verdict; elements = { 1:%d : jump %s }; }", table, r.IntN(3), r.IntN(9), chain())
		},
		func() string {
			return fmt.Sprintf("add counter %s odd-counter; add quota %s odd-quota { over 1 mbytes; }", table, table)
		},
		func() string { return fmt.Sprintf("add table %s { flags dormant; }", table) },
		func() string { return fmt.Sprintf("delete table %s", table) },
		func() string { return fmt.Sprintf("flush table %s", table) },
		func() string { return "flush ruleset" },
		func() string { return fmt.Sprintf("add element %s cluster-ips { %s }", table, addr) },
		func() string { return fmt.Sprintf("add element %s service-cidrs { %s }", table, addr) },
		func() string {
			return fmt.Sprintf("add element %s services { %s . tcp . %d : %d:%d }", table, addr, r.IntN(9), r.IntN(9), r.IntN(9))
		},
		func() string {
			return fmt.Sprintf("add element %s restricted { %s . tcp . 80 comment \"x\" }", table, addr)
		},
		func() string { return elementEdit(r, s, table) },
		func() string { return elementEdit(r, s, table) },
	}
	return edits[r.IntN(len(edits))]() + "\n"
}

// elementEdit deletes an element of a map, or gives it another datum.
func elementEdit(r *rand.Rand, s *Snapshot, table string) string {
	decoder := NewDecoder(s.Family)
	for range 20 {
		if len(s.Elements) == 0 {
			break
		}
		e := s.Elements[r.IntN(len(s.Elements))]
		d, ok := decoder.Decode(&e)
		if !ok {
			continue
		}
		vip := fmt.Sprintf("%s . %s . %d", d.Addr, d.Proto, d.Port)
		if !d.Addr.IsValid() {
			vip = fmt.Sprintf("%s . %d", d.Proto, d.Port)
		}
		slot := fmt.Sprintf("%s . %s", vip, Program(d.Slot))
		key, data := "", ""
		switch e.Set {
		case Services, NodePorts, ClusterPrograms, LocalPrograms, NodePortClusterPrograms, NodePortLocalPrograms:
			key, data = vip, Program(binary.NativeEndian.Uint32([]byte(e.Data))+1).String()
		case Endpoints, NodePortEndpoints, EndpointsByID, NodePortEndpointsByID:
			other := netip.AddrPortFrom(d.Endpoint.Addr().Next(), d.Endpoint.Port())
			key, data = slot, fmt.Sprintf("%s . %d", other.Addr(), other.Port())
		default:
			continue
		}
		edit := fmt.Sprintf("delete element %s %s { %s }", table, e.Set, key)
		if r.IntN(2) == 0 {
			edit += fmt.Sprintf("; add element %s %s { %s : %s }", table, e.Set, key, data)
		}
		return edit
	}
	return "flush table " + table
}
