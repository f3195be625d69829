// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/nftproxy/nftproxy/routing"
	. "github.com/nftproxy/nftproxy/routing/kernel"
)

// newWorker makes a namespace that looks like a node of the lab to us: eth0 and mp0 with the addresses of the fixtures,
// strict reverse path filters, no default route.
func newWorker(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	n.run(`
		sysctl -qw net.ipv4.conf.all.rp_filter=1
		sysctl -qw net.ipv4.conf.default.rp_filter=1
		sysctl -qw net.ipv4.ip_forward=1
		sysctl -qw net.ipv6.conf.all.forwarding=1
		ip link add eth0 type veth peer name eth0-peer
		ip link add mp0 type bridge
		ip link set eth0-peer up`)
	n.run(linkUp("eth0", "172.18.0.3/16", "fd00:18::3/64") + linkUp("mp0", "10.244.1.2/24", "fd00:10:244:1::2/64"))
	return n
}

// linkUp are the commands that set a link up with its addresses.
func linkUp(name, v4, v6 string) string {
	return "ip link set " + name + " up\nip addr add " + v4 + " dev " + name + "\nip addr add " + v6 + " dev " + name + " nodad\n"
}

// foreignState is everything in the namespace that is not ours, as iproute2 tells it. Link-local addresses, and
// the kernel's own routes for addresses, come by themselves some time after a link is up and are left out.
func (n *node) foreignState() string {
	n.t.Helper()
	var out []string
	for _, c := range []string{
		"ip -o addr", "ip route show table all", "ip -6 route show table all",
		"ip rule", "ip -6 rule", "ip neigh show nud permanent",
	} {
		for line := range strings.Lines(n.run(c)) {
			ours := strings.Contains(line, "proto 110") || ourSubnets.MatchString(line)
			if !ours && !strings.Contains(line, "fe80:") && !strings.Contains(line, "table local") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(out, "\n")
}

// ourSubnets finds the masquerade subnets of the tests: the kernel's own routes for an address bear no owner.
var ourSubnets = regexp.MustCompile(`169\.254\.1(69|70)\.|fd(69|70)::`)

// converge plans and applies once, and fails unless the kernel then holds exactly what is wanted.
func converge(t testing.TB, n *node, k *Kernel, c Config) (ops []Op) {
	t.Helper()
	s := n.read(k)
	r := Plan(c, s, nil)
	ops = Diff(s.Have(), r.Want)
	now, err := k.Apply(context.Background(), s.Have(), ops, s.Name)
	if err != nil {
		t.Fatal(err)
	}
	s = n.read(k)
	if d := cmp.Diff(lines(s.Have(), s.Name), lines(now, s.Name)); d != "" {
		t.Fatalf("Apply does not tell the truth (-kernel +told):\n%s", d)
	}
	if left := Diff(s.Have(), Plan(c, s, nil).Want); len(left) != 0 {
		t.Fatalf("%d operations left, first %s %s", len(left), left[0].Verb, left[0].Entry.Text(s.Name))
	}
	return ops
}

// TestKernelRoundTrip: every mode is applied, read back as what was wanted, costs nothing the second time, and goes
// without a trace. What others made is there before, during and after.
func TestKernelRoundTrip(t *testing.T) {
	antreaReach := antreaConfig()
	antreaReach.Reach.Enabled = true
	for name, c := range map[string]Config{
		"reach": reachConfig(), "steering": steeringConfig(), "hand-off": handOffConfig(),
		"antrea": antreaReach, "all": allConfig(),
	} {
		t.Run(name, func(t *testing.T) {
			n := newWorker(t)
			k := n.kernel()
			n.run(`ip route add 203.0.113.0/24 via 172.18.0.1
				ip route add 10.96.0.0/16 via 172.18.0.1 metric 5
				ip -6 route add fd00:10:96::/112 via fd00:18::1 metric 5
				ip rule add priority 77 fwmark 5 lookup 77
				ip neigh add 172.18.0.1 lladdr 02:00:00:00:00:01 dev eth0
				ip addr add 192.0.2.1/32 dev mp0`)
			before := n.foreignState()
			c := must(c.Normalize())
			if len(converge(t, n, k, c)) == 0 {
				t.Fatal("nothing was applied")
			}
			if ops := converge(t, n, k, c); len(ops) != 0 {
				t.Errorf("%d operations the second time", len(ops))
			}
			if d := cmp.Diff(before, n.foreignState()); d != "" {
				t.Errorf("others' entries changed (-before +with ours):\n%s", d)
			}
			removed, err := Cleanup(context.Background(), k)
			if s := n.read(k); err != nil || len(s.Ours) != 0 || removed == 0 {
				t.Errorf("cleanup removed %d, left %v, %v", removed, s.Ours, err)
			}
			if d := cmp.Diff(before, n.foreignState()); d != "" {
				t.Errorf("cleanup changed others' entries (-before +after):\n%s", d)
			}
			if removed, err := Cleanup(context.Background(), k); removed != 0 || err != nil {
				t.Errorf("second cleanup removed %d, %v", removed, err)
			}
		})
	}
}

// TestKernelShowsUs: iproute2 sees our entries as documented, with our protocol number where it prints one.
func TestKernelShowsUs(t *testing.T) {
	n := newWorker(t)
	converge(t, n, n.kernel(), must(allConfig().Normalize()))
	for _, tt := range []struct{ command, want string }{
		{"ip route show proto 110 10.96.0.0/16",
			"10.96.0.0/16 via 169.254.169.4 dev eth0 src 172.18.0.3 metric 1024 onlink mtu 1400"},
		{"ip -6 route show proto 110 fd00:10:96::/112",
			"fd00:10:96::/112 via fd69::4 dev eth0 src fd00:18::3 metric 1024 onlink mtu 1400 pref medium"},
		{"ip route show table 7", "10.96.0.0/16 via 10.244.1.1 dev mp0 proto 110 metric 1024 mtu 1400"},
		{"ip rule show priority 30", "30:	from all fwmark 0x1745ec lookup 7 proto 110"},
		{"ip -6 rule show priority 30", "30:	from all fwmark 0x1745ec lookup 7 proto 110"},
		{"ip neigh show 169.254.169.4", "169.254.169.4 dev eth0 lladdr 0a:58:a9:fe:a9:04 PERMANENT proto 110"},
		{"sysctl -n net.ipv4.conf.mp0.rp_filter", "2"},
		{"sysctl -n net.ipv4.conf.eth0.rp_filter", "1"},
	} {
		if got := strings.Join(strings.Fields(n.run(tt.command)), " "); got != strings.Join(strings.Fields(tt.want), " ") {
			t.Errorf("%s\ngot  %s\nwant %s", tt.command, got, tt.want)
		}
	}
	for _, tt := range []struct{ command, has string }{
		{"ip -o addr show to 169.254.169.2", " 169.254.169.2/29 metric 1852208240 scope host noprefixroute mp0"},
		{"ip -o addr show to fd69::2", " fd69::2/125 metric 1852208240 scope global nodad deprecated noprefixroute "},
	} {
		if got := n.run(tt.command); !strings.Contains(got, tt.has) {
			t.Errorf("%s\ngot  %s\nwant %s in it", tt.command, got, tt.has)
		}
	}
}

// TestKernelNeverASource: the host address of the masquerade subnet is not chosen for ordinary traffic, even when it
// was on the interface before the node's own.
func TestKernelNeverASource(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	c := handOffConfig()
	c.NodeAddrs = addrs("172.18.0.3", "fd00:18::3")
	converge(t, n, k, must(c.Normalize()))
	n.run(`ip addr del 10.244.1.2/24 dev mp0
		ip -6 addr del fd00:10:244:1::2/64 dev mp0
		ip addr add 10.244.1.2/24 dev mp0
		ip addr add fd00:10:244:1::2/64 dev mp0 nodad
		ip route add 198.51.100.0/24 dev mp0
		ip -6 route add 2001:db8::/64 dev mp0`)
	for dst, want := range map[string]string{"198.51.100.1": "src 10.244.1.2", "2001:db8::1": "src fd00:10:244:1::2"} {
		if got := n.run("ip route get " + dst); !strings.Contains(got, want) {
			t.Errorf("source towards %s: got %s, want %s", dst, got, want)
		}
	}
}

// TestKernelReplaces: each way a route, an address and a neighbour can change under the same slot, in both families,
// without the destination being unreachable in between and without leaving a second entry.
func TestKernelReplaces(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	s := n.read(k)
	eth0, mp0 := mustLink(t, s, "eth0").Index, mustLink(t, s, "mp0").Index
	for _, f := range []struct{ dst, node, gw1, gw2, hop, pod string }{
		{"10.96.0.0/16", "172.18.0.3", "172.18.0.1", "172.18.0.2", "169.254.169.4", "10.244.1.1"},
		{"fd00:10:96::/112", "fd00:18::3", "fd00:18::1", "fd00:18::2", "fd69::4", "fd00:10:244:1::1"},
	} {
		base := Route{Table: TableMain, Dst: netip.MustParsePrefix(f.dst), Metric: 1024, Index: eth0}
		with := func(change func(*Route)) Entry { r := base; change(&r); return r }
		hop := netip.MustParseAddr(f.hop)
		steps := []Set{
			NewSet(with(func(r *Route) { r.Gateway = netip.MustParseAddr(f.gw1) })),
			NewSet(with(func(r *Route) { r.Gateway = netip.MustParseAddr(f.gw2) })),
			NewSet(with(func(r *Route) { r.Gateway, r.MTU = netip.MustParseAddr(f.gw2), 1400 })),
			NewSet(with(func(r *Route) {})),
			NewSet(with(func(r *Route) { r.Source = netip.MustParseAddr(f.node) })),
			NewSet(with(func(r *Route) { r.Gateway, r.Index = netip.MustParseAddr(f.pod), mp0 })),
			NewSet(with(func(r *Route) { r.Gateway, r.OnLink = hop, true }), Neighbour{eth0, hop, MAC{2}}),
			NewSet(with(func(r *Route) { r.Index = mp0 }), Neighbour{eth0, hop, MAC{2, 5: 1}}),
			NewSet(Address{eth0, netip.PrefixFrom(hop, hop.BitLen()-3)}),
			NewSet(Address{eth0, netip.PrefixFrom(hop, hop.BitLen()-4)}),
			NewSet(Address{mp0, netip.PrefixFrom(hop, hop.BitLen()-4)}),
			{},
		}
		for i, want := range steps {
			s := n.read(k)
			ops := Diff(s.Ours, want)
			if _, err := k.Apply(context.Background(), s.Ours, ops, s.Name); err != nil {
				t.Fatalf("step %d of %s: %v", i, f.dst, err)
			}
			if s = n.read(k); !maps.Equal(s.Ours, want) {
				t.Fatalf("step %d of %s (-want +kernel):\n%s", i, f.dst, cmp.Diff(lines(want, s.Name), lines(s.Ours, s.Name)))
			}
		}
	}
}

func mustLink(t testing.TB, s State, name string) Link {
	t.Helper()
	l, ok := LinkOf(s, name)
	if !ok {
		t.Fatalf("no link %s", name)
	}
	return l
}

// TestKernelPartialFailure: one operation that the kernel refuses stops no other, is named with the kernel's reason,
// and the set that comes back is what is there.
func TestKernelPartialFailure(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	n.run("ip route add 10.96.0.0/16 dev eth0 metric 1024") // others hold the slot
	s := n.read(k)
	good := Plan(must(steeringConfig().Normalize()), s, nil).Want
	bad := Route{Table: TableMain, Dst: netip.MustParsePrefix("192.0.2.0/24"), Metric: 1024, Index: 4711}
	want := good.Clone()
	want[bad] = struct{}{}
	now, err := k.Apply(context.Background(), s.Have(), Diff(s.Have(), want), s.Name)
	if err == nil || !strings.Contains(err.Error(), "2 of 12 operations failed") {
		t.Errorf("error %v", err)
	}
	var op *OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.EEXIST) || !errors.Is(err, syscall.ENODEV) {
		t.Errorf("error %v wraps no OpError with the errnos", err)
	}
	if !strings.Contains(err.Error(), "add route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024: file exists") {
		t.Errorf("the slot of others is not named: %v", err)
	}
	if s := n.read(k); !maps.Equal(s.Have(), now) {
		t.Errorf("(-kernel +told):\n%s", cmp.Diff(lines(s.Have(), s.Name), lines(now, s.Name)))
	}
	for e := range good {
		if r, ok := e.(Route); !now.Has(e) && !(ok && r.Dst.String() == "10.96.0.0/16" && r.Table == TableMain) {
			t.Errorf("%s was not applied", e.Text(s.Name))
		}
	}
}

// TestKernelAppliesNothingAfterCancel: a context that has ended stops before the next message.
func TestKernelAppliesNothingAfterCancel(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	s := n.read(k)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	now, err := k.Apply(ctx, Set{}, Diff(Set{}, Plan(must(allConfig().Normalize()), s, nil).Want), s.Name)
	if !errors.Is(err, context.Canceled) || len(now) != 0 || len(n.read(k).Ours) != 0 {
		t.Errorf("%d entries, %v", len(now), err)
	}
}

// TestDumpOfMissingTable: asking for a table that nobody uses is no error, and no panic in the library underneath.
func TestDumpOfMissingTable(t *testing.T) {
	n := newNode(t)
	k := n.kernel()
	if s, err := k.Read(context.Background(), Config{Steering: Steering{Table: 4711}}); err != nil || len(s.TableRoutes) != 0 {
		t.Errorf("%v, %v", s.TableRoutes, err)
	}
}

// TestKernelSeesOthers: what Plan has to know of others is read as iproute2 set it.
func TestKernelSeesOthers(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	n.run(`
		ip rule add priority 30 fwmark 0x10/0xff lookup 7
		ip -6 rule add priority 31 from fd00::/8 lookup main
		ip rule add priority 32 lookup main suppress_prefixlength 0
		ip route add 198.51.100.0/24 dev eth0 table 7 proto static
		ip -6 route add 2001:db8::/64 dev eth0 table 7
		ip neigh add 172.18.0.9 lladdr 02:00:00:00:00:09 dev eth0
		ip neigh add 172.18.0.8 lladdr 02:00:00:00:00:08 dev eth0 nud reachable
		ip link property add dev eth0 altname enp0s1
		ip link set mp0 mtu 1300
		ip link set mp0 down
		sysctl -qw net.ipv4.conf.eth0.rp_filter=2
		sysctl -qw net.ipv6.conf.all.forwarding=0`)
	s := n.read(k)
	rules := []ForeignRule{
		{Fam: IPv4, Priority: 30, Table: 7, Mark: 0x10, Mask: 0xff},
		{Fam: IPv4, Priority: 32, Table: 254, Selective: true},
		{Fam: IPv6, Priority: 31, Table: 254, Selective: true},
	}
	if d := cmp.Diff(rules, s.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	if got := s.TableRoutes; len(got) != 2 || got[0].Dst.String() != "198.51.100.0/24" || got[0].Protocol != 4 || got[1].Dst.String() != "2001:db8::/64" {
		t.Errorf("routes of table 7: %v", got)
	}
	if len(s.Neighbours) != 1 {
		t.Errorf("permanent neighbours: %v", s.Neighbours)
	}
	eth0, mp0 := mustLink(t, s, "enp0s1"), mustLink(t, s, "mp0")
	if eth0.Name != "eth0" || !eth0.Up || eth0.RPFilter != 2 || mp0.Up || mp0.MTU != 1300 || mp0.RPFilter != 1 {
		t.Errorf("links %+v %+v", eth0, mp0)
	}
	if s.AllRPFilter != 1 || !s.Forwarding[IPv4] || s.Forwarding[IPv6] || !mustLink(t, s, "lo").Loopback {
		t.Errorf("settings: rp_filter %d, forwarding %v", s.AllRPFilter, s.Forwarding)
	}
	if have := s.Have(); !have.Has(LooseRPF{eth0.Index}) || have.Has(LooseRPF{mp0.Index}) {
		t.Errorf("loose: %v", have)
	}
}

// TestKernelRandomWalk drives the kernel through configurations in order, then through 5 x N random picks, and compares
// the whole state each time: transitions that nobody thought of.
func TestKernelRandomWalk(t *testing.T) {
	rng := seeded(t)
	n := newWorker(t)
	k := n.kernel()
	before := n.foreignState()
	configs := walkConfigs()
	step := func(i int) {
		t.Logf("configuration %d", i)
		c := must(configs[i].Normalize())
		converge(t, n, k, c)
		if d := cmp.Diff(before, n.foreignState()); d != "" {
			t.Fatalf("configuration %d changed others' entries:\n%s", i, d)
		}
	}
	for i := range configs {
		step(i)
	}
	for range 5 * len(configs) {
		step(rng.IntN(len(configs)))
	}
}

// walkConfigs are configurations that contend for the same slots.
func walkConfigs() []Config {
	single := reachConfig()
	single.ServiceCIDRs = prefixes("10.96.0.0/12")
	moved := reachConfig()
	moved.Device, moved.MTU = "mp0", 1350
	mac := reachConfig()
	mac.Reach.MAC = MAC{2, 0, 0, 0, 0, 7}
	subnets := allConfig()
	subnets.Subnets = prefixes("169.254.170.0/28", "fd70::/120")
	bigger := allConfig()
	bigger.Subnets = prefixes("169.254.169.0/28", "fd69::/120")
	numbers := steeringConfig()
	numbers.Steering.Priority, numbers.Steering.Table, numbers.Metric = 40, 4242, 7
	return []Config{
		baseConfig(), reachConfig(), allConfig(), single, moved, mac, steeringConfig(), handOffConfig(),
		antreaConfig(), subnets, bigger, numbers,
	}
}

// BenchmarkRead keeps the price of one round known: it is paid for every trigger.
func BenchmarkRead(b *testing.B) {
	n := newWorker(b)
	k := n.kernel()
	converge(b, n, k, must(allConfig().Normalize()))
	for b.Loop() {
		if _, err := k.Read(context.Background(), must(allConfig().Normalize())); err != nil {
			b.Fatal(err)
		}
	}
}
