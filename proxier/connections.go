// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// Connections hands the counters of new connections to fn, one address after the other. It reads the kernel, one element
// for each address, with a socket of its own, and may be called from any goroutine; of several callers one reads at a time.
// While the kernel cannot be read there are none. A counter starts at 0 when its address becomes the Service's, and when
// the tables were made anew.
func (p *Proxier) Connections(fn func(metrics.Connected)) {
	p.counting.Lock()
	defer p.counting.Unlock()
	conn, err := kernel.Open(p.opt.NetNS)
	if err != nil {
		klog.V(2).InfoS("Connections to Services could not be read", "err", err)
		return
	}
	defer conn.Close()
	for _, f := range p.families {
		read, err := conn.ConnectionCounters(f)
		if err != nil {
			klog.V(2).InfoS("Connections to Services could not be read", "family", f, "err", err)
			continue
		}
		for i := range read {
			fn(connected(f, &read[i]))
		}
	}
}

// connected takes a name apart: "namespace/name:port", or without ":port".
func connected(f nft.Family, c *kernel.ConnectionCounter) metrics.Connected {
	out := metrics.Connected{Family: ipFamily(f), Protocol: strings.ToUpper(c.Proto.String()), Packets: c.Packets,
		Address: ":" + strconv.Itoa(int(c.Port))}
	if c.Addr.IsValid() {
		out.Address = netip.AddrPortFrom(c.Addr, c.Port).String()
	}
	name := ""
	out.Namespace, name, _ = strings.Cut(c.Name, "/")
	out.Service, out.Port, _ = strings.Cut(name, ":")
	return out
}
