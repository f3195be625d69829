// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Connected is how many new connections one address or NodePort of a Service had.
type Connected struct {
	Name  string     // the Service's, as in its comment: cut, with a hash, beyond 128 bytes
	Addr  netip.Addr // zero for a NodePort
	Proto Proto
	Port  uint16
	// Packets are first packets of connections: those that are sent again for want of an answer count each.
	Packets uint64
}

// Connected lists the counters of all frontends of Services that are Counted, each once, in no order; none if there is no
// table. It reads one element per frontend, some 120 bytes each.
func (k *Kernel) Connected(f Family) ([]Connected, error) {
	var out []Connected
	for _, set := range []SetID{Connections, NodePortConnections} {
		part, err := k.connected(f, set)
		for tries := 1; tries < readAttempts && errors.Is(err, unix.EINTR); tries++ {
			part, err = k.connected(f, set)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read counters of %s %s %s: %w", f, TableName, set, err)
		}
		out = append(out, part...)
	}
	return out, nil
}

func (k *Kernel) connected(f Family, set SetID) ([]Connected, error) {
	var out []Connected
	decoder := NewDecoder(f)
	seen := map[Decoded]bool{} // a hash table that grows meanwhile may show an element twice
	err := k.elements(f, set.String(), func(e *rawElement) {
		d, ok := decoder.Decode(&Element{Set: set, Key: string(e.key)})
		if packets, counts := counted(e.expr); ok && counts && !seen[d] {
			seen[d] = true
			out = append(out, Connected{Name: e.comment, Addr: d.Addr, Proto: d.Proto, Port: d.Port, Packets: packets})
		}
	})
	return out, err
}
