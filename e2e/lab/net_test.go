// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func all() []lab.Proto { return []lab.Proto{lab.TCP, lab.UDP, lab.SCTP} }

// TestReach sends from everywhere to a pod and to a host-networked backend, and looks at the source seen.
func TestReach(t *testing.T) {
	for name, o := range map[string]lab.Options{
		"bridge":          {},
		"bridgeNetfilter": {BridgeNetfilter: true},
		"routed":          {Routed: true},
		"noDefaultRoute":  {NoDefaultRoute: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := lab.Start(t, o)
			pod, node := n.Pod(2, 1), n.Node(2)
			lab.Must(pod.Serve("pod", 8080, all()...))(t)
			lab.Must(node.Serve("host", 9090, all()...))(t)
			for _, f := range lab.Families() {
				// A node talks to its own pods from their gateway's address.
				own := map[*lab.Host]netip.Addr{node.Host: lab.PodGateway(f, 2)}
				for _, from := range []*lab.Host{n.Pod(1, 1).Host, n.Pod(2, 2).Host, n.Node(1).Host, node.Host, n.Client(1).Host} {
					for _, proto := range all() {
						want := from.IP(f)
						if own[from].IsValid() {
							want = own[from]
						}
						if r := from.Ask(proto, pod.At(f, 8080)); !r.SawAs("pod", want) {
							t.Errorf("%s from %s to pod over %s: %s", proto, from, f, r)
						}
						if r := from.Ask(proto, node.At(f, 9090)); !r.SawAs("host", from.IP(f)) {
							t.Errorf("%s from %s to host-networked backend over %s: %s", proto, from, f, r)
						}
					}
				}
			}
		})
	}
}

// TestVerdicts provokes each verdict.
func TestVerdicts(t *testing.T) {
	n := lab.Start(t, lab.Options{})
	pod := n.Pod(2, 1)
	lab.Must(pod.Serve("web", 8080, all()...))(t)
	err := lab.LoadNFT(n.Node(2).Host, `table inet lab {
		chain forward { type filter hook forward priority 0
			th dport 1000 drop
			th dport 2000 reject
		}
	}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range lab.Families() {
		for _, proto := range all() {
			for _, c := range []struct {
				to   netip.AddrPort
				want lab.Verdict
			}{
				{pod.At(f, 8080), lab.Answered},
				{pod.At(f, 1000), lab.Dropped},
				{pod.At(f, 2000), lab.Refused},
				{netip.AddrPortFrom(lab.ClusterIP(f, 7), 80), lab.Unreachable},
				{netip.AddrPortFrom(lab.LoadBalancerIP(f, 7), 80), lab.Unreachable},
			} {
				for _, from := range []*lab.Host{n.Pod(1, 1).Host, n.Client(1).Host} {
					// Thousands of refusals in a row must not turn into silence.
					p := lab.Probe{From: from, Proto: proto, To: c.to, Timeout: 100 * time.Millisecond}
					count := 200
					if c.want == lab.Dropped {
						count = 20
					} else {
						p.Timeout = 0
					}
					if got := p.Repeat(count, 20); !got.All(c.want) {
						t.Errorf("%s from %s to %s: want %s, got %s", proto, from, c.to, c.want, got)
					}
				}
			}
			if proto == lab.SCTP {
				continue // an unused port refuses nothing there: the kernel has no sockets
			}
			if r := n.Pod(1, 1).Ask(proto, pod.At(f, 81)); r.Verdict != lab.Refused {
				t.Errorf("%s to an unused port over %s: %s", proto, f, r)
			}
		}
	}
}

// TestConn keeps connections while their backend goes.
func TestConn(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1})
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			b := lab.Must(n.Pod(1, 1).Listen("old", proto, n.Pod(1, 1).At(f, 8080)))(t)
			c, err := n.Pod(1, 2).Open(proto, b.Addr)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if r := c.Ping(lab.DefaultTimeout); !r.SawAs("old", n.Pod(1, 2).IP(f)) {
					t.Errorf("%s %s: %s", f, proto, r)
				}
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			want := map[lab.Proto]lab.Verdict{lab.TCP: lab.Broken, lab.UDP: lab.Refused}[proto]
			if r := c.Ping(lab.DefaultTimeout); r.Verdict != want {
				t.Errorf("%s %s: want %s after the backend closed, got %s", f, proto, want, r)
			}
			lab.Must(n.Pod(1, 1).Listen("new", proto, b.Addr))(t)
			if r := c.Ping(lab.DefaultTimeout); proto == lab.UDP && r.Backend != "new" {
				t.Errorf("%s %s: %s", f, proto, r)
			}
			c.Close()
			if _, err := n.Pod(1, 2).Open(proto, n.Pod(1, 1).At(f, 81)); err == nil {
				t.Errorf("%s %s: opened a connection though nothing listens", f, proto)
			}
		}
	}
}

// TestSourcePort sends from addresses and ports of choice.
func TestSourcePort(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1})
	pod, client := n.Pod(1, 1), n.Client(1)
	lab.Must(pod.Serve("web", 8080, all()...))(t)
	for _, f := range lab.Families() {
		second := lab.ClientIP(f, 40)
		if err := client.AddAddr("eth0", netip.PrefixFrom(second, lab.NodeCIDR(f).Bits())); err != nil {
			t.Fatal(err)
		}
		for _, proto := range all() {
			for _, src := range []netip.AddrPort{netip.AddrPortFrom(second, 4000), netip.AddrPortFrom(second, 0)} {
				for range 3 { // the port is free again at once
					r := lab.Probe{From: client.Host, Proto: proto, To: pod.At(f, 8080), Source: src}.Send()
					if !r.SawAs("web", second) || src.Port() != 0 && r.Source.Port() != src.Port() {
						t.Errorf("%s from %s: %s", proto, src, r)
					}
				}
			}
			r := lab.Probe{From: client.Host, Proto: proto, To: pod.At(f, 8080), Source: netip.AddrPortFrom(netip.Addr{}, 4001)}.Send()
			if r.Source != client.At(f, 4001) {
				t.Errorf("%s from port 4001: %s", proto, r)
			}
		}
	}
}

// TestAnyIP lets one pod stand for 100 endpoints.
func TestAnyIP(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1})
	pod := n.Pod(1, 1)
	for _, f := range lab.Families() {
		extra := map[lab.Family]netip.Prefix{
			lab.IPv4: netip.MustParsePrefix("10.245.0.0/24"), lab.IPv6: netip.MustParsePrefix("fd00:245::/64"),
		}[f]
		if err := errors.Join(pod.AnyIP(extra), n.Node(1).Route(extra, pod.IP(f), lab.PodBridge)); err != nil {
			t.Fatal(err)
		}
		unspecified := netip.AddrPortFrom(map[lab.Family]netip.Addr{lab.IPv4: netip.IPv4Unspecified(), lab.IPv6: netip.IPv6Unspecified()}[f], 8080)
		lab.Must(pod.Listen("", lab.TCP, unspecified))(t)
		addr := extra.Addr()
		for range 100 {
			addr = addr.Next()
			to := netip.AddrPortFrom(addr, 8080)
			if r := n.Pod(1, 2).Ask(lab.TCP, to); r.Backend != to.String() {
				t.Errorf("asked %s, got %s", to, r)
			}
		}
	}
}

// TestDo leaves and enters namespaces in all ways and compares where the thread is.
func TestDo(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1, PodsPerNode: 1})
	here := func() string {
		s, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := n.Node(1), n.Pod(1, 1)
	for range 100 {
		outside := here()
		var inA, inB, back string
		err := a.Do(func() error {
			inA = here()
			err := b.Do(func() error { inB = here(); return os.ErrExist })
			back = here()
			return err
		})
		if !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if inA == outside || inB == outside || inA == inB || back != inA || here() != outside {
			t.Fatalf("outside %s, in a %s, in b %s, back in a %s, outside again %s", outside, inA, inB, back, here())
		}
	}
}

// TestCloseLeavesNothing builds and closes networks with everything in them and counts descriptors.
func TestCloseLeavesNothing(t *testing.T) {
	lab.RequireRoot(t)
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	once := func() {
		n, err := lab.New(lab.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		lab.Must(n.Pod(1, 1).Serve("web", 8080, all()...))(t)
		c, err := n.Pod(1, 2).Open(lab.TCP, n.Pod(1, 1).At(lab.IPv4, 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	once() // the runtime's own descriptors
	before := count()
	for range 5 {
		once()
	}
	// A server's side of a connection is closed by its own goroutine, a little later.
	deadline := time.Now().Add(lab.HangLimit)
	for count() > before && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestRun runs programs in a namespace.
func TestRun(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1, PodsPerNode: 1})
	out, err := n.Pod(1, 1).RunInput(strings.NewReader("some text"), "cat", "-", "/proc/net/fib_trie")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out, "some text") || !strings.Contains(out, n.Pod(1, 1).IP(lab.IPv4).String()) {
		t.Errorf("got %q", out)
	}
	if _, err := n.Pod(1, 1).Run("sh", "-c", "echo wrong >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("got %v", err)
	}
	n.Close()
	if _, err := n.Pod(1, 1).Run("true"); err == nil {
		t.Error("ran a program in a closed network")
	}
}

// TestStorm sums up until its context ends.
func TestStorm(t *testing.T) {
	n := lab.Start(t, lab.Options{Nodes: 1})
	b := lab.Must(n.Pod(1, 1).Serve("web", 8080, lab.TCP))(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	calls := 0
	got := lab.Probe{From: n.Pod(1, 2).Host, Proto: lab.TCP, To: n.Pod(1, 1).At(lab.IPv4, 8080)}.Storm(ctx, 4, func(lab.Result) {
		if calls++; calls == 1000 {
			cancel()
		}
	})
	if got.Total < 1000 || got.Total > 1010 || !got.AllAnswered() || calls != got.Total || b.Hits() != int64(calls) {
		t.Errorf("%d calls, %d hits, %s", calls, b.Hits(), got)
	}
	var probes []lab.Probe
	for range 50 {
		for _, port := range []uint16{8080, 81} {
			probes = append(probes, lab.Probe{From: n.Pod(1, 2).Host, Proto: lab.TCP, To: n.Pod(1, 1).At(lab.IPv6, port)})
		}
	}
	for i, r := range lab.SendAll(probes, 8) {
		if want := []lab.Verdict{lab.Answered, lab.Refused}[i%2]; r.Verdict != want {
			t.Errorf("probe %d: want %s, got %s", i, want, r)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		n, err := lab.New(lab.Options{})
		if err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}

func BenchmarkAsk(b *testing.B) {
	n := lab.Start(b, lab.Options{Nodes: 1})
	lab.Must(n.Pod(1, 1).Serve("web", 8080, all()...))(b)
	for _, proto := range all() {
		b.Run(string(proto), func(b *testing.B) {
			p := lab.Probe{From: n.Pod(1, 2).Host, Proto: proto, To: n.Pod(1, 1).At(lab.IPv4, 8080)}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if r := p.Send(); r.Verdict != lab.Answered {
						b.Error(r)
					}
				}
			})
		})
	}
}
