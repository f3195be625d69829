// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

const aboutExplain = `explain reads the tables of this node from the kernel and shows, step by step, what
happens to the first packet of a connection: its Service and port, the policy that
applies and why, the endpoints that may get it and their shares, whether the source is
masqueraded and why, or which rule and element refuses or drops it. Nothing is sent,
and nothing in the kernel changes.

Instead of an address it takes a Service and port, which stand for its ClusterIP.
Without --from the packet comes from a process on this node. With --from it comes
in by --iif, or by the interface through which the node reaches that address.
It evaluates nftproxy's tables only: a firewall may still drop what they let pass.
It needs CAP_NET_ADMIN.

It exits with 0 if the packet is delivered or nftproxy does not handle it, with 1 if
it is refused, dropped or cannot be routed, and with 2 if it could not be found out.`

const explainExamples = `  nftproxy explain tcp default/web:http
  nftproxy explain tcp 10.96.0.10:443
  nftproxy explain udp 10.96.0.10:53 --from 10.244.1.5
  nftproxy explain tcp '[fd00:10:96::a]:443' --from 2001:db8::7 --iif eth0 -o json`

// question is one call of `nftproxy explain`.
type question struct {
	proto, to, from, iif, output string
}

// newExplainCommand returns `nftproxy explain`.
func newExplainCommand(out io.Writer) *cobra.Command {
	var q question
	cmd := inquiry(&cobra.Command{
		Use:   "explain PROTOCOL ADDRESS:PORT|NAMESPACE/NAME:PORT",
		Short: "Show what happens to a packet on this node, and why", Long: aboutExplain, Example: explainExamples,
		Args: cobra.ExactArgs(2), ValidArgsFunction: completePacket,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.proto, q.to = args[0], args[1]
			if q.output != "text" && q.output != "json" {
				return fmt.Errorf("-o %s: must be text or json", q.output)
			}
			e, err := q.answer()
			if err != nil {
				return err
			}
			e.Stamp = newStamp(cmd.Flags())
			if q.output == "json" {
				err = inspect.JSON(out, e)
			} else {
				err = explain.Text(out, e)
			}
			if err == nil && !slices.Contains([]explain.Outcome{explain.Delivered, explain.Steered, explain.Untouched}, e.Outcome) {
				return errAnswerNo
			}
			return err
		},
	})
	cmd.Flags().StringVar(&q.from, "from", "", "The address that the packet comes from.")
	cmd.Flags().StringVar(&q.iif, "iif", "", "The interface that the packet comes in by.")
	cmd.Flags().StringVarP(&q.output, "output", "o", "text", "text or json.")
	completeFlags(cmd, []string{"text", "json"})
	return cmd
}

// answer reads the node and its tables, and explains.
func (q *question) answer() (*explain.Explanation, error) {
	facts, err := readFacts()
	if err != nil {
		return nil, err
	}
	conn, err := kernel.Open(0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	tables := map[nft.Family]*inspect.Ruleset{}
	for _, f := range nft.Families() {
		s, err := conn.Snapshot(f)
		if err != nil {
			return nil, err
		}
		tables[f] = inspect.Read(s)
	}
	packet, err := q.packet(facts, tables)
	if err != nil {
		return nil, err
	}
	f := nft.FamilyOf(packet.To.Addr())
	return explain.Explain(tables[f], tables[f.Other()], packet, facts.node(conn, f)), nil
}

// node is what package explain has to know of the node. An affinity map that cannot be read has no clients.
func (f *facts) node(conn *kernel.Conn, family nft.Family) explain.Node {
	client := func(set, key string) (found string) {
		_ = conn.Elements(family, set, func(k, data []byte) {
			if string(k) == key {
				found = string(data)
			}
		})
		return found
	}
	return explain.Node{Local: f.isLocal, Route: f.route, NextHop: f.nextHop, Client: client}
}

// packet makes the packet that is asked about.
func (q *question) packet(facts *facts, tables map[nft.Family]*inspect.Ruleset) (p explain.Packet, err error) {
	if p.Proto, err = parseProto(q.proto); err != nil {
		return p, err
	}
	var from netip.Addr
	if q.from != "" {
		if from, err = netip.ParseAddr(q.from); err != nil {
			return p, fmt.Errorf("--from %s: not an address", q.from)
		}
		from = from.Unmap()
	}
	if p.To, err = q.destination(p.Proto, from, tables); err != nil {
		return p, err
	}
	switch {
	case from.IsValid() && from.Is4() != p.To.Addr().Is4():
		return p, fmt.Errorf("--from %s and %s are of different families", q.from, p.To)
	case q.iif != "" && !from.IsValid():
		return p, errors.New("--iif needs --from")
	}
	if p.IIF, err = interfaceName(q.iif); err != nil {
		return p, err
	}
	if !from.IsValid() {
		p.From = netip.AddrPortFrom(facts.source(p.To.Addr()), anyPort)
		return p, nil
	}
	p.From = netip.AddrPortFrom(from, anyPort)
	if p.IIF == "" && !facts.isLocal(from) {
		var ok bool
		if p.IIF, ok = facts.route(from); !ok {
			return p, fmt.Errorf("the node has no route to %s: name the interface that the packet comes in by with --iif", from)
		}
	}
	return p, nil
}

// destination is the address that is asked about, or the ClusterIP of a Service port: in the family of the sender, if there
// is one.
func (q *question) destination(proto nft.Proto, from netip.Addr, tables map[nft.Family]*inspect.Ruleset) (to netip.AddrPort, err error) {
	if !strings.Contains(q.to, "/") {
		if to, err = netip.ParseAddrPort(q.to); err != nil {
			return to, fmt.Errorf("%s: must be ADDRESS:PORT, an IPv6 address in brackets, or NAMESPACE/NAME:PORT", q.to)
		}
		return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), nil
	}
	ref, err := parseService(q.to)
	if err != nil {
		return to, err
	}
	var names []string
	for _, f := range nft.Families() {
		if from.IsValid() && nft.FamilyOf(from) != f {
			continue
		}
		for _, p := range ref.of(tables[f].ServicePorts(nil)) {
			addr, err := netip.ParseAddr(p.Frontends[0].Address) // that of the ClusterIP, if it has one
			if err != nil || p.Protocol != proto.String() || slices.Contains(names, p.Name) {
				continue
			}
			if names = append(names, p.Name); len(names) == 1 {
				to = netip.AddrPortFrom(addr, p.Frontends[0].Port)
			}
		}
	}
	switch len(names) {
	case 0:
		return to, fmt.Errorf("no table has an address of Service %s for %s", q.to, proto)
	case 1:
		return to, nil
	}
	return to, fmt.Errorf("%s has more than one port for %s: %s", q.to, proto, strings.Join(names, ", "))
}

// anyPort is a source port as clients use them; our rules do not look at it.
const anyPort = 40000

func parseProto(s string) (nft.Proto, error) {
	p, ok := nft.ParseProto(strings.ToLower(s))
	if !ok {
		return p, fmt.Errorf("protocol %s: must be tcp, udp or sctp", s)
	}
	return p, nil
}

// interfaceName refuses the name of an interface that does not exist.
func interfaceName(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	_, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("--iif %s: %w", name, err)
	}
	return name, nil
}

// bridgeNetfilter returns whether an interface is a bridge whose packets pass the IP hooks. The sysctls are there only with
// the module br_netfilter; packets of a bridge without a VLAN filter on top are what they are about.
func bridgeNetfilter(iface string, f nft.Family) bool {
	if _, err := os.Stat("/sys/class/net/" + iface + "/bridge"); err != nil {
		return false
	}
	name := map[nft.Family]string{nft.IPv4: "iptables", nft.IPv6: "ip6tables"}[f]
	value, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + name)
	on, errNumber := strconv.Atoi(strings.TrimSpace(string(value)))
	return err == nil && errNumber == nil && on != 0
}
