// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nftmodel

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// TestModelAgrees: the model and the real kernel accept and refuse the same batches with the same errno, and hold the same
// afterwards. The batches are what a proxy sends, and edits of every kind by other hands.
func TestModelAgrees(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("NFTPROXY_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("NFTPROXY_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	accepted, refused := 0, map[string]int{}
	for range 4 {
		ns := lab.Must(lab.NewNamespace())(t)
		real := lab.Must(kernel.Open(ns.FD()))(t)
		model, f := &Kernel{}, nft.Families()[r.IntN(2)]
		commit := func(b *nft.Batch) error {
			got, want := model.Commit(b), real.Commit(b)
			if errnoOf(got) != errnoOf(want) {
				t.Fatalf("model: %v, kernel: %v", got, want)
			}
			if want == nil {
				accepted++
			} else {
				refused[errnoOf(want)]++
			}
			if m, k := canonical(model.Read(f)), canonical(lab.Must(real.Read(f))(t)); !reflect.DeepEqual(m, k) {
				t.Fatalf("after %d operations the first of which is %s (%v):\nmodel:  %+v\nkernel: %+v", len(b.Ops), b.Ops[0].String(), want, m, k)
			}
			return want
		}
		for range 6 {
			services := randomServices(r, f)
			content := model.Read(f)
			table := nft.NewTable(content)
			for _, s := range services {
				table.Number(s)
			}
			for _, b := range table.Reconcile(content, nft.Config{MasqueradeBit: 14, Pods: nft.PodMatch{CIDRs: true}}, services, nil) {
				if err := commit(b); err != nil {
					t.Fatalf("the builder's own batch: %v", err)
				}
			}
			for range 15 {
				_ = commit(randomEdit(r, f, model, services))
			}
			// What other hands did is away before the next round, which is about the model and not about repairs.
			_ = commit(&nft.Batch{Ops: []nft.Op{{Kind: nft.DeleteTable, Family: f, Table: nft.TableName}}})
		}
		real.Close()
		ns.Close()
	}
	t.Logf("%d batches accepted, refused: %v", accepted, refused)
	if accepted < 50 || len(refused) < 3 {
		t.Errorf("the edits meet too little: %d accepted, refused %v", accepted, refused)
	}
}

func errnoOf(err error) string {
	var op *kernel.OpError
	if errors.As(err, &op) {
		return op.Errno.Error()
	}
	return fmt.Sprint(err)
}

// canonical sorts what has no order, and leaves out what only the kernel adds.
func canonical(c *nft.Content) *nft.Content {
	slices.SortFunc(c.Elements, func(a, b nft.Element) int {
		return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key), cmp.Compare(a.End, b.End))
	})
	if len(c.Elements) == 0 {
		c.Elements = nil
	}
	for name, s := range c.Sets {
		s.Comment, s.Counting, s.Timeout = "", false, 0
		c.Sets[name] = s
	}
	for name, ch := range c.Chains {
		if len(ch.Rules) == 0 {
			ch.Rules = nil
		}
		c.Chains[name] = ch
	}
	return c
}

// randomServices are up to four ports of Services with endpoints out of eight.
func randomServices(r *rand.Rand, f nft.Family) []*nft.Service {
	pick := func(v4, v6 string, i int) netip.Addr {
		if f == nft.IPv4 {
			return netip.MustParseAddr(fmt.Sprintf(v4, i))
		}
		return netip.MustParseAddr(fmt.Sprintf(v6, i))
	}
	var out []*nft.Service
	for i := range r.IntN(4) {
		s := &nft.Service{Name: fmt.Sprintf("default/svc-%d:http", i), Proto: nft.TCP, Served: r.IntN(4) > 0}
		for _, e := range r.Perm(8)[:r.IntN(5)] {
			s.Cluster = append(s.Cluster, netip.AddrPortFrom(pick("10.244.0.%d", "fd00:244::%x", e+1), 8080))
		}
		s.Local = s.Cluster[:r.IntN(len(s.Cluster)+1)]
		s.Served = s.Served || len(s.Cluster) > 0
		s.Frontends = []nft.Frontend{{Kind: nft.ClusterIP, Addr: pick("10.96.0.%d", "fd00:10:96::%x", i+1), Port: 80, Local: r.IntN(4) == 0}}
		if r.IntN(2) == 0 {
			s.Frontends = append(s.Frontends, nft.Frontend{Kind: nft.NodePort, Port: uint16(30000 + i), Local: r.IntN(2) == 0})
		}
		if r.IntN(3) == 0 {
			s.Affinity, s.AffinitySize = time.Hour, 1024
		}
		out = append(out, s)
	}
	return out
}

// randomEdit is something that a person with nft does to the table, wise or not.
func randomEdit(r *rand.Rand, f nft.Family, k *Kernel, services []*nft.Service) *nft.Batch {
	sets, chains := k.Names(f)
	any := func(list []string) string {
		if len(list) == 0 || r.IntN(8) == 0 {
			return "nosuch"
		}
		return list[r.IntN(len(list))]
	}
	b := &nft.Batch{}
	for range 1 + r.IntN(3) {
		switch r.IntN(7) {
		case 0:
			b.Add(nft.Op{Kind: nft.FlushChain, Family: f, Name: any(chains)})
		case 1:
			b.Add(nft.Op{Kind: nft.DeleteChain, Family: f, Name: any(chains)})
		case 2:
			b.Add(nft.Op{Kind: nft.DeleteSet, Family: f, Name: any(sets)})
		case 3:
			name := fmt.Sprintf("other-%d", r.IntN(3))
			b.Add(nft.Op{Kind: nft.AddChain, Family: f, Name: name, Chain: &nft.Chain{Name: name}})
		case 4:
			b.AddTable(f)
		default:
			if len(services) == 0 {
				continue
			}
			list := nft.Elements(services[r.IntN(len(services))])
			if len(list) == 0 {
				continue
			}
			e := list[r.IntN(len(list))]
			if r.IntN(3) == 0 {
				e.Key = e.Key[:len(e.Key)-1] + string(rune('a'+r.IntN(3)))
			}
			if len(e.Data) > 3 && r.IntN(3) == 0 {
				e.Data = e.Data[:len(e.Data)-3] + "\x01" + e.Data[len(e.Data)-2:]
			}
			kind := []nft.OpKind{nft.AddElements, nft.DeleteElements}[r.IntN(2)]
			b.Add(nft.Op{Kind: kind, Family: f, Elements: []nft.Element{e}})
		}
	}
	if b.Empty() {
		b.AddTable(f)
	}
	return b
}
