// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"maps"
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
	model := nft.Model(c.Family, c.w.Config, c.representatives(), nil)
	sticky := c.stickyChains(model)
	users := c.users()
	for name := range model.Chains {
		text := c.chainText(model, name)
		if n := users[name]; text != "" && n > 0 && sticky[name] == (owner{}) {
			text += fmt.Sprintf("; Service ports that need it: %d", n)
		}
		if text != "" {
			c.report(sticky, name, text)
		}
	}
	for name, programs := range map[string]map[nft.Program]bool{"policies": model.Policies, "programs": model.Programs, "draws": model.Draws} {
		for p := range programs {
			if !c.Leads(p) {
				c.report(sticky, p.Chain(), fmt.Sprintf("map %s does not lead to chain %s", name, p.Chain()))
			}
		}
	}
	// What is known without the Services: sets, and chains of earlier numbers of endpoints, which stay.
	for _, text := range c.Differences(c.w.Config) {
		kind, rest, _ := strings.Cut(text, " ")
		name, _, _ := strings.Cut(rest, " ")
		_, modelled := model.Chains[name]
		if kind != "program" && (kind != "chain" || !modelled && sticky[name] == (owner{})) {
			c.report(sticky, name, text)
		}
	}
	c.unwantedSticky()
	for _, p := range c.ports {
		slices.Sort(p.Skeleton)
	}
	slices.Sort(c.table.Skeleton)
}

// representatives are Services that together need all balancers and sticky views: a model of these has every chain, and
// costs nothing.
func (c *comparison) representatives() (out []*nft.Service) {
	needed := map[nft.Program]bool{}
	for _, s := range c.w.Services {
		keep := len(s.Affinities()) > 0
		for _, p := range s.Balancers() {
			keep = keep || !needed[p]
			needed[p] = true
		}
		if keep {
			out = append(out, s)
		}
	}
	return out
}

// stickyChains are the owners of chains and maps that one Service has for itself.
func (c *comparison) stickyChains(model *nft.Snapshot) map[string]owner {
	out := map[string]owner{}
	for _, s := range c.w.Services {
		for _, a := range s.Affinities() {
			o := ownerOf(s)
			out[nft.AffinityMap(a.ID)] = o
			for _, ch := range a.Chains(c.Family) {
				out[ch.Name] = o
			}
		}
	}
	return out
}

// report adds what is wrong with a chain or map.
func (c *comparison) report(sticky map[string]owner, name, text string) {
	if o, ok := sticky[name]; ok {
		p := c.port(o)
		p.Skeleton = append(p.Skeleton, text)
		return
	}
	c.table.Skeleton = append(c.table.Skeleton, text)
}

// chain says what is wrong with a chain, naming the rules by their comments; empty if nothing is.
func (c *comparison) chainText(model *nft.Snapshot, name string) string {
	have, ok := c.Chains[name]
	want := model.Chains[name]
	switch {
	case !ok:
		return fmt.Sprintf("chain %s is missing", name)
	case !sameHook(have.Hook, want.Hook):
		return fmt.Sprintf("chain %s is attached elsewhere", name)
	case have.Dropping:
		return fmt.Sprintf("chain %s drops what no rule decides on", name)
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
	return fmt.Sprintf("chain %s: %s", name, strings.Join(parts, "; "))
}

func sameHook(a, b *nft.Hook) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// unwantedSticky names the sticky views that the kernel has for Services that want none.
func (c *comparison) unwantedSticky() {
	wanted := map[string]bool{}
	for _, s := range c.w.Services {
		for _, a := range s.Affinities() {
			wanted[a.Owner] = true
		}
	}
	for _, a := range c.Affinities() {
		if !wanted[a.Owner] {
			c.table.Skeleton = append(c.table.Skeleton, fmt.Sprintf("map %s remembers clients of %s, which is not sticky",
				nft.AffinityMap(a.ID), a.Owner))
		}
	}
}

// users is how many Service ports need a balancer, for whoever wonders what a broken chain means.
func (c *comparison) users() map[string]int {
	out := map[string]int{}
	for _, s := range c.w.Services {
		seen := map[nft.Program]bool{}
		for _, p := range s.Balancers() {
			seen[p] = true
		}
		for p := range maps.Keys(seen) {
			out[p.Chain()]++
		}
	}
	return out
}
