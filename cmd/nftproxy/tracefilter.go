// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
)

// filterFlags select the packets that trace watches.
type filterFlags struct {
	service, from, iif, proto string
	port                      uint16
	rate                      uint32
	all                       bool
	// The arguments and flags as values.
	ref    serviceRef
	addr   netip.Addr
	client netip.Prefix
	number nft.Proto
}

func (q *filterFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&q.service, "service", "", "All addresses and NodePorts of this Service, as NAMESPACE/NAME or NAMESPACE/NAME:PORT.")
	flags.StringVar(&q.from, "from", "", "The client's address or range.")
	flags.StringVar(&q.iif, "iif", "", "The interface that packets come in by.")
	flags.StringVar(&q.proto, "proto", "", "tcp, udp or sctp.")
	flags.Uint16Var(&q.port, "port", 0, "The port that packets are sent to.")
	flags.BoolVar(&q.all, "all-packets", false, "Every packet in the client's direction, not the first of a connection only.")
	flags.Uint32Var(&q.rate, "rate", 100, "How many packets are traced per second at most, in each family.")
}

// take reads the arguments and checks the flags.
func (q *filterFlags) take(args []string) (err error) {
	switch {
	case len(args) > 0 && q.proto != "":
		return errors.New("PROTOCOL and --proto both name a protocol")
	case len(args) > 0:
		q.proto = args[0]
	}
	if len(args) > 1 {
		to, err := netip.ParseAddrPort(args[1])
		if err != nil {
			addr, errAddr := netip.ParseAddr(args[1])
			if errAddr != nil {
				return fmt.Errorf("%s: must be ADDRESS or ADDRESS:PORT, an IPv6 address with a port in brackets", args[1])
			}
			to = netip.AddrPortFrom(addr, q.port)
		} else if q.port != 0 {
			return errors.New("ADDRESS:PORT and --port both name a port")
		}
		q.addr, q.port = to.Addr().Unmap(), to.Port()
	}
	if q.proto != "" {
		if q.number, err = parseProto(q.proto); err != nil {
			return err
		}
	}
	if q.service != "" {
		if q.ref, err = parseService(q.service); err != nil {
			return fmt.Errorf("--service: %w", err)
		}
	}
	if q.from != "" {
		if q.client, err = parseClient(q.from); err != nil {
			return err
		}
	}
	switch {
	case q.service != "" && (q.addr.IsValid() || q.port != 0 || q.proto != ""):
		return errors.New("--service selects protocols, addresses and ports: use it without them")
	case q.addr.IsValid() && q.client.IsValid() && q.addr.Is4() != q.client.Addr().Is4():
		return fmt.Errorf("--from %s and %s are of different families", q.from, q.addr)
	case q.service == "" && !q.addr.IsValid() && !q.client.IsValid() && q.port == 0 && q.proto == "" && q.iif == "":
		return errors.New("name the packets: --service, --from, --iif, --proto, --port, or PROTOCOL and ADDRESS:PORT")
	}
	return nil
}

// parseClient reads an address or a range.
func parseClient(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("--from %s: must be an address or a range of addresses", s)
	}
	return p.Masked(), nil
}

// filters returns the filter of each family that is selected. table returns our table of a family, nil if there is none.
func (q *filterFlags) filters(table func(nft.Family) *explain.Describer) (out []nft.TraceFilter, err error) {
	if _, err := interfaceName(q.iif); err != nil {
		return nil, err
	}
	for _, f := range nft.Families() {
		filter := nft.TraceFilter{
			Family: f, Addr: q.addr, Proto: q.number, Port: q.port, From: q.client, IIF: q.iif, All: q.all, Rate: q.rate,
		}
		if q.service != "" {
			d := table(f)
			if d == nil {
				continue
			}
			for _, p := range q.ref.of(d.ServicePorts(nil)) {
				proto, _ := nft.ParseProto(p.Protocol)
				for _, fr := range p.Frontends {
					addr, _ := netip.ParseAddr(fr.Address) // a NodePort has none
					filter.Targets = append(filter.Targets, nft.TraceTarget{Addr: addr, Proto: proto, Port: fr.Port})
				}
			}
		}
		otherFamily := q.addr.IsValid() && nft.FamilyOf(q.addr) != f || q.client.IsValid() && nft.FamilyOf(q.client.Addr()) != f
		if !otherFamily && (q.service == "" || len(filter.Targets) > 0) {
			out = append(out, filter)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no table has an address of Service %s", q.service)
	}
	return out, nil
}
