// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// completeFlags lets the shell complete the values of -o and --service.
func completeFlags(cmd *cobra.Command, forms []string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
	if cmd.Flags().Lookup("service") != nil {
		_ = cmd.RegisterFlagCompletionFunc("service", completeService)
	}
}

// completeService offers the Services that the kernel has. Without the right to read it there are none.
func completeService(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	names := map[string]bool{}
	err := eachNamed(func(_ nft.Decoded, name string) {
		if service, _, _ := strings.Cut(name, ":"); strings.HasPrefix(service, begun) {
			names[service] = true
		}
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(names)), cobra.ShellCompDirectiveNoFileComp
}

// completePacket offers what explain takes: protocols, then the addresses of Services.
func completePacket(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return []string{"tcp", "udp", "sctp"}, cobra.ShellCompDirectiveNoFileComp
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	proto, _ := nft.ParseProto(args[0])
	addresses := map[string]bool{}
	err := eachNamed(func(d nft.Decoded, name string) {
		if !d.Addr.IsValid() || d.Proto != proto {
			return
		}
		if at := net.JoinHostPort(d.Addr.String(), strconv.Itoa(int(d.Port))); strings.HasPrefix(at, begun) {
			addresses[at+"\t"+name] = true
		}
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(addresses)), cobra.ShellCompDirectiveNoFileComp
}

// eachNamed shows the frontends in the kernel's tables with their Service ports.
func eachNamed(show func(d nft.Decoded, name string)) error {
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, f := range nft.Families() {
		decoder := nft.NewDecoder(f)
		if err := conn.Commented(f, func(e nft.Element) {
			if d, ok := decoder.Decode(&e); ok {
				show(d, e.Comment)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
