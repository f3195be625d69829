// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// skeleton compares chains, rules, sets and programs.
func (c *comparison) skeleton() {
	if !c.Exists {
		c.table.Skeleton = []string{"there is no table"}
		return
	}
	users := map[string]int{}       // Service ports that need a balancer, by its chain
	sticky := map[string]owner{}    // of chains and maps that one Service has for itself
	affinities := map[string]bool{} // wanted, by owner
	for _, s := range c.w.Services {
		seen := map[nft.Program]bool{}
		for _, p := range s.Balancers() {
			if !seen[p] {
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
	}
	unwanted := map[string]string{} // chains and maps of Services without session affinity, with the owner
	for _, a := range c.Affinities() {
		if affinities[a.Owner] {
			continue
		}
		unwanted[nft.AffinityMap(a.ID)] = a.Owner
		for _, ch := range a.Chains(c.Family) {
			unwanted[ch.Name] = a.Owner
		}
	}
	for _, d := range c.Differences(c.w.Config, c.w.Services) {
		list := &c.table.Skeleton
		if o, ok := sticky[d.Name]; ok {
			list = &c.port(o).Skeleton
		}
		text := d.String()
		owner, gone := unwanted[d.Name]
		switch {
		case gone && d.Object == nft.ObjectSet:
			text = fmt.Sprintf("map %s remembers clients of %s, which has no session affinity", d.Name, owner)
		case gone:
			continue // with its map
		case d.Object == nft.ObjectChain && users[d.Name] > 0:
			text += fmt.Sprintf("; Service ports that need it: %d", users[d.Name])
		}
		*list = append(*list, Printable(text))
	}
	for _, p := range c.ports {
		slices.Sort(p.Skeleton)
	}
	slices.Sort(c.table.Skeleton)
}
