// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// entry is what the tables hold, or are to hold, of one Service in both families. Once it is committed only comparisons
// change it: they number its sticky views, each family its own ports.
type entry struct {
	ports []services.Port
	byKey map[portKey]*services.Port // nil for few ports
	// size is the number of elements that the Service may have: more than the entry needs where growth was refused.
	size int
}

// portKey is what reports the ports of an entry apart.
type portKey struct {
	family    nft.Family
	name      string
	handedOff bool
}

func keyOf(p *services.Port) portKey { return portKey{p.Family, p.Name, p.HandedOff} }

// fewPorts is up to how many ports an entry is searched one by one: nearly all have fewer.
const fewPorts = 16

func newEntry(ports []services.Port, size int) *entry {
	e := &entry{ports: ports, size: size}
	if len(ports) > fewPorts {
		e.byKey = make(map[portKey]*services.Port, len(ports))
		for i := range ports {
			e.byKey[keyOf(&ports[i])] = &ports[i]
		}
	}
	return e
}

// port returns the port of an entry with the key of another entry's, nil if there is none.
func (e *entry) port(like *services.Port) *services.Port {
	if e == nil {
		return nil
	}
	if e.byKey != nil {
		return e.byKey[keyOf(like)]
	}
	for i := range e.ports {
		if keyOf(&e.ports[i]) == keyOf(like) {
			return &e.ports[i]
		}
	}
	return nil
}

// length is the number of elements that an entry may have, 0 for none.
func (e *entry) length() int {
	if e == nil {
		return 0
	}
	return e.size
}

// within returns the part of an entry that needs no more elements than another entry: its ports and frontends that the other
// has too, with at most as many endpoints. It is nil if there is no other.
func (e *entry) within(prev *entry) *entry {
	if prev == nil {
		return nil
	}
	var ports []services.Port
	for i := range e.ports {
		p := e.ports[i]
		was := prev.port(&p)
		if was == nil {
			continue
		}
		p.Frontends = commonFrontends(p.Frontends, was.Frontends)
		p.Cluster = nft.AssignSlots(was.Cluster, asMany(p.Cluster, was.Cluster))
		p.Local = nft.AssignSlots(was.Local, asMany(p.Local, was.Local))
		p.Hairpin = asMany(p.Hairpin, was.Hairpin)
		ports = append(ports, p)
	}
	return newEntry(ports, prev.size)
}

// commonFrontends returns the frontends of a list whose address and port are in another. Of the sources that one admits
// those stay that the other admitted.
func commonFrontends(list, other []nft.Frontend) []nft.Frontend {
	type key struct {
		kind nft.FrontendKind
		at   netip.AddrPort
	}
	keyOf := func(f *nft.Frontend) key { return key{f.Kind, netip.AddrPortFrom(f.Addr, f.Port)} }
	had := make(map[key]*nft.Frontend, len(other))
	for i := range other {
		had[keyOf(&other[i])] = &other[i]
	}
	var out []nft.Frontend
	for _, f := range list {
		if was := had[keyOf(&f)]; was != nil && f.Local == was.Local {
			f.Sources, _ = split(f.Sources, was.Sources)
			out = append(out, f)
		}
	}
	return out
}

// asMany returns as many elements of a list as another has, those that are in both first.
func asMany[T comparable](list, other []T) []T {
	both, rest := split(list, other)
	return append(both, rest[:min(len(rest), max(len(other)-len(both), 0))]...)
}

// split divides a list into what is in another and what is not.
func split[T comparable](list, other []T) (both, rest []T) {
	in := make(map[T]bool, len(other))
	for _, v := range other {
		in[v] = true
	}
	for _, v := range list {
		if in[v] {
			both = append(both, v)
		} else {
			rest = append(rest, v)
		}
	}
	return both, rest
}

// update is what a pass does about one Service.
type update struct {
	name    kube.Name
	service *kube.Service // nil if it is deleted
	// prev is what is committed, next what is to be; nil where there is none.
	prev, next *entry
	// kept means that the Service was not built: next is prev, unless the kernel refuses it.
	kept bool
	// absent means that the tables do not have prev.
	absent bool
	// health is what the health check node port of the Service answers; without a port it has none.
	health health.Service
	// tooLarge is what is wrong with a Service that was not built for its size.
	tooLarge error
	// setAside means that the Service is not served as its objects ask.
	setAside bool
}

func (u *update) nextPorts() []services.Port { return u.next.all() }
func (u *update) prevPorts() []services.Port { return u.prev.all() }

// present returns what the tables have of the Service.
func (u *update) present() *entry {
	if u.absent {
		return nil
	}
	return u.prev
}

// all returns the ports of an entry, none if it is nil.
func (e *entry) all() []services.Port {
	if e == nil {
		return nil
	}
	return e.ports
}
