// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A restriction that cannot be read must not become none.
func TestUnreadableSourceRangesRestrict(t *testing.T) {
	for _, c := range []struct {
		ranges []string
		valid  int
		none   bool
	}{
		{nil, 0, false},
		{[]string{"10.0.0.0/8"}, 1, false},
		{[]string{"10.0.0.0/8", "nonsense"}, 1, false},
		{[]string{"nonsense", "10.0.0.0/99"}, 0, true},
	} {
		s, _ := FromService(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, LoadBalancerSourceRanges: c.ranges,
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}}}})
		if len(s.SourceRanges) != c.valid || s.NoValidRange != c.none {
			t.Errorf("%v: %d ranges, none valid %t", c.ranges, len(s.SourceRanges), s.NoValidRange)
		}
	}
}
