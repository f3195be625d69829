// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// skeleton compares chains, rules, sets and programs.
func (c *comparison) skeleton() {
	if !c.Exists {
		c.table.Skeleton = []string{"there is no table"}
		return
	}
	// Services that together need all balancers and sticky views make a model that has every chain.
	var representatives []*nft.Service
	users := map[string]int{}       // Service ports that need a balancer, by its chain
	sticky := map[string]owner{}    // of chains and maps that one Service has for itself
	affinities := map[string]bool{} // wanted, by owner
	for _, s := range c.w.Services {
		keep, seen := len(s.Affinities()) > 0, map[nft.Program]bool{}
		for _, p := range s.Balancers() {
			if !seen[p] {
				keep = keep || users[p.Chain()] == 0
				users[p.Chain()]++
			}
			seen[p] = true
		}
		for _, a := range s.Affinities() {
			affinities[a.Owner] = true
			sticky[nft.AffinityMap(a.ID)] = ownerOf(s)
			for _, ch := range a.Chains(c.Family) {
				sticky[ch.Name] = ownerOf(s)
			}
		}
		if keep {
			representatives = append(representatives, s)
		}
	}
	report := func(name, format string, args ...any) {
		list := &c.table.Skeleton
		if o, ok := sticky[name]; ok {
			list = &c.port(o).Skeleton
		}
		*list = append(*list, Printable(fmt.Sprintf(format, args...)))
	}
	model := nft.Model(c.Family, c.w.Config, representatives, nil)
	for name := range model.Chains {
		text := c.chainText(model, name)
		if _, own := sticky[name]; text != "" && users[name] > 0 && !own {
			text += fmt.Sprintf("; Service ports that need it: %d", users[name])
		}
		if text != "" {
			report(name, "chain %s%s", name, text)
		}
	}
	for name, programs := range map[string]map[nft.Program]bool{"policies": model.Policies, "programs": model.Programs, "draws": model.Draws} {
		for p := range programs {
			if !c.Leads(p) {
				report(p.Chain(), "map %s does not lead to chain %s", name, p.Chain())
			}
		}
	}
	// What does not depend on the Services: sets, and chains of earlier numbers of endpoints, which stay.
	for _, text := range c.Differences(c.w.Config) {
		kind, rest, _ := strings.Cut(text, " ")
		name, _, _ := strings.Cut(rest, " ")
		_, modelled := model.Chains[name]
		_, own := sticky[name]
		if kind != "program" && (kind != "chain" || !modelled && !own) {
			report(name, "%s", text)
		}
	}
	for _, a := range c.Affinities() {
		if !affinities[a.Owner] {
			report("", "map %s remembers clients of %s, which has no session affinity", nft.AffinityMap(a.ID), a.Owner)
		}
	}
	for _, p := range c.ports {
		slices.Sort(p.Skeleton)
	}
	slices.Sort(c.table.Skeleton)
}

// chainText says how a chain differs, naming the rules by their comments; it is empty if it does not.
func (c *comparison) chainText(model *nft.Snapshot, name string) string {
	have, ok := c.Chains[name]
	want := model.Chains[name]
	switch {
	case !ok:
		return " is missing"
	case (have.Hook == nil) != (want.Hook == nil) || have.Hook != nil && *have.Hook != *want.Hook:
		return " is attached elsewhere"
	case have.Dropping:
		return " drops what no rule decides on"
	case slices.Equal(have.Rules, want.Rules):
		return ""
	}
	var parts []string
	left := slices.Clone(have.Rules)
	for i, print := range want.Rules {
		if at := slices.Index(left, print); at >= 0 {
			left = slices.Delete(left, at, at+1)
			continue
		}
		text := fmt.Sprintf("rule %d is missing", i+1)
		if comment := model.Rules[name][i].Comment; comment != "" {
			text += fmt.Sprintf(" (%s)", comment)
		}
		parts = append(parts, text)
	}
	for i, print := range have.Rules {
		if at := slices.Index(left, print); at >= 0 {
			left = slices.Delete(left, at, at+1)
			parts = append(parts, fmt.Sprintf("rule %d is not of this configuration", i+1))
		}
	}
	if len(parts) == 0 {
		parts = []string{"its rules are in another order"}
	}
	return ": " + strings.Join(parts, "; ")
}
