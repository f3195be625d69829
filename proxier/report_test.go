// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// TestInvalidObjectsAreCounted: an object counts once, whatever is wrong with it and how often that changes, until nothing is.
func TestInvalidObjectsAreCounted(t *testing.T) {
	m := metrics.New()
	r := newReporter(m, nil, nil)
	a, b := kube.Ref{Kind: kube.KindService, Name: kube.Name{Name: "a"}}, kube.Ref{Kind: kube.KindService, Name: kube.Name{Name: "b"}}
	file := kube.Ref{Kind: kube.KindFile, Name: kube.Name{Name: "f.yaml"}}
	wrong := errors.New("wrong")
	for i, step := range []struct {
		problems       map[kube.Ref]error
		services, file float64
	}{
		{map[kube.Ref]error{a: wrong, b: wrong, file: wrong}, 2, 1},
		{map[kube.Ref]error{a: errors.New("wrong in another way")}, 2, 1},
		{map[kube.Ref]error{a: nil, file: nil}, 1, 0},
		{map[kube.Ref]error{a: nil}, 1, 0},
		{map[kube.Ref]error{b: nil}, 0, 0},
	} {
		r.problems(step.problems, func(kube.Name) string { return "" })
		families, err := m.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "nftproxy_objects_invalid" {
				continue
			}
			for _, one := range f.GetMetric() {
				want, known := map[string]float64{"Service": step.services, "File": step.file}[one.GetLabel()[0].GetValue()]
				if got := one.GetGauge().GetValue(); known && got != want {
					t.Errorf("step %d: %s: %v, want %v", i, one.GetLabel()[0].GetValue(), got, want)
				}
			}
		}
	}
}

// TestNodeIsReported: at default verbosity the log names the missing Node object, as after a wrong --hostname-override, and the
// families without NodePorts; once each, and again after a change.
func TestNodeIsReported(t *testing.T) {
	log := &logged{}
	defer klog.CaptureState().Restore()
	klog.SetLogger(log.logger(0))
	r := newReporter(nil, nil, nft.Families())
	s := &nodeState{}
	s.facts.Name = "node-9"
	for range 2 {
		r.node(s, true)
	}
	s.families[1].config.NodePortAll = true
	r.node(s, false)
	r.node(s, true)
	text := log.buf.String()
	for want, n := range map[string]int{
		"There is no Node object of this name": 2, `node="node-9"`: 3, "--hostname-override": 2, "The Node object is there now": 1,
		`families="IPv4, IPv6"`: 1, `families="IPv4"`: 1,
	} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is there %d times, want %d: %s", want, got, n, text)
		}
	}
}

// TestRefusedAddressesAreBounded: a Service may ask for 1,000 addresses at 100 ports, and the log line names the first of them.
func TestRefusedAddressesAreBounded(t *testing.T) {
	log := &logged{}
	defer klog.CaptureState().Restore()
	klog.SetLogger(log.logger(0))
	p := &planner{} // whose configuration allows no external IPs
	svc := &kube.Service{Name: kube.Name{Namespace: "default", Name: "a"}, ClusterIPs: [2]netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	for i := range 1000 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}))
	}
	for i := range 100 {
		svc.Ports = append(svc.Ports, kube.ServicePort{Proto: kube.TCP, Port: uint16(i + 1)})
	}
	refused, n := p.claimsRefused(svc)
	newReporter(metrics.New(), nil, nil).losses(svc, services.NewIndex(), refused, n)
	text := log.buf.String()
	if strings.Count(text, "is not allowed") != maxLosses || !strings.Contains(text, fmt.Sprintf("; and %d more\"", 100_000-maxLosses)) {
		t.Errorf("%d bytes: %.2000s", len(text), text)
	}
}
