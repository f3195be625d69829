// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// skeleton compares chains, rules, sets and programs.
func (c *comparison) skeleton() {
	if !c.Exists {
		c.table.Skeleton = []string{"there is no table"}
		return
	}
	sticky, unwanted, users := c.stickyChains(), c.unwantedSticky(), c.users()
	for _, d := range c.Differences(c.w.Config, c.w.Services) {
		text := d.String()
		if n := users[d.Name]; n > 0 && d.Object == nft.ObjectChain {
			text += fmt.Sprintf("; Service ports that need it: %d", n)
		}
		if o, ok := unwanted[d.Name]; ok && d.Object == nft.ObjectSet {
			text = fmt.Sprintf("map %s remembers clients of %s, which is not sticky", d.Name, o)
		} else if ok {
			continue
		}
		c.report(sticky, d.Name, text)
	}
	for _, p := range c.ports {
		slices.Sort(p.Skeleton)
	}
	slices.Sort(c.table.Skeleton)
}

// stickyChains are the owners of chains and maps that one Service has for itself.
func (c *comparison) stickyChains() map[string]owner {
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

// unwantedSticky are the chains and maps of sticky views for Services that want none, with the owner's name.
func (c *comparison) unwantedSticky() map[string]string {
	wanted := map[string]bool{}
	for _, s := range c.w.Services {
		for _, a := range s.Affinities() {
			wanted[a.Owner] = true
		}
	}
	out := map[string]string{}
	for _, a := range c.Affinities() {
		if !wanted[a.Owner] {
			out[nft.AffinityMap(a.ID)] = a.Owner
			for _, ch := range a.Chains(c.Family) {
				out[ch.Name] = a.Owner
			}
		}
	}
	return out
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
