// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// metricsOf fetches a proxy's metrics by their names with labels.
func metricsOf(t *testing.T, p *lab.Proxy) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(lab.Must(p.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort)))(t)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && !strings.HasPrefix(line, "#") {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				out[name+"}"] = v
			}
		}
	}
	return out
}

// What is refused and dropped is counted by its reason, and goes on from there after another program flushed the rules.
func TestRefusedAndDroppedByReason(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	far := c.Pod(2, 1)
	c.serve(8080, []*lab.Pod{far}, lab.TCP)
	empty := lab.WithNodePorts(lab.NewService("empty", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	away := lab.WithNodePorts(lab.NewService("away", 11, lab.Port(lab.TCP, 80, 8080)), 30081)
	away.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	closed := lab.WithLoadBalancer(lab.NewService("closed", 12, lab.Port(lab.TCP, 80, 8080)), 30082, 1)
	closed.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	c.apply(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{
		CIDRs: []string{lab.ServiceCIDR(lab.IPv4).String(), lab.ServiceCIDR(lab.IPv6).String()}}})
	c.apply(empty, away, closed, lab.NewSlices(away, far.Endpoint()), lab.NewSlices(closed, far.Endpoint()))
	proxy := c.start()[0]
	for _, f := range lab.Families() {
		c.judged(proxy, f)
	}
	lab.Must(lab.NFT(c.Node(1).Host, "flush", "ruleset"))(t)
	for _, f := range lab.Families() {
		c.judged(proxy, f)
	}
	if n := metricsOf(t, proxy)[`nftproxy_refused_total{ip_family="IPv4",reason="no-endpoints"}`]; n < 8 {
		t.Errorf("%v refused for want of endpoints, want at least two to each of two addresses, before the flush and after it", n)
	}
}

// judged sends packets that must not come through, and looks at who counts them.
func (c *cluster) judged(proxy *lab.Proxy, f lab.Family) {
	near, client := c.Pod(1, 1).Host, c.Client(1).Host
	label := func(metric, reason string) string {
		return fmt.Sprintf("nftproxy_%s{ip_family=%q,reason=%q}", metric, f, reason)
	}
	for _, x := range []struct {
		from   *lab.Host
		to     netip.AddrPort
		want   lab.Verdict
		metric string
	}{
		{near, at(lab.ClusterIP(f, 10), 80), lab.Refused, label("refused_total", "no-endpoints")},
		{client, at(lab.NodeIP(f, 1), 30080), lab.Refused, label("refused_total", "no-endpoints")},
		{near, at(lab.ClusterIP(f, 11), 81), lab.Refused, label("refused_total", "unused-port")},
		{near, at(lab.ClusterIP(f, 99), 80), lab.Dropped, label("dropped_total", "no-service")},
		{client, at(lab.NodeIP(f, 1), 30081), lab.Dropped, label("dropped_total", "no-local-endpoints")},
		{client, at(lab.LoadBalancerIP(f, 1), 80), lab.Dropped, label("dropped_total", "source-ranges")},
	} {
		// Shorter than the second after which the kernel sends the first packet of a connection again.
		probe := lab.Probe{From: x.from, Proto: lab.TCP, To: x.to, Timeout: 300 * time.Millisecond}
		c.eventually(x.metric, probe, func(r lab.Result) bool { return r.Verdict == x.want })
		was := metricsOf(c.t, proxy)
		probe.Send()
		for name, v := range metricsOf(c.t, proxy) {
			if !strings.HasPrefix(name, "nftproxy_refused_total") && !strings.HasPrefix(name, "nftproxy_dropped_total") {
				continue
			}
			if grew := v - was[name]; grew < 0 || grew > 0 != (name == x.metric) {
				c.t.Errorf("%s: %s grew by %v", x.to, name, grew)
			}
		}
	}
}

// counted asks node 1 for a number of connections to an address, and holds that its counter grew by just as many.
func (c *cluster) counted(proxy *lab.Proxy, from *lab.Host, proto lab.Proto, to netip.AddrPort, n int) {
	c.t.Helper()
	address := to.String()
	if c.Node(1).IP(lab.FamilyOf(to.Addr())) == to.Addr() {
		address = fmt.Sprintf(":%d", to.Port())
	}
	series := fmt.Sprintf("nftproxy_service_connections_total{address=%q,ip_family=%q,namespace=\"default\",port=%q,protocol=%q,service=\"web\"}",
		address, lab.FamilyOf(to.Addr()), portName(proto), proto)
	was := metricsOf(c.t, proxy)
	for range n {
		if r := from.Ask(proto, to); r.Verdict != lab.Answered {
			c.t.Errorf("%s %s: %s", proto, to, r)
		}
	}
	is := metricsOf(c.t, proxy)
	if _, known := was[series]; !known || is[series]-was[series] != float64(n) {
		c.t.Errorf("%s is %v after %v, want %d more", series, is[series], was[series], n)
	}
	for name, v := range is {
		if strings.HasPrefix(name, "nftproxy_service_connections_total") && name != series && v != was[name] {
			c.t.Errorf("%s grew from %v to %v", name, was[name], v)
		}
	}
}

// portName is what the ports of the Service are called.
func portName(p lab.Proto) string { return lab.Port(p, 80, 8080).Name }

// Each connection counts once, at the address that it was made to; endpoints that come and go and a restart change nothing
// about that, and to switch it off and on under load costs no connection.
func TestConnectionsAreCounted(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	own := filepath.Join(t.TempDir(), "nftproxy.yaml")
	configure := func(count bool) {
		text := fmt.Sprintf("apiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\ncountConnections: %t\n", count)
		if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(true)
	c.spec.Flags = append(c.spec.Flags, "--nftproxy-config="+own)
	a, b, near, client := c.Pod(2, 1), c.Pod(2, 2), c.Pod(1, 1).Host, c.Client(1).Host
	c.serve(8080, []*lab.Pod{a, b}, lab.TCP, lab.UDP)
	svc := lab.WithLoadBalancer(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)), 30080, 1)
	c.apply(svc, lab.NewSlices(svc, a.Endpoint()))
	proxy := c.start()[0]
	all := func() {
		for _, f := range lab.Families() {
			c.counted(proxy, near, lab.TCP, at(lab.ClusterIP(f, 10), 80), 3)
			c.counted(proxy, c.Node(1).Host, lab.UDP, at(lab.ClusterIP(f, 10), 80), 2)
			c.counted(proxy, client, lab.TCP, at(lab.NodeIP(f, 1), 30080), 2)
			c.counted(proxy, client, lab.TCP, at(lab.LoadBalancerIP(f, 1), 80), 1)
		}
	}
	for _, f := range lab.Families() {
		c.eventually("served", lab.Probe{From: near, Proto: lab.TCP, To: at(lab.ClusterIP(f, 10), 80)}, isAnswered)
	}
	all()
	before := metricsOf(t, proxy)
	c.apply(lab.NewSlices(svc, a.Endpoint(), b.Endpoint())) // two endpoints are another program
	for _, f := range lab.Families() {
		c.eventually("two endpoints", lab.Probe{From: near, Proto: lab.TCP, To: at(lab.ClusterIP(f, 10), 80)},
			func(r lab.Result) bool { return r.Backend == b.Name })
	}
	for restart := range 2 {
		all()
		for name, v := range metricsOf(t, proxy) {
			if strings.HasPrefix(name, "nftproxy_service_connections_total") && v < before[name] {
				t.Errorf("%s fell from %v to %v", name, before[name], v)
			}
		}
		before = metricsOf(t, proxy)
		if restart == 0 {
			lab.Must(0, proxy.Stop())(t)
			proxy = lab.Must(proxy.Restart())(t)
		}
	}
	c.switched(near, func(on bool) {
		lab.Must(0, proxy.Stop())(t)
		configure(on)
		proxy = lab.Must(proxy.Restart())(t)
	})
	all()
}

// switched calls a function that switches counting off and on, while connections are made.
func (c *cluster) switched(from *lab.Host, counting func(bool)) {
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lab.Probe{From: from, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv6, 10), 80)}.Storm(ctx, 1, func(r lab.Result) {
			if r.Verdict != lab.Answered {
				c.t.Errorf("while counting is switched: %s", r)
			}
		})
	}()
	for _, on := range []bool{false, true} {
		counting(on)
		for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
			s := c.snapshot(c.Node(1), f)
			n := 0
			for _, e := range s.Elements {
				if e.Set == nft.Connections || e.Set == nft.NodePortConnections {
					n++
				}
			}
			if s.Config().Connections != on || n > 0 != on {
				c.t.Errorf("%s: counting is %t with %d elements, want %t", f, s.Config().Connections, n, on)
			}
			if diff := s.Differences(s.Config(), nil); len(diff) > 0 {
				c.t.Errorf("%s: %v", f, diff)
			}
		}
	}
	cancel()
	<-done
}
