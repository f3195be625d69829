// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
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

// What is refused and dropped is counted by its reason, and goes on from there when somebody flushed the rules.
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
