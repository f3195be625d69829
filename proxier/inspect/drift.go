// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Drift is the difference between a node's tables and what the sources ask for.
type Drift struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Stamp
	// Drifted is true when there is any difference.
	Drifted bool `json:"drifted"`
	// Tables has one entry per family.
	Tables []TableDrift `json:"tables"`
	// ServicePorts are those that differ, sorted by name, then family, then protocol.
	ServicePorts []ServiceDrift `json:"servicePorts"`

	services map[[2]string]bool // namespace and name of all that the source or the kernel has
}

// TableDrift is what belongs to no single Service of one family's table.
type TableDrift struct {
	Family string `json:"family"`
	// Exists is false when there is no table; then all that is wanted is missing.
	Exists bool `json:"exists"`
	// ServicePorts and Elements are how many of them are wanted.
	ServicePorts int `json:"servicePorts"`
	Elements     int `json:"elements"`
	// Skeleton has the chains, rules, sets and programs that are not as they should be.
	Skeleton []string `json:"skeleton,omitempty"`
	// Differences are those of sets that belong to no Service, and of elements whose Service is unknown.
	Differences []Difference `json:"differences,omitempty"`
}

// ServiceDrift is the difference of one port of a Service in one family.
type ServiceDrift struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"`
	Family    string `json:"family"`
	Protocol  string `json:"protocol"`
	// State is Missing when the kernel has nothing of it, Extra when the sources do not have it, else Different.
	State Change `json:"state"`
	// Skeleton has the differences of chains that no other Service uses.
	Skeleton    []string     `json:"skeleton,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
}

// Change is the kind of a difference.
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
	// Set and Key are as nft prints them, but that the slot of an endpoint is written "cluster 2".
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

// Compare adds the differences of one family's table. Slots in another order than a new table would get are no
// difference, nor are chains for numbers of endpoints that no Service has any more: the proxy leaves both alone.
func (d *Drift) Compare(s *nft.Snapshot, w Wanted) {
	d.APIVersion, d.Kind = APIVersion, KindDrift
	if d.ServicePorts == nil {
		d.ServicePorts = []ServiceDrift{} // not null in JSON
	}
	c := newComparison(Read(s), w)
	c.assign()
	c.elements()
	c.skeleton()
	d.Tables = append(d.Tables, c.table)
	for o, p := range c.ports {
		p.State = Different
		if !c.wanted[o] {
			p.State = Extra
		} else if c.present[o] == 0 {
			p.State = Missing
		}
		slices.SortFunc(p.Differences, func(x, y Difference) int {
			return cmp.Or(cmp.Compare(x.Set, y.Set), cmp.Compare(x.Key, y.Key), cmp.Compare(x.Change, y.Change))
		})
		d.ServicePorts = append(d.ServicePorts, *p)
	}
	slices.SortFunc(d.ServicePorts, func(a, b ServiceDrift) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol))
	})
	if d.services == nil {
		d.services = map[[2]string]bool{}
	}
	note := func(name string) {
		namespace, service, _ := splitName(name)
		d.services[[2]string{namespace, service}] = true
	}
	for o := range c.wanted {
		note(o.name)
	}
	for _, f := range c.frontends {
		note(f.name)
	}
	d.settle()
}

func (d *Drift) settle() {
	d.Drifted = len(d.ServicePorts) > 0
	for i := range d.Tables {
		d.Drifted = d.Drifted || len(d.Tables[i].Skeleton)+len(d.Tables[i].Differences) > 0
	}
}

// Only keeps what concerns one Service, or one port of it unless port is empty: its own entries, and the differences of
// chains, which all Services share. It returns false when neither the source nor the kernel has the Service.
func (d *Drift) Only(namespace, service, port string) bool {
	d.ServicePorts = slices.DeleteFunc(d.ServicePorts, func(s ServiceDrift) bool {
		return s.Namespace != namespace || s.Service != service || port != "" && s.Port != port
	})
	for i := range d.Tables {
		d.Tables[i].Differences = nil
	}
	d.settle()
	return d.services[[2]string{namespace, service}]
}

// Persisting returns the differences that an earlier comparison found too: what a running proxy was about to write at that
// time is no difference any more.
func (d *Drift) Persisting(earlier *Drift) *Drift {
	out := *d
	out.Tables, out.ServicePorts = nil, []ServiceDrift{}
	before := map[[3]string]*ServiceDrift{}
	for i := range earlier.ServicePorts {
		s := &earlier.ServicePorts[i]
		before[[3]string{s.Name, s.Family, s.Protocol}] = s
	}
	for _, s := range d.ServicePorts {
		was := before[[3]string{s.Name, s.Family, s.Protocol}]
		if was == nil {
			continue
		}
		s.Skeleton, s.Differences = both(s.Skeleton, was.Skeleton), both(s.Differences, was.Differences)
		if len(s.Skeleton)+len(s.Differences) > 0 {
			out.ServicePorts = append(out.ServicePorts, s)
		}
	}
	for i, t := range d.Tables {
		t.Skeleton = both(t.Skeleton, earlier.Tables[i].Skeleton)
		t.Differences = both(t.Differences, earlier.Tables[i].Differences)
		out.Tables = append(out.Tables, t)
	}
	out.settle()
	return &out
}

// both returns what is in both lists, in the order of the first.
func both[T comparable](list, other []T) (out []T) {
	there := make(map[T]bool, len(other))
	for _, v := range other {
		there[v] = true
	}
	for _, v := range list {
		if there[v] {
			out = append(out, v)
		}
	}
	return out
}
