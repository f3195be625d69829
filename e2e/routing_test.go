// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/routing"
)

// ownConfig writes a file for --nftproxy-config that has nothing but a routing section.
func ownConfig(t *testing.T, c routing.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nftproxy.conf")
	text := lab.Must(json.Marshal(map[string]any{
		"apiVersion": "nftproxy.io/v1alpha1", "kind": "NFTProxyConfiguration", "routing": c,
	}))(t)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// serviceCIDR is a ServiceCIDR object.
func serviceCIDR(name string, prefixes ...netip.Prefix) *networkingv1.ServiceCIDR {
	o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, p := range prefixes {
		o.Spec.CIDRs = append(o.Spec.CIDRs, p.String())
	}
	return o
}

// bothCIDRs are the service CIDRs of the lab.
func bothCIDRs() []netip.Prefix {
	return []netip.Prefix{lab.ServiceCIDR(lab.IPv4), lab.ServiceCIDR(lab.IPv6)}
}

// routed is a cluster without default routes on its nodes, where the proxy of node 1 keeps routes. The Service web has
// one endpoint on each of two nodes.
type routed struct {
	*cluster
	node  *lab.Node
	proxy *lab.Proxy
}

func newRouted(t *testing.T, c routing.Config) *routed {
	t.Helper()
	r := &routed{cluster: fromManifests(t, lab.Options{NoDefaultRoute: true, PodsPerNode: 1})}
	r.node = r.Node(1)
	r.spec.Flags = append(r.spec.Flags, "--nftproxy-config="+ownConfig(t, c))
	r.serve(8080, r.pods(), lab.TCP, lab.UDP)
	svc := lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080))
	r.apply(svc, lab.NewSlices(svc, endpoints(r.pods()...)...))
	return r
}

func (r *routed) start() {
	r.t.Helper()
	r.proxy = lab.Must(lab.StartProxy(r.node, r.spec))(r.t)
}

// run runs a command on the node.
func (r *routed) run(line string) string {
	r.t.Helper()
	return lab.Must(r.node.Run(strings.Fields(line)...))(r.t)
}

// ours are the routes of ours, as iproute2 prints them.
func (r *routed) ours() string {
	return r.run("ip -4 route show table all proto 110") + r.run("ip -6 route show table all proto 110")
}

// soon polls until ok, and fails with what it saw last.
func (r *routed) soon(what string, ok func() (bool, string)) {
	r.t.Helper()
	var last string
	for end := time.Now().Add(lab.HangLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var good bool
		if good, last = ok(); good {
			return
		}
	}
	r.t.Fatalf("%s: not in time; last seen:\n%s", what, last)
}

// reaches asserts that a process on the node reaches both endpoints of the Service web over all protocols and families.
func (r *routed) reaches() {
	r.t.Helper()
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			tally := lab.Probe{From: r.node.Host, Proto: proto, To: at(lab.ClusterIP(f, 10), 80)}.Repeat(40, 4)
			if !tally.AllAnswered() || len(tally.Backends) != 2 {
				r.t.Errorf("%s %s from the node: %v", f, proto, tally)
			}
		}
	}
}

// TestRoutingReachesWithoutDefaultRoute: on a node without a default route no host process can open a connection to a
// ClusterIP, whatever the proxy does; with reach it can. Routes removed by hand come back and are counted, dump shows
// them, they stay when the proxy stops, a restart changes none, and cleanup leaves none.
func TestRoutingReachesWithoutDefaultRoute(t *testing.T) {
	r := newRouted(t, routing.Config{Reach: routing.Reach{Enabled: true}})
	r.apply(serviceCIDR("kubernetes", bothCIDRs()...))

	plain := r.spec
	plain.Flags = plain.Flags[:len(plain.Flags)-1]
	p := lab.Must(lab.StartProxy(r.node, plain))(t)
	for _, f := range lab.Families() {
		if got := r.node.Ask(lab.TCP, at(lab.ClusterIP(f, 10), 80)); got.Verdict != lab.Unreachable {
			t.Errorf("%s without reach: %v, want %s", f, got, lab.Unreachable)
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	r.start()
	r.soon("routes", func() (bool, string) { got := r.ours(); return strings.Count(got, " onlink") >= 2, got })
	r.reaches()
	want := r.ours()
	for _, line := range []string{"ip route flush proto 110", "ip -6 route flush proto 110", "ip neigh flush dev eth0 nud permanent"} {
		r.run(line)
		r.soon(line, func() (bool, string) {
			got := r.ours() + r.run("ip neigh show nud permanent dev eth0")
			return strings.HasPrefix(got, want) && strings.Count(got, "PERMANENT proto 110") == 2, got
		})
	}
	r.reaches()
	r.soon("counts", func() (bool, string) {
		got := lab.Must(r.proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort)))(t)
		return strings.Contains(got, `nftproxy_routing_repairs_total{object="route"} 4`) &&
			strings.Contains(got, `nftproxy_routing_repairs_total{object="neighbour"} 2`), only(got, "nftproxy_routing")
	})
	r.leavesAndCleans(want)
}

// leavesAndCleans stops, starts and cleans up.
func (r *routed) leavesAndCleans(want string) {
	r.t.Helper()
	bin := lab.Must(lab.NftproxyBinary())(r.t)
	if got := r.run(bin + " dump"); strings.Count(got, "via") < 2 || !strings.Contains(got, "169.254.169.4") || !strings.Contains(got, "fd69::4") {
		r.t.Errorf("dump does not show our routes:\n%s", got)
	}
	if err := r.proxy.Stop(); err != nil {
		r.t.Fatal(err)
	}
	r.reaches()
	before := r.run("ip -4 -s route show table all proto 110")
	r.start()
	if got := r.ours(); got != want {
		r.t.Errorf("after a restart:\n%s\nwant:\n%s", got, want)
	}
	if got := r.run("ip -4 -s route show table all proto 110"); got != before {
		r.t.Errorf("a restart touched routes:\n%s\nbefore:\n%s", got, before)
	}
	if err := r.proxy.Stop(); err != nil {
		r.t.Fatal(err)
	}
	r.run(bin + " cleanup")
	if got := r.ours() + r.run("ip neigh show nud permanent"); strings.TrimSpace(got) != "" {
		r.t.Errorf("cleanup left:\n%s", got)
	}
}

// only returns the lines with a prefix.
func only(text, prefix string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestRoutingFollowsServiceCIDRs: routes follow the ServiceCIDR objects while the proxy runs, as they come, change and go.
func TestRoutingFollowsServiceCIDRs(t *testing.T) {
	r := newRouted(t, routing.Config{Reach: routing.Reach{Enabled: true}})
	r.apply(serviceCIDR("kubernetes", bothCIDRs()...))
	r.start()
	has := func(what string, want ...string) {
		t.Helper()
		r.soon(what, func() (bool, string) {
			got := ""
			for line := range strings.Lines(r.ours()) {
				if strings.Contains(line, " via ") {
					got += strings.Fields(line)[0] + "\n"
				}
			}
			return got == strings.Join(want, "\n")+"\n", got
		})
	}
	has("the first", "10.96.0.0/16", "fd00:10:96::/112")
	r.apply(serviceCIDR("more", netip.MustParsePrefix("10.112.0.0/16")))
	has("one more", "10.96.0.0/16", "10.112.0.0/16", "fd00:10:96::/112")
	r.apply(serviceCIDR("more", netip.MustParsePrefix("10.113.0.0/16")))
	has("another", "10.96.0.0/16", "10.113.0.0/16", "fd00:10:96::/112")
	if err := r.Delete(t.Context(), serviceCIDR("more")); err != nil {
		t.Fatal(err)
	}
	has("the first again", "10.96.0.0/16", "fd00:10:96::/112")
	r.reaches()
}

// TestRoutingWaitsForDevice: the proxy starts and serves while the device of a CNI does not exist; health, a metric and the
// log show it; routes come with the device, and what does not need it is there before. An overlapping ServiceCIDR does not
// keep out the others.
func TestRoutingWaitsForDevice(t *testing.T) {
	gateways := []routing.NextHop{{Addr: netip.MustParseAddr("10.244.77.1")}, {Addr: netip.MustParseAddr("fd00:244:77::1")}}
	r := newRouted(t, routing.Config{
		Reach:    routing.Reach{Enabled: true},
		Steering: routing.Steering{Enabled: true, Device: "late0", Gateways: gateways},
	})
	r.apply(serviceCIDR("kubernetes", bothCIDRs()...), serviceCIDR("overlap", netip.MustParsePrefix("172.18.0.0/20")))
	r.start()
	r.reaches()
	problems := func(waiting, conflict float64) {
		t.Helper()
		r.soon("problems", func() (bool, string) {
			m := metricsOf(t, r.proxy)
			w, c := m[`nftproxy_routing_problems{severity="waiting"}`], m[`nftproxy_routing_problems{severity="conflict"}`]
			return w == waiting && c == conflict, fmt.Sprintf("%v waiting, %v conflicts", w, c)
		})
	}
	problems(1, 1)
	if health := lab.Must(r.proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", lab.HealthPort)))(t); !strings.Contains(health, "routing: missing devices or addresses: 1, conflicts with others: 1") {
		t.Errorf("healthz: %s", health)
	}
	if log := r.proxy.Tail(1000); !strings.Contains(log, "device late0 does not exist: create it or correct steering.device") {
		t.Errorf("log:\n%s", log)
	}
	r.run("ip link add late0 type bridge")
	r.run("ip link set late0 up")
	r.run("ip addr add 10.244.77.2/24 dev late0")
	r.run("ip -6 addr add fd00:244:77::2/64 dev late0 nodad")
	if err := r.Delete(t.Context(), serviceCIDR("overlap")); err != nil {
		t.Fatal(err)
	}
	problems(0, 0)
	for _, line := range []string{"ip route show table 7", "ip -6 route show table 7"} {
		r.soon(line, func() (bool, string) { got := r.run(line); return strings.Contains(got, "dev late0 proto 110"), got })
	}
}

// TestRoutingSwitchedOff: when the modes are switched off in the configuration, what they made goes, and nothing else.
func TestRoutingSwitchedOff(t *testing.T) {
	r := newRouted(t, routing.Config{Reach: routing.Reach{Enabled: true}, Masquerade: routing.Masquerade{Enabled: true}})
	r.apply(serviceCIDR("kubernetes", bothCIDRs()...))
	r.run("ip route add 203.0.113.0/24 dev eth0 proto static")
	r.start()
	r.soon("routes", func() (bool, string) { got := r.ours(); return strings.Count(got, " onlink") >= 2, got })
	if err := r.proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	r.spec.Flags[len(r.spec.Flags)-1] = "--nftproxy-config=" + ownConfig(t, routing.Config{})
	r.start()
	r.soon("nothing left", func() (bool, string) {
		got := strings.TrimSpace(r.ours() + r.run("ip neigh show nud permanent") + r.run("ip addr show to 169.254.169.0/29"))
		return got == "", got
	})
	if got := r.run("ip route show 203.0.113.0/24"); !strings.Contains(got, "proto static") {
		t.Errorf("the route of others is gone: %q", got)
	}
}

// TestRoutingRefusesWrongSettings: the proxy does not start on a node where a mode cannot work, says in one line what to
// change, and has touched nothing.
func TestRoutingRefusesWrongSettings(t *testing.T) {
	gateways := []routing.NextHop{{Addr: lab.PodIP(lab.IPv4, 1, 1)}, {Addr: lab.PodIP(lab.IPv6, 1, 1)}}
	steering := func(change func(*routing.Steering)) routing.Config {
		c := routing.Config{Steering: routing.Steering{Enabled: true, Device: lab.PodBridge, Gateways: gateways}}
		change(&c.Steering)
		return c
	}
	for _, tt := range []struct {
		name   string
		config routing.Config
		before string
		want   string
	}{
		{"overlapping subnets", routing.Config{Reach: routing.Reach{Enabled: true}, Subnets: []netip.Prefix{
			netip.MustParsePrefix("172.18.0.0/29"), netip.MustParsePrefix("fd69::/125")}}, "",
			"masquerade subnet 172.18.0.0/29 overlaps address 172.18.0.11/24 of eth0: choose another one (masqueradeSubnets)"},
		{"used priority", steering(func(*routing.Steering) {}), "ip rule add priority 30 fwmark 1 lookup 100",
			"IPv4 rule priority 30 is used by others (from all fwmark 0x1/0xffffffff lookup 100): set steering.priority to a free one"},
		{"used table", steering(func(*routing.Steering) {}), "ip route add 192.0.2.0/24 dev eth0 table 7",
			"table 7 has 1 routes of others (192.0.2.0/24 by protocol 3 first): set steering.table to a free one"},
		{"gateway not on link", steering(func(s *routing.Steering) {
			s.Gateways = []routing.NextHop{{Addr: netip.MustParseAddr("10.244.7.1")}}
		}), "", "gateway 10.244.7.1 is not on link of " + lab.PodBridge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRouted(t, tt.config)
			if tt.before != "" {
				r.run(tt.before)
			}
			r.spec.NoWait = true
			r.start()
			select {
			case <-r.proxy.Done():
			case <-time.After(lab.HangLimit):
				t.Fatal("it runs")
			}
			if err := r.proxy.Stop(); err == nil {
				t.Error("it ended with status 0")
			}
			if log := r.proxy.Tail(20); !strings.Contains(log, tt.want) {
				t.Errorf("log:\n%s\nwant the line: %s", log, tt.want)
			}
			if got := r.ours(); strings.TrimSpace(got) != "" {
				t.Errorf("it has made:\n%s", got)
			}
		})
	}
}
