// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// completeFlags lets the shell complete the values of -o, --service and --iif, as far as a command has them.
func completeFlags(cmd *cobra.Command, forms []string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("service", func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return completeFrontends(begun, func(_ nft.Decoded, name string) []string {
			service, _, _ := strings.Cut(name, ":")
			return []string{service}
		})
	})
	_ = cmd.RegisterFlagCompletionFunc("iif", func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		list, _ := net.Interfaces()
		for _, i := range list {
			names = append(names, i.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// completePacket offers the arguments of explain: protocols, then the addresses and names of Service ports.
func completePacket(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return []string{"tcp", "udp", "sctp"}, cobra.ShellCompDirectiveNoFileComp
	case 1:
		return completeFrontends(begun, func(d nft.Decoded, name string) []string {
			if !d.Addr.IsValid() || d.Proto.String() != args[0] {
				return nil
			}
			return []string{netip.AddrPortFrom(d.Addr, d.Port).String() + "\t" + name, name}
		})
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeFrontends offers what begins so of the frontends in the kernel's tables. Without the right to read those it is nothing.
func completeFrontends(begun string, offer func(d nft.Decoded, name string) []string) ([]string, cobra.ShellCompDirective) {
	conn, err := kernel.Open(0)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer func() { _ = conn.Close() }()
	found := map[string]bool{}
	for _, f := range nft.Families() {
		decoder := nft.NewDecoder(f)
		err := conn.Commented(f, func(e nft.Element) {
			d, ok := decoder.Decode(&e)
			for _, text := range offer(d, inspect.Printable(e.Comment)) {
				if ok && strings.HasPrefix(text, begun) {
					found[text] = true
				}
			}
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	return slices.Sorted(maps.Keys(found)), cobra.ShellCompDirectiveNoFileComp
}
