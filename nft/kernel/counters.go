// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// DropCounters reads the counters of the rules that refuse or drop packets, none if there is no table. It costs four requests
// and a dozen rules, whatever the number of Services. (A rule's counter is the sum over all processors.)
func (c *Conn) DropCounters(f nft.Family) ([]nft.DropCounter, error) {
	var out []nft.DropCounter
	for chain, reasons := range nft.DropRules() {
		rules, _, err := stable(func() ([]ruleEntry, error) { return c.dumpRules(f, nft.TableName, chain) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read counters of %s %s %s: %w", f, nft.TableName, chain, err)
		}
		for i := range rules {
			comment := rules[i].comment()
			packets := countersOf(rules[i].exprs)
			if reason, ok := reasons[comment]; ok && len(packets) > 0 {
				out = append(out, nft.DropCounter{DropReason: reason, Rule: chain + ": " + comment, Handle: rules[i].handle, Packets: packets[0]})
			}
		}
	}
	return out, nil
}

// ConnectionCounter is the number of new connections to one address or NodePort of a Service.
type ConnectionCounter struct {
	Name  string     // of the Service port, as in its comment: longer ones are cut after 128 bytes and end with a hash
	Addr  netip.Addr // zero for a NodePort
	Proto nft.Proto
	Port  uint16
	// Packets are first packets of connections; a packet that is sent again for lack of an answer counts again.
	Packets uint64
}

// ConnectionCounters lists the counters of all frontends of Services that are Counted, each once, in no order; none if there
// is no table. It reads one element per frontend, some 120 bytes each.
func (c *Conn) ConnectionCounters(f nft.Family) ([]ConnectionCounter, error) {
	var out []ConnectionCounter
	for _, set := range []nft.SetID{nft.Connections, nft.NodePortConnections} {
		part, _, err := stable(func() ([]ConnectionCounter, error) { return c.connections(f, set) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read counters of %s %s %s: %w", f, nft.TableName, set, err)
		}
		out = append(out, part...)
	}
	return out, nil
}

func (c *Conn) connections(f nft.Family, set nft.SetID) ([]ConnectionCounter, error) {
	var out []ConnectionCounter
	decoder := nft.NewDecoder(f)
	seen := map[nft.Decoded]bool{} // a set that is being resized may list an element twice
	err := c.dumpElements(f, set.String(), func(e *elementEntry) {
		d, ok := decoder.Decode(&nft.Element{Set: set, Key: string(e.key)})
		if packets, counts := counterOf(e.expr); ok && counts && !seen[d] {
			seen[d] = true
			out = append(out, ConnectionCounter{Name: e.comment(), Addr: d.Addr, Proto: d.Proto, Port: d.Port, Packets: packets})
		}
	})
	return out, err
}

// Commented calls visit for those elements of a family's table that carry the name of a Service port as their comment: one
// per frontend, so that it costs a fraction of Read. They are of different moments. Without a table there are none.
func (c *Conn) Commented(f nft.Family, visit func(nft.Element)) error {
	sets := []nft.SetID{nft.Services, nft.NodePorts, nft.RejectServices, nft.DropServices, nft.RejectNodePorts, nft.DropNodePorts}
	for _, set := range sets {
		err := c.dumpElements(f, set.String(), func(e *elementEntry) {
			if comment := e.comment(); comment != "" {
				visit(nft.Element{Set: set, Key: string(e.key), Data: string(e.data), Comment: comment})
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("names in %s of table %s %s: %w", set, f, nft.TableName, err)
		}
	}
	return nil
}

// Elements calls visit with key and datum of each element of a set or map of ours by its nft name, for example of the
// clients of a sticky view. An element may come twice while the kernel resizes the set.
func (c *Conn) Elements(f nft.Family, set string, visit func(key, data []byte)) error {
	err := c.dumpElements(f, set, func(e *elementEntry) { visit(e.key, e.data) })
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// AffinityCount is how full the map of clients of a sticky view is.
type AffinityCount struct {
	Owner         string // see nft.Affinity
	Clients, Size int
}

// countedClients bounds how many clients AffinityCounts lists where the kernel does not report the size of a map (before
// Linux 6.16): the time to list a map grows with the square of its size, 170 ms for 65,536 clients and 4 s for 262,144.
const countedClients = 1 << 16

// AffinityCounts returns the number of clients of each sticky view, none if there is no table. Linux 6.16 and later report
// it with the map. Before, it is counted by listing the maps; once countedClients are listed in all, complete is false, the
// remaining views are left out, and the next call begins with them.
func (c *Conn) AffinityCounts(f nft.Family) (counts []AffinityCount, complete bool, err error) {
	sets, _, err := stable(func() ([]setEntry, error) { return c.dumpSets(f, nft.TableName) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, false, fmt.Errorf("list sets of %s %s: %w", f, nft.TableName, err)
	}
	sets = slices.DeleteFunc(sets, func(s setEntry) bool { return !nft.IsAffinityMap(s.name) })
	budget, first := c.countedClients, min(c.nextCounted, len(sets))
	for i, s := range slices.Concat(sets[first:], sets[:first]) {
		if s.count < 0 || c.ignoreCounts {
			if budget <= 0 {
				c.nextCounted = (first + i) % len(sets)
				return counts, false, nil
			}
			s.count = 0
			err := c.dumpElements(f, s.name, func(*elementEntry) { s.count++ })
			if err != nil && !errors.Is(err, unix.EINTR) {
				continue // removed since
			}
			budget -= s.count
		}
		counts = append(counts, AffinityCount{Owner: s.decl.Comment, Clients: s.count, Size: int(s.decl.Size)})
	}
	return counts, true, nil
}
