// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// refuseForwarding answers everything that the host would forward with ICMP host unreachable, so that a packet which no
// proxy took can be distinguished from one that a proxy dropped. A rule does that, and not an unreachable route: the kernel answers such
// a route about once a second and sender (ip_error), a limit without a setting of its own per namespace. The route that it
// does need, to get as far as the rule, leads to link.
func (h *Host) refuseForwarding(link string) error {
	for _, f := range Families() {
		if err := h.Route(everything(f), netip.Addr{}, link); err != nil {
			return err
		}
	}
	c, err := nftables.New(nftables.WithNetNSFd(h.FD()))
	if err != nil {
		return fmt.Errorf("%s: nftables: %w", h.Name, err)
	}
	table := c.AddTable(&nftables.Table{Name: "lab", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_HOST_UNREACH},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("%s: refuse forwarding: %w", h.Name, err)
	}
	return nil
}
