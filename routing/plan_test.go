// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/nftproxy/nftproxy/routing"
)

func TestPlan(t *testing.T) {
	tests := []struct {
		name     string
		config   Config
		change   func(*Config, *State)
		want     string
		problems string
	}{
		{name: "nothing is switched on", config: baseConfig()},
		{name: "reach", config: reachConfig(), want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			neighbour fd69::4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route fd69::4/128 dev eth0 metric 1
			route 169.254.169.4/32 dev eth0 metric 1
			route fd00:10:96::/112 via fd69::4 dev eth0 onlink src fd00:18::3 metric 1024
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`},
		{name: "reach over a named device, an MTU, two CIDRs of one family", config: reachConfig(),
			change: func(c *Config, _ *State) {
				c.Device, c.MTU = "mp0", 1350
				c.ServiceCIDRs = prefixes("10.96.0.0/16", "10.100.0.0/20")
				c.NodeAddrs = addrs("172.18.0.3")
			}, want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev mp0 permanent
			route 169.254.169.4/32 dev mp0 metric 1
			route 10.100.0.0/20 via 169.254.169.4 dev mp0 onlink src 172.18.0.3 mtu 1350 metric 1024
			route 10.96.0.0/16 via 169.254.169.4 dev mp0 onlink src 172.18.0.3 mtu 1350 metric 1024`},
		{name: "a named device's own address is the source where no node address is named", config: reachConfig(),
			change: func(c *Config, _ *State) { c.Device, c.ServiceCIDRs, c.PodCIDRs = "mp0", prefixes("10.96.0.0/16"), nil },
			want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev mp0 permanent
			route 169.254.169.4/32 dev mp0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev mp0 onlink src 10.244.1.2 metric 1024`},
		{name: "an alternative name will do", config: reachConfig(),
			change: func(c *Config, _ *State) { c.Device, c.ServiceCIDRs = "enp0s1", prefixes("10.96.0.0/16") }, want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`},
		{name: "service CIDRs may come later", config: allConfig(),
			change: func(c *Config, _ *State) { c.ServiceCIDRs = nil }, want: `
			sysctl net.ipv4.conf.mp0.rp_filter=2
			address 169.254.169.2/29 dev mp0
			address fd69::2/125 dev mp0
			route fd69::1/128 dev mp0 src fd00:18::3 mtu 1400 metric 1024
			route fd69::/125 dev mp0 src fd69::2 mtu 1400 metric 1024
			route 169.254.169.1/32 dev mp0 src 172.18.0.3 mtu 1400 metric 1024
			route 169.254.169.0/29 dev mp0 src 169.254.169.2 mtu 1400 metric 1024
			route fd69::3/128 via fd00:10:244:1::1 dev mp0 metric 1024
			route 169.254.169.3/32 via 10.244.1.1 dev mp0 metric 1024
			rule IPv4 priority 30 fwmark 0x1745ec lookup 7
			rule IPv6 priority 30 fwmark 0x1745ec lookup 7`,
			problems: "waiting: no service CIDR is known, so no Service address is routed: create ServiceCIDR objects or set serviceCIDRs"},
		{name: "steering", config: steeringConfig(),
			change: func(c *Config, _ *State) { c.Reach.Enabled = false }, want: `
			sysctl net.ipv4.conf.mp0.rp_filter=2
			route fd00:10:96::/112 via fd00:10:244:1::1 dev mp0 metric 1024 table 7
			route 10.96.0.0/16 via 10.244.1.1 dev mp0 metric 1024 table 7
			rule IPv4 priority 30 fwmark 0x1745ec lookup 7
			rule IPv6 priority 30 fwmark 0x1745ec lookup 7`},
		{name: "steering with numbers of its own and a gateway that answers to nobody", config: steeringConfig(),
			change: func(c *Config, _ *State) {
				c.Reach.Enabled, c.ServiceCIDRs, c.Metric = false, prefixes("10.96.0.0/16"), 7
				c.Steering.Mark, c.Steering.Mask, c.Steering.Priority, c.Steering.Table = 0x10, 0xf0, 77, 4242
				c.Steering.Gateways = hops("192.0.2.1=02:00:00:00:00:01")
			}, want: `
			sysctl net.ipv4.conf.mp0.rp_filter=2
			neighbour 192.0.2.1 lladdr 02:00:00:00:00:01 dev mp0 permanent
			route 192.0.2.1/32 dev mp0 metric 1
			route 10.96.0.0/16 via 192.0.2.1 dev mp0 onlink metric 7 table 4242
			rule IPv4 priority 77 fwmark 0x10/0xf0 lookup 4242`},
		{name: "hand-off", config: handOffConfig(), want: `
			address 169.254.169.2/29 dev mp0
			address fd69::2/125 dev mp0
			route fd69::1/128 dev mp0 src fd00:18::3 metric 1024
			route fd69::/125 dev mp0 src fd69::2 metric 1024
			route 169.254.169.1/32 dev mp0 src 172.18.0.3 metric 1024
			route 169.254.169.0/29 dev mp0 src 169.254.169.2 metric 1024
			route fd69::3/128 via fd00:10:244:1::1 dev mp0 metric 1024
			route fd00:10:96::/112 via fd00:10:244:1::1 dev mp0 src fd00:18::3 metric 1024
			route 169.254.169.3/32 via 10.244.1.1 dev mp0 metric 1024
			route 10.96.0.0/16 via 10.244.1.1 dev mp0 src 172.18.0.3 metric 1024`},
		{name: "hand-off of ClusterIPs of host processes alone", config: handOffConfig(),
			change: func(c *Config, _ *State) {
				c.HandOff.Local, c.HandOff.Cluster, c.HandOff.HostClusterIPs = false, false, true
				c.Masquerade.Enabled, c.ServiceCIDRs = false, prefixes("10.96.0.0/16")
			}, want: `
			route 10.96.0.0/16 via 10.244.1.1 dev mp0 src 172.18.0.3 metric 1024`},
		{name: "hand-off without gateways goes to the next hop of the subnet", config: handOffConfig(),
			change: func(c *Config, _ *State) {
				c.HandOff.Gateways, c.Masquerade.Enabled, c.ServiceCIDRs = nil, false, prefixes("10.96.0.0/16")
			}, want: `
			route 169.254.169.4/32 dev mp0 metric 1
			route 169.254.169.3/32 via 169.254.169.4 dev mp0 onlink metric 1024
			route 10.96.0.0/16 via 169.254.169.4 dev mp0 onlink src 172.18.0.3 metric 1024`},
		{name: "hand-off to Antrea", config: antreaConfig(), want: `
			neighbour 169.254.0.253 lladdr aa:bb:cc:dd:ee:ff dev mp0 permanent
			neighbour fc01::aabb:ccdd:eeff lladdr aa:bb:cc:dd:ee:ff dev mp0 permanent
			route fc01::aabb:ccdd:eeff/128 dev mp0 src fd00:18::3 metric 1024
			route 169.254.0.253/32 dev mp0 src 172.18.0.3 metric 1024
			route fc01::aabb:ccdd:eefe/128 via fc01::aabb:ccdd:eeff dev mp0 onlink metric 1024
			route fd00:10:96::/112 via fc01::aabb:ccdd:eeff dev mp0 onlink src fd00:18::3 metric 1024
			route 169.254.0.252/32 via 169.254.0.253 dev mp0 onlink metric 1024
			route 10.96.0.0/16 via 169.254.0.253 dev mp0 onlink src 172.18.0.3 metric 1024`},
		{name: "everything", config: allConfig(), want: `
			sysctl net.ipv4.conf.mp0.rp_filter=2
			address 169.254.169.2/29 dev mp0
			address fd69::2/125 dev mp0
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			neighbour fd69::4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route fd69::1/128 dev mp0 src fd00:18::3 mtu 1400 metric 1024
			route fd69::4/128 dev eth0 metric 1
			route fd69::/125 dev mp0 src fd69::2 mtu 1400 metric 1024
			route 169.254.169.1/32 dev mp0 src 172.18.0.3 mtu 1400 metric 1024
			route 169.254.169.4/32 dev eth0 metric 1
			route 169.254.169.0/29 dev mp0 src 169.254.169.2 mtu 1400 metric 1024
			route fd69::3/128 via fd00:10:244:1::1 dev mp0 metric 1024
			route fd00:10:96::/112 via fd00:10:244:1::1 dev mp0 mtu 1400 metric 1024 table 7
			route fd00:10:96::/112 via fd69::4 dev eth0 onlink src fd00:18::3 mtu 1400 metric 1024
			route 169.254.169.3/32 via 10.244.1.1 dev mp0 metric 1024
			route 10.96.0.0/16 via 10.244.1.1 dev mp0 mtu 1400 metric 1024 table 7
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 mtu 1400 metric 1024
			rule IPv4 priority 30 fwmark 0x1745ec lookup 7
			rule IPv6 priority 30 fwmark 0x1745ec lookup 7`},
		{name: "a single-stack node leaves the other family alone", config: allConfig(),
			change: func(c *Config, s *State) {
				c.NodeAddrs = addrs("172.18.0.3")
				c.Reach.Enabled, c.Steering.Enabled = false, false
			}, want: `
			address 169.254.169.2/29 dev mp0
			route 169.254.169.1/32 dev mp0 src 172.18.0.3 mtu 1400 metric 1024
			route 169.254.169.0/29 dev mp0 src 169.254.169.2 mtu 1400 metric 1024
			route 169.254.169.3/32 via 10.244.1.1 dev mp0 metric 1024`},
		{name: "a missing device leaves out only what needs it", config: steeringConfig(),
			change: func(c *Config, s *State) { c.ServiceCIDRs, s.Links = prefixes("10.96.0.0/16"), s.Links[:2] }, want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024
			rule IPv4 priority 30 fwmark 0x1745ec lookup 7`,
			problems: "waiting: device mp0 does not exist: create it or correct steering.device"},
		{name: "a device that is down", config: steeringConfig(),
			change: func(c *Config, s *State) { c.ServiceCIDRs, mutable(s, "eth0").Up = prefixes("10.96.0.0/16"), false }, want: `
			sysctl net.ipv4.conf.mp0.rp_filter=2
			route 10.96.0.0/16 via 10.244.1.1 dev mp0 metric 1024 table 7
			rule IPv4 priority 30 fwmark 0x1745ec lookup 7`,
			problems: "waiting: the node has no IPv4 address: add one, name one in nodeAddrs, or remove the IPv4 service CIDRs"},
		{name: "an MTU that IPv6 cannot live with", config: reachConfig(),
			change: func(c *Config, s *State) { mutable(s, "eth0").MTU = 1279 }, want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`,
			problems: "waiting: device eth0 has an MTU of 1279, and IPv6 needs 1280: raise it"},
		{name: "a tentative address is no source yet", config: reachConfig(),
			change: func(c *Config, s *State) {
				c.NodeAddrs = addrs("172.18.0.3", "fd00:18::3")
				s.Addrs[3].Tentative = true
			}, want: `
			neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`,
			problems: "waiting: the node's address fd00:18::3 is on no interface: add it or correct nodeAddrs"},
		{name: "the same permanent neighbour of others serves", config: reachConfig(),
			change: func(c *Config, s *State) {
				c.ServiceCIDRs = prefixes("10.96.0.0/16")
				s.Neighbours = map[Neighbour]bool{{2, netip.MustParseAddr("169.254.169.4"), DefaultNextHopMAC()}: true}
			}, want: `
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`},
		{name: "another permanent neighbour of others is not replaced", config: reachConfig(),
			change: func(c *Config, s *State) {
				c.ServiceCIDRs = prefixes("10.96.0.0/16")
				s.Neighbours = map[Neighbour]bool{{2, netip.MustParseAddr("169.254.169.4"), MAC{2}}: true}
			}, want: `
			route 169.254.169.4/32 dev eth0 metric 1
			route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024`,
			problems: "conflict: neighbour 169.254.169.4 dev eth0 is held by others with 02:00:00:00:00:00: " +
				"remove it, or use that MAC in place of 0a:58:a9:fe:a9:04"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, s := tt.config, worker()
			if tt.change != nil {
				tt.change(&c, &s)
			}
			c, err := c.Normalize()
			if err != nil {
				t.Fatal(err)
			}
			r := Plan(c, s, nil)
			if d := cmp.Diff(trim(tt.want), lines(r.Want, s.Name)); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
			if d := cmp.Diff(trim(tt.problems), problemLines(r.Problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

// TestRefused holds that each wrong setting gives one line, and that the line says what to change.
func TestRefused(t *testing.T) {
	foreign := func(r ForeignRule) func(*Config, *State) {
		return func(_ *Config, s *State) { s.Rules = append(s.Rules, r) }
	}
	tests := []struct {
		name   string
		config Config
		change func(*Config, *State)
		want   string
	}{
		{"subnet overlaps service CIDR", reachConfig(),
			func(c *Config, _ *State) { c.Subnets = prefixes("10.96.8.0/29", "fd69::/125") },
			"masquerade subnet 10.96.8.0/29 overlaps service CIDR 10.96.0.0/16: choose another one (masqueradeSubnets)"},
		{"subnet overlaps pod CIDR", reachConfig(),
			func(c *Config, _ *State) { c.Subnets = prefixes("169.254.169.0/29", "fd00:10:244:7::/125") },
			"masquerade subnet fd00:10:244:7::/125 overlaps pod CIDR fd00:10:244::/56: choose another one (masqueradeSubnets)"},
		{"subnet contains the node", reachConfig(),
			func(c *Config, _ *State) {
				c.Subnets, c.NodeAddrs = prefixes("172.18.0.0/29", "fd69::/125"), addrs("172.18.0.3", "fd00:18::3")
			}, "masquerade subnet 172.18.0.0/29 contains the node's address 172.18.0.3: choose another one (masqueradeSubnets)"},
		{"subnet overlaps an address of the node", reachConfig(),
			func(_ *Config, s *State) {
				s.Addrs = append(s.Addrs, Addr{Index: 3, Prefix: netip.MustParsePrefix("169.254.169.2/29")})
			}, "masquerade subnet 169.254.169.0/29 overlaps address 169.254.169.2/29 of mp0: choose another one (masqueradeSubnets)"},
		{"subnet too small", reachConfig(), func(c *Config, _ *State) { c.Subnets = prefixes("169.254.169.0/30", "fd69::/125") },
			"masquerade subnet 169.254.169.0/30 is too small: give it at least 3 host bits (masqueradeSubnets)"},
		{"no subnet for a family", reachConfig(), func(c *Config, _ *State) { c.Subnets = prefixes("169.254.169.0/29") }, ""},
		{"two subnets of a family", reachConfig(),
			func(c *Config, _ *State) { c.Subnets = prefixes("169.254.169.0/29", "169.254.170.0/29", "fd69::/125") },
			"masqueradeSubnets has two IPv4 entries, the second 169.254.170.0: keep one per family"},
		{"service CIDR overlaps pods", reachConfig(), func(c *Config, _ *State) { c.PodCIDRs = prefixes("10.96.128.0/17") },
			"service CIDR 10.96.0.0/16 overlaps pod CIDR 10.96.128.0/17: change serviceCIDRs or what overlaps"},
		{"service CIDR contains the node", reachConfig(),
			func(c *Config, _ *State) { c.ServiceCIDRs, c.NodeAddrs = prefixes("172.0.0.0/8"), addrs("172.18.0.3") },
			"service CIDR 172.0.0.0/8 contains the node's address 172.18.0.3: change serviceCIDRs or what overlaps"},
		{"service CIDR overlaps an interface", reachConfig(),
			func(_ *Config, s *State) {
				s.Addrs = append(s.Addrs, Addr{Index: 3, Prefix: netip.MustParsePrefix("10.96.7.1/24")})
			}, "service CIDR 10.96.0.0/16 overlaps address 10.96.7.1/24 of mp0: change serviceCIDRs or what overlaps"},
		{"a bound ClusterIP is no overlap", reachConfig(),
			func(_ *Config, s *State) {
				s.Addrs = append(s.Addrs, Addr{Index: 3, Prefix: netip.MustParsePrefix("10.96.0.10/32"), Global: true})
			}, ""},
		{"mapped address", reachConfig(), func(c *Config, _ *State) { c.NodeAddrs = addrs("::ffff:172.18.0.3") },
			"nodeAddrs: \"::ffff:172.18.0.3\" is neither an IPv4 nor an IPv6 address: write it plainly"},
		{"missing device", reachConfig(), func(c *Config, _ *State) { c.Device = "br-ex" },
			"device br-ex does not exist: create it or correct device"},
		{"missing device, service CIDRs not known yet", steeringConfig(),
			func(c *Config, s *State) { c.ServiceCIDRs, s.Links = nil, s.Links[:2] },
			"no service CIDR is known, so no Service address is routed: create ServiceCIDR objects or set serviceCIDRs\n" +
				"routing: device mp0 does not exist: create it or correct steering.device"},
		{"gateway not on link, service CIDRs not known yet", steeringConfig(),
			func(c *Config, _ *State) { c.ServiceCIDRs, c.Steering.Gateways = nil, hops("10.244.9.1") },
			"no service CIDR is known, so no Service address is routed: create ServiceCIDR objects or set serviceCIDRs\n" +
				"routing: gateway 10.244.9.1 is not on link of mp0, which has [10.244.1.2/24]: correct the gateway or give its MAC"},
		{"device is down", reachConfig(), func(c *Config, s *State) { c.Device, mutable(s, "mp0").Up = "mp0", false },
			"device mp0 is down: ip link set mp0 up"},
		{"loopback", reachConfig(), func(c *Config, _ *State) { c.Device = "lo" },
			"device lo is loopback and has no neighbours: set device to another one"},
		{"node address on no interface", reachConfig(), func(c *Config, _ *State) { c.NodeAddrs = addrs("172.18.0.9", "fd00:18::3") },
			"the node's address 172.18.0.9 is on no interface: add it or correct nodeAddrs"},
		{"rule priority used", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 30, Table: 100, Mark: 1, Mask: 1}),
			"IPv4 rule priority 30 is used by others (from all fwmark 0x1/0x1 lookup 100): set steering.priority to a free one"},
		{"table used by a rule", steeringConfig(), foreign(ForeignRule{Fam: IPv6, Priority: 99, Table: 7}),
			"table 7 is used by others (IPv6 rule 99: from all lookup 7): set steering.table to a free one"},
		{"table used by routes", steeringConfig(),
			func(_ *Config, s *State) {
				s.TableRoutes = []FoundRoute{{Route{Dst: netip.MustParsePrefix("10.0.0.0/8")}, 3}}
			}, "table 7 has 1 routes of others (10.0.0.0/8 by protocol 3 first): set steering.table to a free one"},
		{"mark taken by an earlier rule", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 9, Table: 100, Mark: 0x400, Mask: 0x400}),
			"IPv4 rule 9 of others takes packets with mark 0x1745ec first (from all fwmark 0x400/0x400 lookup 100): set steering.priority below 9"},
		{"everything taken by an earlier rule", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 9, Table: 254}),
			"IPv4 rule 9 of others takes packets with mark 0x1745ec first (from all lookup 254): set steering.priority below 9"},
		{"an earlier rule for another mark", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 9, Table: 2004, Mark: 0x200, Mask: 0xf00}), ""},
		{"an earlier rule that looks at more", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 9, Table: 254, Selective: true}), ""},
		{"a later rule for our mark", steeringConfig(), foreign(ForeignRule{Fam: IPv4, Priority: 5210, Table: 254, Mark: 0x80, Mask: 0xff}), ""},
		{"kernel's table", steeringConfig(), func(c *Config, _ *State) { c.Steering.Table = 254 },
			"table 254 is the kernel's own: set steering.table to an unused one"},
		{"priority too late", steeringConfig(), func(c *Config, _ *State) { c.Steering.Priority = 32766 },
			"rule priority 32766 comes after the main table's: set steering.priority to 1 to 32765"},
		{"mark outside mask", steeringConfig(), func(c *Config, _ *State) { c.Steering.Mask = 0xff },
			"mark 0x1745ec has bits outside its mask 0xff: correct steering.mark or steering.mask"},
		{"steering without device", steeringConfig(), func(c *Config, _ *State) { c.Steering.Device = "" },
			"steering names no device: set steering.device to the pod gateway device"},
		{"steering without a gateway", steeringConfig(), func(c *Config, _ *State) { c.Steering.Gateways = nil },
			"steering has no gateway: add one per family to steering.gateways"},
		{"gateway not on link", steeringConfig(), func(c *Config, _ *State) { c.Steering.Gateways = hops("10.244.9.1", "fd00:10:244:1::1") },
			"gateway 10.244.9.1 is not on link of mp0, which has [10.244.1.2/24]: correct the gateway or give its MAC"},
		{"gateway device without address", steeringConfig(), func(_ *Config, s *State) { *s = without(*s, "10.244.1.2") },
			"device mp0 has no IPv4 address yet, so gateway 10.244.1.1 is not on link: add an address, or give the gateway's MAC"},
		{"strict filter that is not ours to change", steeringConfig(), func(c *Config, s *State) { c.CheckSysctlsOnly = true },
			"rp_filter of mp0 is strict and drops replies to steered packets: sysctl -w net.ipv4.conf.mp0.rp_filter=2"},
		{"loose filter is fine", steeringConfig(), func(c *Config, s *State) { c.CheckSysctlsOnly, mutable(s, "mp0").RPFilter = true, 2 }, ""},
		{"no filter is fine", steeringConfig(), func(c *Config, s *State) { c.CheckSysctlsOnly, s.AllRPFilter = true, 0 }, ""},
		{"hand-off without device", handOffConfig(), func(c *Config, _ *State) { c.HandOff.Device = "" },
			"hand-off names no device: set handOff.device to the one the balancer sits behind"},
		{"hand-off without traffic", handOffConfig(), func(c *Config, _ *State) { c.HandOff.Local, c.HandOff.Cluster = false, false },
			"hand-off is given no traffic: set handOff.local, handOff.cluster or handOff.hostClusterIPs"},
		{"virtual address in the service CIDR", handOffConfig(), func(c *Config, _ *State) { c.HandOff.Virtual = addrs("10.96.1.1") },
			"virtual address 10.96.1.1 lies in 10.96.0.0/16: choose another one (handOff.virtual)"},
		{"virtual address is the node's", handOffConfig(), func(c *Config, _ *State) { c.HandOff.Virtual = addrs("172.18.0.3") },
			"virtual address 172.18.0.3 is an address of eth0: choose another one (handOff.virtual)"},
		{"one next hop on two devices", reachConfig(), func(c *Config, _ *State) {
			c.HandOff = HandOff{Enabled: true, Device: "mp0", Local: true}
			c.ServiceCIDRs = prefixes("10.96.0.0/16")
		}, "next hop 169.254.169.4 is needed on eth0 and on mp0: give one of them another gateway"},
		{"no forwarding", handOffConfig(), func(_ *Config, s *State) { s.Forwarding = map[Family]bool{IPv4: true} },
			"IPv6 forwarding is off, and hand-off forwards: sysctl -w net.ipv6.conf.all.forwarding=1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, s := tt.config, worker()
			tt.change(&c, &s)
			got := refusedLines(t, c, s)
			want := tt.want
			if want != "" {
				want = "routing: " + want
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// refusedLines returns what a start would say: what is wrong in itself, else what the node has against it.
func refusedLines(t *testing.T, c Config, s State) string {
	t.Helper()
	c, err := c.Normalize()
	if err == nil {
		err = Refusal(Plan(c, s, nil).Problems, Waiting)
	}
	if err == nil {
		return ""
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("%v is no RefusedError", err)
	}
	return err.Error()
}

// TestPlanSetsAside: what is in conflict, or has no gateway, is left out alone and reported; the rest is planned. want
// are the destinations of routes, by table.
func TestPlanSetsAside(t *testing.T) {
	const subnets = "fd69::4/128 169.254.169.4/32 "
	for _, tt := range []struct {
		name     string
		config   Config
		change   func(*Config, *State)
		want     string
		problems string
	}{
		{"one service CIDR that overlaps an interface", reachConfig(), func(c *Config, _ *State) {
			c.ServiceCIDRs = prefixes("10.96.0.0/16", "172.18.0.0/20", "fd00:10:96::/112")
		}, subnets + "fd00:10:96::/112 10.96.0.0/16",
			"conflict: service CIDR 172.18.0.0/20 overlaps address 172.18.0.3/16 of eth0: change serviceCIDRs or what overlaps"},
		{"not one that is routed already", reachConfig(), func(c *Config, s *State) {
			s.Ours = Plan(must(c.Normalize()), *s, nil).Want
			s.Addrs = append(s.Addrs, Addr{Index: 3, Prefix: netip.MustParsePrefix("10.96.7.1/24")},
				Addr{Index: 3, Prefix: netip.MustParsePrefix("169.254.169.6/28")})
		}, subnets + "fd00:10:96::/112 10.96.0.0/16",
			"conflict: service CIDR 10.96.0.0/16 overlaps address 10.96.7.1/24 of mp0: change serviceCIDRs or what overlaps\n" +
				"conflict: masquerade subnet 169.254.169.0/29 overlaps address 169.254.169.6/28 of mp0: choose another one (masqueradeSubnets)"},
		{"one service CIDR that contains the node", reachConfig(), func(c *Config, _ *State) {
			c.ServiceCIDRs = append(c.ServiceCIDRs, prefixes("fd00::/16")...)
			c.NodeAddrs = addrs("172.18.0.3", "fd00:18::3")
		}, subnets + "fd00:10:96::/112 10.96.0.0/16", "conflict: service CIDR fd00::/16 overlaps pod CIDR fd00:10:244::/56: change serviceCIDRs or what overlaps\n" +
			"conflict: service CIDR fd00::/16 contains the node's address fd00:18::3: change serviceCIDRs or what overlaps"},
		{"one masquerade subnet", handOffConfig(), func(c *Config, s *State) {
			s.Addrs = append(s.Addrs, Addr{Index: 2, Prefix: netip.MustParsePrefix("169.254.169.6/28")})
		}, "fd69::1/128 fd69::/125 fd69::3/128 fd00:10:96::/112 169.254.169.3/32 10.96.0.0/16",
			"conflict: masquerade subnet 169.254.169.0/29 overlaps address 169.254.169.6/28 of eth0: choose another one (masqueradeSubnets)"},
		{"one virtual address", handOffConfig(), func(c *Config, _ *State) {
			c.HandOff.Virtual, c.Masquerade.Enabled = addrs("10.96.1.1", "fd69::3"), false
		}, "fd69::3/128 fd00:10:96::/112 10.96.0.0/16", "conflict: virtual address 10.96.1.1 lies in 10.96.0.0/16: choose another one (handOff.virtual)"},
		{"steering of one family", steeringConfig(), func(c *Config, _ *State) { c.Steering.Gateways = hops("10.244.1.1") },
			subnets + "fd00:10:96::/112 7:10.96.0.0/16 10.96.0.0/16",
			"note: steering has no IPv6 gateway, so IPv6 is not steered: add one to steering.gateways"},
		{"steering of both families on a node of one", steeringConfig(), func(c *Config, _ *State) {
			c.Steering.Gateways, c.NodeAddrs = hops("10.244.1.1"), addrs("172.18.0.3")
		}, "169.254.169.4/32 7:10.96.0.0/16 10.96.0.0/16", ""},
		{"reach with a subnet of one family", reachConfig(), func(c *Config, _ *State) { c.Subnets = prefixes("169.254.169.0/29") },
			"169.254.169.4/32 10.96.0.0/16",
			"note: reach has no IPv6 masquerade subnet, so IPv6 Services are not routed: add one (masqueradeSubnets)"},
		{"hand-off with a gateway and a subnet of one family", handOffConfig(), func(c *Config, _ *State) {
			c.Subnets, c.HandOff.Gateways, c.Masquerade.Enabled = prefixes("169.254.169.0/29"), nil, false
		}, "169.254.169.4/32 169.254.169.3/32 10.96.0.0/16",
			"note: hand-off has no IPv6 gateway and no IPv6 masquerade subnet, so IPv6 is not handed over: add one to handOff.gateways"},
		{"a family that the cluster may not have", handOffConfig(), func(c *Config, s *State) {
			c.ServiceCIDRs, c.HandOff.Cluster, c.Masquerade.Enabled, s.Forwarding = nil, false, false, map[Family]bool{IPv4: true}
		}, "fd69::3/128 169.254.169.3/32", "waiting: IPv6 forwarding is off, and hand-off forwards: sysctl -w net.ipv6.conf.all.forwarding=1"},
		{"the subnet of a running OVN-Kubernetes", handOffConfig(), func(c *Config, s *State) {
			for _, a := range prefixes("169.254.169.2/29", "fd69::2/125") {
				s.Addrs = append(s.Addrs, Addr{Index: 3, Prefix: a})
			}
			c.HandOff.Gateways = nil
		}, "fd69::1/128 fd69::4/128 fd69::/125 169.254.169.1/32 169.254.169.4/32 169.254.169.0/29 " +
			"fd69::3/128 fd00:10:96::/112 169.254.169.3/32 10.96.0.0/16", ""},
		{"the subnet of others that hand-off does not use", handOffConfig(), func(c *Config, s *State) {
			s.Addrs = append(s.Addrs, Addr{Index: 2, Prefix: netip.MustParsePrefix("169.254.169.2/29")})
			c.HandOff.Virtual, c.Masquerade.Enabled = addrs("192.0.2.3", "2001:db8::3"), false
		}, "2001:db8::3/128 fd00:10:96::/112 192.0.2.3/32 10.96.0.0/16", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := tt.config, worker()
			tt.change(&c, &s)
			r := Plan(must(c.Normalize()), s, nil)
			var got []string
			for _, e := range r.Want.Sorted() {
				if x, ok := e.(Route); ok {
					got = append(got, strings.TrimPrefix(fmt.Sprintf("%d:%s", x.Table, x.Dst), "254:"))
				}
				if a, ok := e.(Address); ok && slices.ContainsFunc(s.Addrs, func(o Addr) bool { return o.Index == a.Index && o.Prefix == a.Prefix }) {
					t.Errorf("%s is there already", e.Text(s.Name))
				}
			}
			if d := cmp.Diff(tt.want, strings.Join(got, " ")); d != "" {
				t.Errorf("routes (-want +got):\n%s", d)
			}
			if d := cmp.Diff(trim(tt.problems), problemLines(r.Problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

// TestPlanFindsShadowed: a route of others that the kernel prefers to one of ours is a conflict, unless it leads to the
// same next hop. Nothing is reported of routes that are not there yet.
func TestPlanFindsShadowed(t *testing.T) {
	c := handOffConfig()
	c.Steering = steeringConfig().Steering
	c = must(c.Normalize())
	s := worker()
	s.Ours = Plan(c, s, nil).Want
	at := netip.MustParseAddr("10.96.0.0")
	other := Route{Table: TableMain, Dst: dualCIDRs()[0], Metric: 5, Index: 2, Gateway: netip.MustParseAddr("172.18.0.1")}
	same := other
	same.Index, same.Gateway, same.Metric = 3, netip.MustParseAddr("10.244.1.1"), 1024
	if h := (Config{ServiceCIDRs: dualCIDRs(), HandOff: HandOff{Enabled: true, HostClusterIPs: true}}); !slices.Contains(h.Lookups(), Lookup{Dst: at}) {
		t.Errorf("hand-off of ClusterIPs of host processes looks up %v", h.Lookups())
	}
	for _, tt := range []struct {
		name string
		at   Lookup
		by   FoundRoute
		want string
	}{
		{"ours", Lookup{Dst: at}, FoundRoute{other, Protocol}, ""},
		{"smaller metric", Lookup{Dst: at}, FoundRoute{other, 4},
			"route 10.96.0.0/16 via 172.18.0.1 dev eth0 metric 5 of others (protocol 4) takes packets to 10.96.0.0/16: remove it, or set metric below 5"},
		{"same next hop", Lookup{Dst: at}, FoundRoute{same, 4}, ""},
		{"steered", Lookup{Dst: at, Mark: DefaultMark}, FoundRoute{other, 4},
			"route 10.96.0.0/16 via 172.18.0.1 dev eth0 metric 5 of others (protocol 4) takes packets to 10.96.0.0/16: remove it, or set metric below 5"},
	} {
		s.Found = map[Lookup]FoundRoute{tt.at: tt.by}
		if !slices.Contains(c.Lookups(), tt.at) {
			t.Errorf("%s: %v is not looked up", tt.name, tt.at)
		}
		if got := strings.TrimPrefix(strings.TrimSpace(problemLines(Plan(c, s, nil).Problems)), "conflict: "); got != tt.want {
			t.Errorf("%s: got %s\nwant %s", tt.name, got, tt.want)
		}
		if r := Plan(c, s, nil); tt.name == "same next hop" != !r.Want.Has(Route{Table: TableMain, Dst: tt.by.Dst, Metric: 1024, Index: 3,
			Gateway: same.Gateway, Source: netip.MustParseAddr("172.18.0.3")}) {
			t.Errorf("%s: plan %s", tt.name, lines(r.Want, s.Name))
		}
		fresh := s
		fresh.Ours = nil
		if got := problemLines(Plan(c, fresh, nil).Problems); got != "" {
			t.Errorf("%s, before ours is there: %s", tt.name, got)
		}
	}
}

// TestPlanFollowsRenamedDevice: the device that was chosen stays chosen until another one takes its name.
func TestPlanFollowsRenamedDevice(t *testing.T) {
	c := must(steeringConfig().Normalize())
	s := worker()
	r := Plan(c, s, nil)
	before := r.Want

	s = worker()
	mutable(&s, "mp0").Name = "old0"
	r = Plan(c, s, r.Devices)
	if !maps.Equal(r.Want, before) {
		t.Errorf("entries changed when the device was renamed:\n%s", lines(r.Want, s.Name))
	}
	if got, want := problemLines(r.Problems), "note: device mp0 is now called old0: change steering.device before the next start\n"; got != want {
		t.Errorf("problems: got %q, want %q", got, want)
	}

	s.Links = append(s.Links, Link{Index: 9, Name: "mp0", Up: true, MTU: 1500})
	s.Addrs = append(s.Addrs,
		Addr{Index: 9, Prefix: netip.MustParsePrefix("10.244.1.3/24"), Global: true},
		Addr{Index: 9, Prefix: netip.MustParsePrefix("fd00:10:244:1::3/64"), Global: true})
	r = Plan(c, s, r.Devices)
	for e := range r.Want {
		if x, ok := e.(Route); ok && x.Table == 7 && x.Index != 9 {
			t.Errorf("%s stays on the renamed device although another one has the name", x.Text(s.Name))
		}
	}

	r = Plan(c, worker(), map[string]int{"mp0": 77})
	if !maps.Equal(r.Want, before) {
		t.Error("a stale memory of an index beats the name")
	}
}

// TestPlanIsPure: equal input, equal output, in every order of links and addresses; nothing of the input is changed.
func TestPlanIsPure(t *testing.T) {
	rng := seeded(t)
	c := must(allConfig().Normalize())
	want := Plan(c, worker(), nil)
	for range 100 {
		s := worker()
		rng.Shuffle(len(s.Links), func(i, j int) { s.Links[i], s.Links[j] = s.Links[j], s.Links[i] })
		got := Plan(c, s, nil)
		if d := cmp.Diff(lines(want.Want, s.Name), lines(got.Want, s.Name)); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
	}
}

func TestSubnetNames(t *testing.T) {
	for _, tt := range []struct{ subnet, peer, host, etp, hop string }{
		{"169.254.169.0/29", "169.254.169.1", "169.254.169.2", "169.254.169.3", "169.254.169.4"},
		{"fd69::/125", "fd69::1", "fd69::2", "fd69::3", "fd69::4"},
		{"169.254.0.0/17", "169.254.0.1", "169.254.0.2", "169.254.0.3", "169.254.0.4"},
	} {
		s := Subnet{netip.MustParsePrefix(tt.subnet)}
		got := [...]string{s.Peer().String(), s.Host().String(), s.LocalETP().String(), s.NextHop().String()}
		if want := [...]string{tt.peer, tt.host, tt.etp, tt.hop}; got != want {
			t.Errorf("%s: got %v, want %v", tt.subnet, got, want)
		}
	}
}
