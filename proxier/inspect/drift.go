// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// KindDrift is the kind of the document that a comparison makes.
const KindDrift = "Drift"

// Drift is how the tables of a node differ from what the sources ask for.
type Drift struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Drifted tells whether there is any difference.
	Drifted bool `json:"drifted"`
	// Tables has one entry per family.
	Tables []TableDrift `json:"tables"`
	// ServicePorts are those that differ, sorted by name, then family, then protocol.
	ServicePorts []ServiceDrift `json:"servicePorts"`
}

// TableDrift is what concerns no single Service of one family's table.
type TableDrift struct {
	Family string `json:"family"`
	// Exists tells whether there is a table. If not, all that is wanted is missing.
	Exists bool `json:"exists"`
	// ServicePorts and Elements are how many of them are wanted.
	ServicePorts int `json:"servicePorts"`
	Elements     int `json:"elements"`
	// Skeleton says which chains, rules, sets and programs are not as they should be.
	Skeleton []string `json:"skeleton,omitempty"`
	// Differences are those of sets that belong to no Service, and elements that nobody can be named for.
	Differences []Difference `json:"differences,omitempty"`
}

// ServiceDrift is how one port of a Service in one family differs.
type ServiceDrift struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"`
	Family    string `json:"family"`
	Protocol  string `json:"protocol"`
	// State is Missing when nothing of it is in the kernel, Extra when the sources know nothing of it, else Different.
	State Change `json:"state"`
	// Skeleton says what of the chains is wrong that no other Service uses.
	Skeleton    []string     `json:"skeleton,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
}

// Change says in which way something differs.
type Change string

const (
	// Missing is wanted, and not in the kernel.
	Missing Change = "missing"
	// Extra is in the kernel, and not wanted.
	Extra Change = "extra"
	// Different is in the kernel with another datum.
	Different Change = "different"
)

// Difference is about one element.
type Difference struct {
	Change Change `json:"change"`
	// Set and Key are as nft prints them, but that an endpoint's slot is written "cluster 2".
	Set string `json:"set"`
	Key string `json:"key"`
	// Have is the datum in the kernel, Want the one that is wanted; empty for sets.
	Have string `json:"have,omitempty"`
	Want string `json:"want,omitempty"`
}

// Wanted is what a family's table is compared with. Compare assigns slots and affinity numbers to its Services.
type Wanted struct {
	Config   nft.Config
	Services []*nft.Service
	Node     []nft.Element
}

// Compare adds to a Drift how a family's table differs from what is wanted. An order of slots other than a new table
// would get is no difference, nor are chains for numbers of endpoints that no Service has any more: the proxy leaves both
// alone.
func (d *Drift) Compare(s *nft.Snapshot, w Wanted) {
	d.APIVersion, d.Kind = APIVersion, KindDrift
	c := newComparison(s, w)
	c.assign()
	c.elements()
	c.skeleton()
	d.Tables = append(d.Tables, c.table)
	for o, p := range c.ports {
		d.ServicePorts = append(d.ServicePorts, c.finish(o, p))
	}
	slices.SortFunc(d.ServicePorts, func(a, b ServiceDrift) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol))
	})
	d.Drifted = d.Drifted || len(c.ports) > 0 || len(c.table.Skeleton) > 0 || len(c.table.Differences) > 0
}

// Only keeps what concerns one Service: its own entries, and what is wrong with chains, which all Services use.
func (d *Drift) Only(namespace, service string) {
	d.ServicePorts = slices.DeleteFunc(d.ServicePorts, func(s ServiceDrift) bool {
		return s.Namespace != namespace || s.Service != service
	})
	d.Drifted = len(d.ServicePorts) > 0
	for i := range d.Tables {
		t := &d.Tables[i]
		t.Differences = nil
		d.Drifted = d.Drifted || len(t.Skeleton) > 0
	}
}

// finish settles the state and the order.
func (c *comparison) finish(o owner, p *ServiceDrift) ServiceDrift {
	_, wanted := c.wanted[o]
	switch {
	case !wanted:
		p.State = Extra
	case c.present[o] == 0:
		p.State = Missing
	default:
		p.State = Different
	}
	slices.SortFunc(p.Differences, Difference.compare)
	return *p
}

func (x Difference) compare(y Difference) int {
	return cmp.Or(cmp.Compare(x.Set, y.Set), cmp.Compare(x.Key, y.Key), cmp.Compare(x.Change, y.Change))
}
