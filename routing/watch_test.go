// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/nftproxy/nftproxy/routing"
	. "github.com/nftproxy/nftproxy/routing/kernel"
)

// soon is how long a test waits for what must happen on a machine with other work.
const soon = 60 * time.Second

// running is a Manager at work in a namespace, and a second Kernel to look at it.
type running struct {
	*node
	m    *Manager
	look *Kernel
	cfg  Config
}

// manage runs a Manager for c until the test ends, and returns when it has applied everything.
func manage(t testing.TB, n *node, c Config) *running {
	t.Helper()
	m, err := New(n.kernel(), c, testLog())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	for end := time.Now().Add(soon); !complete(m); time.Sleep(time.Millisecond) {
		select {
		case err := <-done:
			done <- err
			t.Fatalf("Run ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("not in sync: %+v", m.Stats())
		}
	}
	return &running{n, m, n.kernel(), must(c.Normalize())}
}

// complete reports whether a round without a refusal was made.
func complete(m *Manager) bool {
	s := m.Stats()
	return s.Rounds > 0 && s.Failed == 0
}

// testLog discards, unless ROUTING_LOG is set.
func testLog() *slog.Logger {
	var to io.Writer = io.Discard
	if os.Getenv("ROUTING_LOG") != "" {
		to = os.Stderr
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// ours returns our entries as lines.
func (r *running) ours() string {
	s := r.read(r.look)
	return lines(s.Ours, s.Name)
}

// restored waits until our entries are as given.
func (r *running) restored(what, want string) {
	r.t.Helper()
	eventually(r.t, what, func() (bool, string) {
		got := r.ours()
		return got == want, cmp.Diff(want, got)
	})
}

// TestWatchRepairs removes each of our entries by hand, one after the other and all at once, in every mode.
// Each repair is counted, and nothing else is. TestManagerCost holds the time of a repair.
func TestWatchRepairs(t *testing.T) {
	antreaReach := antreaConfig()
	antreaReach.Reach.Enabled = true
	for name, c := range map[string]Config{"all": allConfig(), "antrea": antreaReach} {
		t.Run(name, func(t *testing.T) {
			n := newWorker(t)
			r := manage(t, n, c)
			hand := n.kernel()
			want := r.ours()
			state := r.read(r.look)
			counted := map[Kind]uint64{}
			for _, e := range state.Ours.Sorted() {
				if _, err := hand.Apply(context.Background(), state.Ours, []Op{{Verb: Remove, Entry: e}}, state.Name); err != nil {
					t.Fatal(err)
				}
				r.restored("repair of "+e.Text(state.Name), want)
				counted[e.Kind()]++
			}
			eventually(t, "counts", func() (bool, string) {
				d := cmp.Diff(counted, r.m.Stats().Repaired, cmp.FilterValues(func(a, b uint64) bool { return a <= b }, cmp.Ignore()))
				return d == "", d
			})

			before := r.m.Stats().Repaired
			for range 5 {
				if _, err := Cleanup(context.Background(), hand); err != nil {
					t.Fatal(err)
				}
				r.restored("repair of everything", want)
			}
			var repaired uint64
			eventually(t, "counts", func() (bool, string) { // what comes back is there before it is counted
				repaired = 0
				for k, v := range r.m.Stats().Repaired {
					repaired += v - before[k]
				}
				return repaired >= uint64(5*len(state.Ours)), fmt.Sprint(repaired)
			})
		})
	}
}

// TestWatchRepairsByHandOfOthers uses the commands an operator would use, those that replace included.
func TestWatchRepairsByHandOfOthers(t *testing.T) {
	n := newWorker(t)
	r := manage(t, n, allConfig())
	want := r.ours()
	for _, line := range []string{
		"ip route flush table 7",
		"ip -6 route flush table 7",
		"ip route del 10.96.0.0/16 metric 1024",
		"ip route flush proto 110",
		"ip -6 route flush proto 110",
		"ip rule del priority 30",
		"ip -6 rule del priority 30",
		"ip rule flush",
		"ip neigh del 169.254.169.4 dev eth0",
		"ip neigh replace fd69::4 lladdr 02:00:00:00:00:09 dev eth0 nud permanent proto 110",
		"ip neigh flush dev eth0 nud permanent",
		"ip addr del 169.254.169.2/29 dev mp0",
		"ip -6 addr del fd69::2/125 dev mp0",
		"ip route change 10.96.0.0/16 via 172.18.0.1 dev eth0 metric 1024 proto 110",
		"ip -6 route append fd00:10:96::/112 via fd00:18::7 dev eth0 metric 1024 proto 110",
		"ip link set mp0 down",
		"ip link set mp0 up",
	} {
		n.run(line)
		if strings.HasSuffix(line, "mp0 down") {
			n.run("ip link set mp0 up\nip -6 addr replace fd00:10:244:1::2/64 dev mp0 nodad")
		}
		if strings.HasPrefix(line, "ip rule flush") { // iproute2 takes the kernel's own two with it
			n.run("ip rule add priority 32766 lookup main\nip rule add priority 32767 lookup default")
		}
		r.restored(line, want)
	}
	n.run("sysctl -qw net.ipv4.conf.mp0.rp_filter=1")
	eventually(t, "rp_filter", func() (bool, string) {
		got := n.run("sysctl -n net.ipv4.conf.mp0.rp_filter")
		return got == "2", got
	})
}

// TestWatchSurvivesDevices walks the service device and the gateway device through what happens to devices.
func TestWatchSurvivesDevices(t *testing.T) {
	n := newWorker(t)
	c := allConfig()
	c.NodeAddrs = addrs("172.18.0.3", "fd00:18::3")
	r := manage(t, n, c)
	want := r.ours()
	steps := []struct{ name, do, undo string }{
		{"flap", "ip link set eth0 down", "ip link set eth0 up\nip -6 addr replace fd00:18::3/64 dev eth0 nodad"},
		{"flap without a pause", "ip link set mp0 down\nip link set mp0 up", "ip -6 addr replace fd00:10:244:1::2/64 dev mp0 nodad"},
		{"carrier", "ip link set eth0-peer down", "ip link set eth0-peer up"},
		{"MTU", "ip link set eth0 mtu 9000", "ip link set eth0 mtu 1500"},
		{"MTU that IPv6 cannot live with", "ip link set eth0 mtu 1000", "ip link set eth0 mtu 1500\nip -6 addr replace fd00:18::3/64 dev eth0 nodad"},
		{"node address", "ip addr del 172.18.0.3/16 dev eth0", "ip addr add 172.18.0.3/16 dev eth0"},
		{"IPv6 off and on", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1",
			"sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0\nip -6 addr replace fd00:18::3/64 dev eth0 nodad"},
		{"MAC", "ip link set eth0 address 02:00:00:00:00:44", ""},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			r.t = t
			n.run(s.do)
			n.run(s.undo)
			r.restored(s.name, want)
		})
	}
}

// TestWatchFollowsRename: a rename of the device disturbs nothing; only the name to be printed changes.
func TestWatchFollowsRename(t *testing.T) {
	n := newWorker(t)
	r := manage(t, n, steeringConfig())
	want := r.ours()
	added := r.m.Stats().Added
	n.run("ip link set mp0 name ovn-k8s-mp0")
	eventually(t, "note", func() (bool, string) {
		got := problemLines(r.m.Stats().Problems)
		return got == "note: device mp0 is now called ovn-k8s-mp0: change steering.device before the next start\n", got
	})
	if got := strings.ReplaceAll(r.ours(), "ovn-k8s-mp0", "mp0"); got != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
	n.run("ip link set ovn-k8s-mp0 name mp0")
	eventually(t, "no problem", func() (bool, string) {
		got := problemLines(r.m.Stats().Problems)
		return got == "", got
	})
	if got := r.m.Stats().Added; got != added {
		t.Errorf("%d operations because of a rename", got-added)
	}
}

// TestWatchLateDevice: what a device is needed for waits for it, by itself, and the rest works meanwhile; the device may
// go and come back with another index.
func TestWatchLateDevice(t *testing.T) {
	n := newWorker(t)
	n.run("ip link del mp0")
	r := manage(t, n, allConfig())
	without := r.ours()
	if got := problemLines(r.m.Stats().Problems); !strings.Contains(got, "waiting: device mp0 does not exist") {
		t.Errorf("problems: %s", got)
	}
	var with string
	for i := range 3 {
		n.run("ip link add mp0 type bridge\n" + linkUp("mp0", "10.244.1.2/24", "fd00:10:244:1::2/64"))
		if i == 0 {
			eventually(t, "everything on mp0", func() (bool, string) {
				s := r.read(r.look)
				with = lines(s.Ours, s.Name)
				return len(Diff(s.Ours, r.planned(s))) == 0 && strings.Contains(with, "dev mp0 mtu 1400 metric 1024 table 7"), with
			})
		} else {
			r.restored("device is back", with)
		}
		n.run("ip link del mp0")
		r.restored("device is gone", without)
	}
}

func (r *running) planned(s State) Set { return owned(Plan(r.cfg, s, nil).Want, Set{}) }

// TestWatchWaitsForDAD: an IPv6 address that is still being checked for duplicates is no source yet; when the check
// ends, the routes come by themselves.
func TestWatchWaitsForDAD(t *testing.T) {
	n := newWorker(t)
	n.run("ip -6 addr del fd00:18::3/64 dev eth0\nsysctl -qw net.ipv6.conf.eth0.accept_dad=1")
	r := manage(t, n, reachConfig())
	n.run("ip addr add fd00:18::3/64 dev eth0") // about 1 s
	eventually(t, "IPv6 route", func() (bool, string) {
		got := r.ours()
		return strings.Contains(got, "src fd00:18::3"), got
	})
	if s := r.m.Stats(); s.Failed != 0 {
		t.Errorf("the kernel refused %d operations: the address was used too early", s.Failed)
	}
}

// TestWatchNeverFights: an entry of others in our place stays, is reported, and ours comes back when it goes; somebody
// who removes ours all the time costs a bounded number of repairs.
func TestWatchNeverFights(t *testing.T) {
	n := newWorker(t)
	r := manage(t, n, reachConfig())
	want := r.ours()

	n.run("ip route replace 10.96.0.0/16 via 172.18.0.1 dev eth0 metric 1024 proto static")
	eventually(t, "a report", func() (bool, string) {
		got := problemLines(r.m.Stats().Problems)
		return strings.Contains(got, "conflict: add route 10.96.0.0/16") && strings.Contains(got, "others hold that place"), got
	})
	for range 20 { // whatever else happens
		n.run("ip link set eth0 mtu 1400\nip link set eth0 mtu 1500")
	}
	if got := n.run("ip route show 10.96.0.0/16"); !strings.Contains(got, "proto static") {
		t.Errorf("the route of others became %q", got)
	}
	n.run("ip route del 10.96.0.0/16 metric 1024")
	r.restored("their route went", want)

	before := r.m.Stats()
	hand, state := n.kernel(), r.read(r.look)
	hop := state.Ours.Sorted()[0]
	start := time.Now()
	eventually(t, "repairs held back", func() (bool, string) {
		if _, err := hand.Apply(context.Background(), state.Ours, []Op{{Verb: Remove, Entry: hop}}, state.Name); err != nil {
			t.Fatal(err)
		}
		s := r.m.Stats()
		return s.Deferred > 0, fmt.Sprintf("%d repairs", s.Repaired[KindNeighbour]-before.Repaired[KindNeighbour])
	})
	after := r.m.Stats()
	repairs := after.Repaired[KindNeighbour] - before.Repaired[KindNeighbour]
	const burst = 32 // the first addition included; then one a second
	if most := burst + 1 + uint64(time.Since(start)/time.Second); repairs < burst-1 || repairs > most {
		t.Errorf("%d repairs until the limit, want %d to %d", repairs, burst-1, most)
	}
	r.restored("the other one gave up", want)
}

// TestWatchLostNotifications: notifications that did not fit the buffer are a trigger, because nobody knows what they
// said. The flood is of others' routes, none of which is one.
func TestWatchLostNotifications(t *testing.T) {
	n := newWorker(t)
	sub := must(n.kernel().Watch())
	var flood strings.Builder
	for i := range 8000 { // each takes about 1 KiB of a buffer of 2 MiB: the kernel doubles what is asked for
		fmt.Fprintf(&flood, "route add 198.18.%d.%d dev eth0\n", i/250, i%250)
	}
	n.script("ip -batch -", flood.String())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	triggered := make(chan struct{}, 1)
	done := make(chan error)
	go func() {
		done <- sub.Run(ctx, func() Interest { return Interest{} }, func() {
			select {
			case triggered <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-triggered:
	case <-time.After(soon):
		t.Error("no trigger although notifications were lost")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWatchNewConfiguration: service CIDRs come and go while it runs; one that overlaps the node's networks is set aside
// alone, until it does not.
func TestWatchNewConfiguration(t *testing.T) {
	n := newWorker(t)
	r := manage(t, n, allConfig())
	first := r.ours()
	update := func(cidrs ...string) {
		t.Helper()
		c := allConfig()
		c.ServiceCIDRs = prefixes(cidrs...)
		if err := r.m.Update(c); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string, ok func(string) bool) {
		t.Helper()
		eventually(t, what, func() (bool, string) { got := r.ours(); return ok(got), got })
	}
	update("10.96.0.0/16", "10.112.0.0/16", "fd00:10:96::/112")
	has("the second CIDR", func(s string) bool { return strings.Count(s, "10.112.0.0/16") == 2 })
	update("10.112.0.0/16", "fd00:10:96::/112")
	has("only the second CIDR", func(s string) bool { return !strings.Contains(s, "10.96.0.0/16") })
	update("10.96.0.0/16", "fd00:10:96::/112")
	r.restored("the first CIDR again", first)

	n.run("ip addr add 10.99.0.1/24 dev eth0")
	update("10.96.0.0/16", "10.99.0.0/16", "10.112.0.0/16", "fd00:10:96::/112")
	has("the second CIDR beside a bad one", func(s string) bool {
		return strings.Count(s, "10.112.0.0/16") == 2 && strings.Count(s, "10.96.0.0/16") == 2 && !strings.Contains(s, "10.99.0.0/16")
	})
	eventually(t, "problem", func() (bool, string) {
		got := problemLines(r.m.Stats().Problems)
		return got == "conflict: service CIDR 10.99.0.0/16 overlaps address 10.99.0.1/24 of eth0: change serviceCIDRs or what overlaps\n", got
	})
	n.run("ip addr del 10.99.0.1/24 dev eth0")
	has("the CIDR that was set aside", func(s string) bool { return strings.Count(s, "10.99.0.0/16") == 2 })
}

// TestRestartIsSilent: a second Manager finds everything in place and writes nothing; between the two everything stays.
func TestRestartIsSilent(t *testing.T) {
	n := newWorker(t)
	m, err := New(n.kernel(), allConfig(), testLog())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	for !complete(m) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r := &running{node: n, look: n.kernel()}
	left := r.ours()
	if left == "" {
		t.Fatal("nothing stays")
	}
	second := manage(t, n, allConfig())
	if s := second.m.Stats(); s.Added+s.Removed+s.Failed != 0 {
		t.Errorf("restart: %d added, %d removed, %d failed", s.Added, s.Removed, s.Failed)
	}
	if got := second.ours(); got != left {
		t.Errorf("(-before +after):\n%s", cmp.Diff(left, got))
	}
}

// TestCheckRefuses: Check returns a line for each conflict with the node and changes nothing. A device that is missing
// is no conflict: Run waits for it.
func TestCheckRefuses(t *testing.T) {
	n := newWorker(t)
	n.run("ip rule add priority 30 fwmark 9 lookup 99\nip route add 192.0.2.0/24 dev eth0 table 7\nip link del mp0")
	before := n.foreignState()
	m, err := New(n.kernel(), steeringConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Check(context.Background())
	want := "routing: IPv4 rule priority 30 is used by others (from all fwmark 0x9/0xffffffff lookup 99): set steering.priority to a free one\n" +
		"routing: table 7 has 1 routes of others (192.0.2.0/24 by protocol 3 first): set steering.table to a free one"
	if err == nil || err.Error() != want {
		t.Errorf("Check: %v\nwant %s", err, want)
	}
	if d := cmp.Diff(before, n.foreignState()); d != "" || len(n.read(n.kernel()).Ours) != 0 {
		t.Errorf("refused, but the node changed:\n%s", d)
	}
}

// TestDump: what dump prints is what cleanup removes. A route that is not used is marked.
func TestDump(t *testing.T) {
	n := newWorker(t)
	k := n.kernel()
	converge(t, n, k, must(steeringConfig().Normalize()))
	n.run("ip route add 10.96.0.0/16 via 172.18.0.1 metric 5")
	got, err := Dump(context.Background(), k)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, l := range got {
		text += fmt.Sprintf("%s %s\n", l.Family, l.Text)
	}
	if d := cmp.Diff(trim(`
		IPv4 neighbour 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
		IPv6 neighbour fd69::4 lladdr 0a:58:a9:fe:a9:04 dev eth0 permanent
		IPv6 route fd69::4/128 dev eth0 metric 1
		IPv4 route 169.254.169.4/32 dev eth0 metric 1
		IPv6 route fd00:10:96::/112 via fd00:10:244:1::1 dev mp0 metric 1024 table 7
		IPv6 route fd00:10:96::/112 via fd69::4 dev eth0 onlink src fd00:18::3 metric 1024
		IPv4 route 10.96.0.0/16 via 10.244.1.1 dev mp0 metric 1024 table 7
		IPv4 route 10.96.0.0/16 via 169.254.169.4 dev eth0 onlink src 172.18.0.3 metric 1024 (not used: route 10.96.0.0/16 via 172.18.0.1 dev eth0 metric 5 of others takes the packets)
		IPv4 rule IPv4 priority 30 fwmark 0x1745ec lookup 7
		IPv6 rule IPv6 priority 30 fwmark 0x1745ec lookup 7`), text); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
