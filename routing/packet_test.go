// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serve answers TCP connections in the namespace with its name and the address it sees, until the test ends.
func (n *node) serve(name, address string) {
	n.t.Helper()
	var l net.Listener
	var err error
	n.in(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr()
			_, _ = fmt.Fprintf(c, "%s saw %s", name, from)
			_ = c.Close()
		}
	}()
}

// dialTimeout is how long an answer is waited for.
const dialTimeout = soon

// silence is how long an answer is waited for where none may come.
const silence = 200 * time.Millisecond

// dial connects from the namespace and returns what the server says.
func (n *node) dial(address string, limit time.Duration) (answer string, err error) {
	var c net.Conn
	n.in(func() { c, err = net.DialTimeout("tcp", address, limit) })
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(limit))
	b, err := io.ReadAll(c)
	return string(b), err
}

func (n *node) expect(address, want string) {
	n.t.Helper()
	if got, err := n.dial(address, dialTimeout); err != nil || got != want {
		n.t.Errorf("dial %s: got %q, %v; want %q", address, got, err, want)
	}
}

// newWorkerWithPod is a node without a default route, a pod behind pod0, and the tables that DNAT the ClusterIPs .10
// to the pod as nftables would.
func newWorkerWithPod(t *testing.T) *node {
	t.Helper()
	n, pod := newNode(t), newNode(t)
	outside := newNode(t)
	n.run("sysctl -qw net.ipv4.conf.all.rp_filter=1\nsysctl -qw net.ipv4.conf.default.rp_filter=1")
	n.wire("eth0", "172.18.0.3/16 fd00:18::3/64", outside, "eth0", "172.18.0.1/16 fd00:18::1/64")
	n.wire("pod0", "10.244.1.1/24 fd00:10:244:1::1/64", pod, "eth0", "10.244.1.5/24 fd00:10:244:1::5/64")
	pod.run("ip route add default via 10.244.1.1\nip -6 route add default via fd00:10:244:1::1")
	pod.serve("pod", "[::]:8080")
	pod.serve("pod", "0.0.0.0:8081")
	n.script("nft -f -", `
		table ip t { chain c { type nat hook output priority -100;
			ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.5:8081; }; }
		table ip6 t { chain c { type nat hook output priority -100;
			ip6 daddr fd00:10:96::10 tcp dport 80 dnat to [fd00:10:244:1::5]:8080; }; }`)
	return n
}

// TestPacketsReach: on a node without a fitting route a host process cannot even open a connection to a ClusterIP; with
// our routes it does, the pod sees the node's address, and it lasts only as long as the routes.
func TestPacketsReach(t *testing.T) {
	n := newWorkerWithPod(t)
	for _, vip := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		if _, err := n.dial(vip, silence); !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatalf("before: %v, want %v", err, syscall.ENETUNREACH)
		}
	}
	r := manage(t, n, reachConfig())
	want := r.ours()
	n.expect("10.96.0.10:80", "pod saw 172.18.0.3")
	n.expect("[fd00:10:96::10]:80", "pod saw fd00:18::3")
	n.run("ip route flush proto 110\nip -6 route flush proto 110")
	r.restored("routes", want)
	n.expect("10.96.0.10:80", "pod saw 172.18.0.3")
	n.expect("[fd00:10:96::10]:80", "pod saw fd00:18::3")
}

// TestPacketsReachOverAnyDevice: the device carries nothing, so each that can be up will do.
func TestPacketsReachOverAnyDevice(t *testing.T) {
	for _, device := range []string{"eth0", "pod0", "br0", "tap0", "macvlan0"} {
		t.Run(device, func(t *testing.T) {
			n := newWorkerWithPod(t)
			n.run(`ip link add br0 type bridge
				ip link add macvlan0 link eth0 type macvlan mode bridge
				ip tuntap add tap0 mode tap`)
			n.run("ip link set " + device + " up")
			c := reachConfig()
			c.Device, c.NodeAddrs = device, addrs("172.18.0.3", "fd00:18::3")
			converge(t, n, n.kernel(), must(c.Normalize()))
			n.expect("10.96.0.10:80", "pod saw 172.18.0.3")
			n.expect("[fd00:10:96::10]:80", "pod saw fd00:18::3")
		})
	}
}

// newSteeringLab is a node whose pod gateway device leads to a balancer that is real: a namespace that DNATs ClusterIPs
// and the local-ETP addresses to an endpoint in it. The main table leads marked packets astray.
func newSteeringLab(t *testing.T) (n, balancer, outside *node) {
	t.Helper()
	n, balancer, outside = newNode(t), newNode(t), newNode(t)
	n.run(`sysctl -qw net.ipv4.conf.all.rp_filter=1
		sysctl -qw net.ipv4.conf.default.rp_filter=1
		sysctl -qw net.ipv4.ip_forward=1
		sysctl -qw net.ipv6.conf.all.forwarding=1`)
	n.wire("eth0", "172.18.0.3/16 fd00:18::3/64", outside, "eth0", "172.18.0.1/16 fd00:18::1/64")
	n.wire("mp0", "10.244.1.2/24 fd00:10:244:1::2/64", balancer, "mp0", "10.244.1.1/24 fd00:10:244:1::1/64")
	balancer.run("ip route add default via 10.244.1.2\nip -6 route add default via fd00:10:244:1::2")
	balancer.serve("balancer", "[::]:8080")
	balancer.serve("balancer", "0.0.0.0:8081")
	balancer.script("nft -f -", `
		table ip t { chain c { type nat hook prerouting priority -100;
			ip daddr 10.96.0.10 tcp dport 80 redirect to :8081
			ip daddr 169.254.169.3 tcp dport 30080 redirect to :8081; }; }
		table ip6 t { chain c { type nat hook prerouting priority -100;
			ip6 daddr fd00:10:96::10 tcp dport 80 redirect to :8080
			ip6 daddr fd69::3 tcp dport 30080 redirect to :8080; }; }`)
	return n, balancer, outside
}

// TestPacketsSteering: a marked packet of a host process takes the rule, the table and the gateway, and the reply gets
// past a reverse path filter that was strict. An unmarked one does not.
func TestPacketsSteering(t *testing.T) {
	n, _, _ := newSteeringLab(t)
	r := manage(t, n, steeringConfig())
	for _, vip := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		if got, err := n.dial(vip, silence); err == nil {
			t.Errorf("unmarked: %s answers %q", vip, got)
		}
	}
	n.script("nft -f -", `
		table ip m { chain c { type route hook output priority -150; ip daddr 10.96.0.10 meta mark set 0x1745ec; }; }
		table ip6 m { chain c { type route hook output priority -150; ip6 daddr fd00:10:96::10 meta mark set 0x1745ec; }; }`)
	n.expect("10.96.0.10:80", "balancer saw 172.18.0.3")
	n.expect("[fd00:10:96::10]:80", "balancer saw fd00:18::3")
	if got := problemLines(r.m.Stats().Problems); got != "" {
		t.Error(got)
	}

	// The filter is what it takes: with a strict one, and nobody to loosen it, replies are dropped.
	n2, _, _ := newSteeringLab(t)
	k := n2.kernel()
	converge(t, n2, k, must(steeringConfig().Normalize()))
	n2.run("sysctl -qw net.ipv4.conf.mp0.rp_filter=1")
	n2.script("nft -f -", `table ip m { chain c { type route hook output priority -150; ip daddr 10.96.0.10 meta mark set 0x1745ec; }; }`)
	if got, err := n2.dial("10.96.0.10:80", silence); err == nil {
		t.Errorf("a strict filter lets the reply pass (%q): then steering needs no loose one", got)
	}
}

// TestPacketsHandOff: a client outside connects to a NodePort; the packet is DNATed to the local-ETP address, routed to
// the device with its source, and the reply comes back as if from the node. Under the Cluster policy it goes to the
// ClusterIP the same way.
func TestPacketsHandOff(t *testing.T) {
	n, _, outside := newSteeringLab(t)
	manage(t, n, handOffConfig())
	n.script("nft -f -", `
		table ip h { chain c { type nat hook prerouting priority -100;
			fib daddr type local tcp dport 30080 dnat to 169.254.169.3
			fib daddr type local tcp dport 30081 dnat to 10.96.0.10:80; }; }
		table ip6 h { chain c { type nat hook prerouting priority -100;
			fib daddr type local tcp dport 30080 dnat to fd69::3
			fib daddr type local tcp dport 30081 dnat to [fd00:10:96::10]:80; }; }`)
	outside.expect("172.18.0.3:30080", "balancer saw 172.18.0.1")
	outside.expect("[fd00:18::3]:30080", "balancer saw fd00:18::1")
	outside.expect("172.18.0.3:30081", "balancer saw 172.18.0.1")
	outside.expect("[fd00:18::3]:30081", "balancer saw fd00:18::1")
}

// TestPacketsFromPeer: a connection that the balancer makes to the node under its peer address (hairpin) is answered over
// the device, from the address of the node that it was made to.
func TestPacketsFromPeer(t *testing.T) {
	n, balancer, _ := newSteeringLab(t)
	manage(t, n, handOffConfig())
	n.serve("node", "[::]:8080")
	balancer.run("ip addr add 169.254.169.1/29 dev mp0\nip addr add fd69::1/125 dev mp0 nodad")
	for dst, src := range map[string]string{"172.18.0.3:8080": "169.254.169.1", "[fd00:18::3]:8080": "fd69::1"} {
		var c net.Conn
		var err error
		balancer.in(func() {
			d := net.Dialer{Timeout: dialTimeout, LocalAddr: &net.TCPAddr{IP: net.ParseIP(src)}}
			c, err = d.Dial("tcp", dst)
		})
		if err != nil {
			t.Errorf("%s to %s: %v", src, dst, err)
			continue
		}
		b, _ := io.ReadAll(c)
		if got := strings.ReplaceAll(string(b), "::ffff:", ""); got != "node saw "+src {
			t.Errorf("%s to %s: %q", src, dst, got)
		}
		_ = c.Close()
	}
}
