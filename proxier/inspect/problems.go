// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// facts fills in what concerns the table as a whole.
func (c *collector) facts() {
	s := c.snapshot
	c.table = Table{Family: s.Family.String(), Exists: s.Exists}
	if !s.Exists {
		return
	}
	cfg := s.Config()
	c.table.Differences = s.Differences(cfg)
	c.table.AsWritten = len(c.table.Differences) == 0
	c.table.MasqueradeMark = fmt.Sprintf("0x%08x", uint32(1)<<cfg.MasqueradeBit)
	c.table.MasqueradeAll = cfg.MasqueradeAll
	c.handOff = cfg.Beyond.HandOff
	if name := cfg.Pods.Interface; name != "" {
		if cfg.Pods.Prefix {
			name += "*"
		}
		c.table.Pods = []string{"iifname " + name}
	}
	if cfg.NodePortAll {
		c.table.NodePortAddresses = []string{"all"}
	}
	c.table.Chains, c.table.Sets = len(s.Chains), len(s.Sets)
	for _, ch := range s.Chains {
		c.table.Rules += len(ch.Rules)
	}
	c.table.Elements = map[string]int{}
}

// problems lists what of a frontend does not fit together.
func (c *collector) problems(f *front) (out []string) {
	add := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("%s: %s", f, fmt.Sprintf(format, args...)))
	}
	if f.program != 0 && f.refused {
		add("has program %s and is refused as well", f.program.Chain())
	}
	programs := []nft.Program{f.program}
	if f.program.Kind().IsPolicy() {
		programs = f.views[:]
		if f.views == [2]nft.Program{} {
			add("program %s finds no endpoints", f.program.Chain())
		}
	}
	for _, p := range programs {
		if p == 0 {
			continue
		}
		if !c.snapshot.Leads(p) {
			add("program %s does not exist", p.Chain())
		}
		c.slotProblems(p, f, add)
	}
	return out
}

// slotProblems holds the number of endpoints against what the program draws from.
func (c *collector) slotProblems(p nft.Program, f *front, add func(string, ...any)) {
	modulus, v := p.Arg(), nft.ClusterView
	switch k := p.Kind(); {
	case k.IsAffinity():
		a, ok := c.affinities[p.Arg()]
		if !ok {
			return // that the program does not exist has been said
		}
		modulus, v = a.Modulus, a.View
	case k == nft.KindLocal, k == nft.KindNodePortLocal:
		v = nft.LocalView
	}
	eps := f.endpoints(v)
	if n := nft.Modulus(len(eps)); n != modulus {
		add("%d endpoints in the %s view, but %s draws from %d slots", len(eps), v, p.Chain(), modulus)
	}
	if i := slices.Index(eps, netip.AddrPort{}); i >= 0 {
		add("slot %d of the %s view is empty", i, v)
	}
}
