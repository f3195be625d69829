// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/explain"
)

const aboutExplain = `explain reads the tables of this node from the kernel and tells, step by step, what
happens to the first packet of a connection: which Service and port it is for,
which policy applies and why, which endpoints may get it and with what share,
whether the source is masqueraded and why, or which rule and element refuses or
drops it. Nothing is sent, and nothing in the kernel changes.

Without --from the packet comes from a process on this node. With --from it comes
in by --iif, or by the interface through which the node reaches that address.
It looks at nftproxy's tables only: a firewall may still drop what they let pass.
It needs CAP_NET_ADMIN.`

// question is what explain is asked.
type question struct {
	proto, to, from, iif, output string
}

// newExplainCommand returns `nftproxy explain`.
func newExplainCommand(out io.Writer) *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain PROTOCOL ADDRESS:PORT",
		Short: "Tell what happens to a packet on this node, and why", Long: aboutExplain, Args: cobra.ExactArgs(2),
		ValidArgsFunction: completePacket,
		Example:           "  nftproxy explain tcp 10.96.0.10:443\n  nftproxy explain udp 10.96.0.10:53 --from 10.244.1.5\n  nftproxy explain tcp '[fd00:10:96::a]:443' --from 2001:db8::7 --iif eth0 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			q.proto, q.to = args[0], args[1]
			write := explain.Text
			switch q.output {
			case "text":
			case "json":
				write = explain.JSON
			default:
				return fmt.Errorf("-o %s: must be text or json", q.output)
			}
			cmd.SilenceUsage = true
			e, err := q.answer()
			if err != nil {
				return permission(err)
			}
			return write(out, e)
		},
	}
	cmd.Flags().StringVar(&q.from, "from", "", "The address that the packet comes from.")
	cmd.Flags().StringVar(&q.iif, "iif", "", "The interface that the packet comes in by.")
	cmd.Flags().StringVarP(&q.output, "output", "o", "text", "text or json.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// answer reads what is needed and explains.
func (q *question) answer() (*explain.Explanation, error) {
	facts, err := readFacts()
	if err != nil {
		return nil, err
	}
	packet, err := q.packet(facts)
	if err != nil {
		return nil, err
	}
	conn, err := kernel.Open(0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	f := nft.FamilyOf(packet.To.Addr())
	own, err := conn.Snapshot(f)
	if err != nil {
		return nil, err
	}
	other, err := conn.Snapshot(f.Other())
	if err != nil {
		return nil, err
	}
	node := explain.Node{Local: facts.isLocal, Route: facts.route, Client: clientOf(conn, f)}
	return explain.Explain(own, other, packet, node), nil
}

// clientOf looks clients up in sticky maps. A map that cannot be read has no clients.
func clientOf(conn *kernel.Conn, f nft.Family) func(set, key string) string {
	return func(set, key string) (found string) {
		_ = conn.Elements(f, set, func(k, data []byte) {
			if string(k) == key {
				found = string(data)
			}
		})
		return found
	}
}

// packet makes the packet that is asked about.
func (q *question) packet(facts *facts) (explain.Packet, error) {
	var p explain.Packet
	var ok bool
	if p.Proto, ok = nft.ParseProto(q.proto); !ok {
		return p, fmt.Errorf("protocol %s: must be tcp, udp or sctp", q.proto)
	}
	to, err := netip.ParseAddrPort(q.to)
	if err != nil {
		return p, fmt.Errorf("%s: must be ADDRESS:PORT, an IPv6 address in brackets", q.to)
	}
	p.To = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	p.IIF = q.iif
	if q.from == "" {
		if q.iif != "" {
			return p, errors.New("--iif needs --from")
		}
		p.From = netip.AddrPortFrom(facts.source(p.To.Addr()), anyPort)
		return p, nil
	}
	from, err := netip.ParseAddr(q.from)
	if err != nil {
		return p, fmt.Errorf("--from %s: not an address", q.from)
	}
	from = from.Unmap()
	if from.Is4() != p.To.Addr().Is4() {
		return p, fmt.Errorf("--from %s and %s are of different families", q.from, q.to)
	}
	p.From = netip.AddrPortFrom(from, anyPort)
	if p.IIF == "" && !facts.isLocal(from) {
		if p.IIF, ok = facts.route(from); !ok {
			return p, fmt.Errorf("the node has no route to %s, so the interface that the packet comes in by has to be given with --iif", from)
		}
	}
	return p, nil
}

// anyPort is a source port as clients use them; our rules do not look at it.
const anyPort = 40000
