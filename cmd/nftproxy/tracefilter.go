// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// filterFlags choose the packets that trace watches.
type filterFlags struct {
	service, from, iif, proto string
	port                      uint16
	rate                      uint32
	all                       bool

	addr   netip.Addr // the first three as values
	client netip.Prefix
	number nft.Proto
}

func (q *filterFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&q.service, "service", "", "All addresses and NodePorts of this Service, as NAMESPACE/NAME or NAMESPACE/NAME:PORT.")
	flags.StringVar(&q.from, "from", "", "The client's address, or a range of them.")
	flags.StringVar(&q.iif, "iif", "", "The interface that packets come in by.")
	flags.StringVar(&q.proto, "proto", "", "tcp, udp or sctp.")
	flags.Uint16Var(&q.port, "port", 0, "The port that packets are sent to.")
	flags.BoolVar(&q.all, "all-packets", false, "Every packet in the client's direction, not the first of a connection only.")
	flags.Uint32Var(&q.rate, "rate", 100, "How many packets are traced per second at most, in each family.")
}

var errNoFilter = errors.New("say which packets: --service, --from, --iif, --proto, --port, or PROTOCOL and ADDRESS:PORT")

// take reads the arguments and checks the flags.
func (q *filterFlags) take(args []string) (err error) {
	if len(args) > 0 {
		if q.proto != "" {
			return errors.New("PROTOCOL and --proto are the same")
		}
		q.proto = args[0]
	}
	if len(args) > 1 {
		if err := q.takeAddress(args[1]); err != nil {
			return err
		}
	}
	ok := true
	if q.proto != "" {
		if q.number, ok = nft.ParseProto(q.proto); !ok {
			return fmt.Errorf("protocol %s: must be tcp, udp or sctp", q.proto)
		}
	}
	if q.from != "" {
		if q.client, err = parseClient(q.from); err != nil {
			return err
		}
	}
	switch {
	case q.service != "" && (q.addr.IsValid() || q.port != 0 || q.proto != ""):
		return errors.New("--service names protocols, addresses and ports already")
	case q.addr.IsValid() && q.client.IsValid() && q.addr.Is4() != q.client.Addr().Is4():
		return fmt.Errorf("--from %s and %s are of different families", q.from, q.addr)
	case q.service == "" && !q.addr.IsValid() && !q.client.IsValid() && q.port == 0 && q.proto == "" && q.iif == "":
		return errNoFilter
	}
	return nil
}

func (q *filterFlags) takeAddress(s string) error {
	if a, err := netip.ParseAddr(s); err == nil {
		q.addr = a.Unmap()
		return nil
	}
	to, err := netip.ParseAddrPort(s)
	if err != nil {
		return fmt.Errorf("%s: must be ADDRESS or ADDRESS:PORT, an IPv6 address with a port in brackets", s)
	}
	if q.port != 0 {
		return errors.New("ADDRESS:PORT and --port both name a port")
	}
	q.addr, q.port = to.Addr().Unmap(), to.Port()
	return nil
}

// parseClient reads an address or a range.
func parseClient(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("--from %s: must be an address or a range of them", s)
	}
	return p.Masked(), nil
}

// filters makes the filter of each family that is concerned.
func (q *filterFlags) filters(facts *traceFacts) ([]nft.TraceFilter, error) {
	var out []nft.TraceFilter
	for _, f := range nft.Families() {
		if q.addr.IsValid() && nft.FamilyOf(q.addr) != f || q.client.IsValid() && nft.FamilyOf(q.client.Addr()) != f {
			continue
		}
		filter := nft.TraceFilter{
			Family: f, Addr: q.addr, Proto: q.number, Port: q.port, From: q.client, IIF: q.iif, All: q.all, Rate: q.rate,
		}
		if q.service != "" {
			if filter.Targets = q.targets(facts.table(f)); len(filter.Targets) == 0 {
				continue
			}
		}
		out = append(out, filter)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no table has an address of Service %s", q.service)
	}
	return out, nil
}

// targets are the addresses of the Service that is asked for.
func (q *filterFlags) targets(table *nft.Snapshot) (out []nft.TraceTarget) {
	if table == nil {
		return nil
	}
	_, ports := inspect.Collect(table, nil)
	for i := range ports {
		p := &ports[i]
		if p.Name != q.service && !strings.HasPrefix(p.Name, q.service+":") {
			continue
		}
		proto, _ := nft.ParseProto(p.Protocol)
		for _, f := range p.Frontends {
			addr, _ := netip.ParseAddr(f.Address) // a NodePort has none
			out = append(out, nft.TraceTarget{Addr: addr, Proto: proto, Port: f.Port})
		}
	}
	return out
}
