// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

// sysctl is one setting below /proc/sys/net.
type sysctl struct {
	key, value string
	optional   bool // absent on some kernels
}

// hostSettings apply to every namespace. They are written before interfaces exist, which then start with them.
func hostSettings() []sysctl {
	s := []sysctl{
		// The kernel answers one destination with about one ICMP error per second. Tests refuse thousands of packets and
		// take silence for a drop, so neither limit may apply. (The total became a namespace's own setting in Linux 6.13.)
		{"ipv4/icmp_ratelimit", "0", false},
		{"ipv6/icmp/ratelimit", "0", false},
		{"ipv4/icmp_msgs_per_sec", "1000000", true},
		{"ipv4/icmp_msgs_burst", "1000000", true},
	}
	s = append(s, bridgeNetfilter("0")...)
	for _, scope := range []string{"all", "default"} {
		s = append(s,
			// A redirect would let two pods of a node, or two nodes, go round the NAT that the test is about.
			sysctl{"ipv4/conf/" + scope + "/accept_redirects", "0", false},
			sysctl{"ipv4/conf/" + scope + "/send_redirects", "0", false},
			sysctl{"ipv6/conf/" + scope + "/accept_redirects", "0", false},
			// Loose, as systemd sets it: what most nodes run with.
			sysctl{"ipv4/conf/" + scope + "/rp_filter", "2", false},
			// Duplicate address detection takes a second; addresses here are unique by plan.
			sysctl{"ipv6/conf/" + scope + "/accept_dad", "0", false},
			sysctl{"ipv6/conf/" + scope + "/accept_ra", "0", false},
			sysctl{"ipv6/conf/" + scope + "/router_solicitations", "0", false},
		)
	}
	return s
}

// routerSettings make a namespace forward.
func routerSettings() []sysctl {
	return []sysctl{
		{"ipv4/ip_forward", "1", false},
		{"ipv6/conf/all/forwarding", "1", false},
		{"ipv6/conf/default/forwarding", "1", false},
	}
}

// bridgeNetfilter decides whether frames that a bridge forwards pass the IP hooks, as they do by default where the kernel
// has br_netfilter. The switch must never do that, and nodes do it only on request (Options.BridgeNetfilter).
func bridgeNetfilter(value string) []sysctl {
	return []sysctl{
		{"bridge/bridge-nf-call-iptables", value, true},
		{"bridge/bridge-nf-call-ip6tables", value, true},
	}
}
