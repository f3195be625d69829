// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

const (
	port, target = 80, 8080
	// hot Services are each for one purpose, such as the one whose endpoints are changed and waited for; churn uses the others.
	hot = 10
	// nodePorts is the API server's range: 30,000 Services of which three in ten have one take 9,000.
	firstNodePort, lastNodePort = 20000, 59999
)

// cluster is what the API server holds. Its endpoints are any addresses of endpointRange: all are one pod's.
type cluster struct {
	size
	cp       *lab.ControlPlane
	families []lab.Family

	slices  [][]*discoveryv1.EndpointSlice // by Service and family, as last written
	fresh   atomic.Uint32                  // the last endpoint address in use
	created int                            // Services made after the first
}

// endpointRange holds the endpoints. It is outside the lab's pods, nodes and Services.
func endpointRange(f lab.Family) netip.Prefix {
	if f == lab.IPv4 {
		return netip.MustParsePrefix("10.0.0.0/10")
	}
	return netip.MustParsePrefix("fd00:ee::/64")
}

// numbered is the n-th address from the first of a prefix.
func numbered(p netip.Prefix, n uint32) string {
	a := p.Addr().AsSlice()
	for k := len(a) - 1; n > 0; k-- {
		n += uint32(a[k])
		a[k] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(a)
	return addr.String()
}

// newCluster starts a control plane and fills it.
func newCluster(ctx context.Context, sz size, dualStack bool) (*cluster, error) {
	flags := []string{fmt.Sprintf("--service-node-port-range=%d-%d", firstNodePort, lastNodePort)}
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{Flags: flags})
	if err != nil {
		return nil, err
	}
	c := &cluster{size: sz, cp: cp, families: []lab.Family{lab.IPv4}}
	if dualStack {
		c.families = lab.Families()
	}
	if err := c.fill(ctx); err != nil {
		cp.Close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) fill(ctx context.Context) error {
	net, err := lab.New(lab.Options{Nodes: 1, PodsPerNode: 1})
	if err != nil {
		return err
	}
	defer net.Close()
	objects := lab.Objects(lab.NewNode(net.Node(1))) // the same in every network
	for i := range c.services {
		kind := i % 10
		if c.exposed() == i {
			kind = 6
		}
		svc, slices := c.object(i, kind)
		c.slices = append(c.slices, slices)
		objects = append(objects, lab.Objects(svc, slices)...)
	}
	return c.cp.Apply(ctx, objects...)
}

// object is the i-th Service. Of ten kinds, the first six have a ClusterIP only, two a NodePort, one a LoadBalancer IP and one
// an external IP.
func (c *cluster) object(i, kind int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	svc := lab.NewService(fmt.Sprintf("svc-%d", i), i+2, lab.Port(lab.TCP, port, target))
	switch kind {
	case 6, 7:
		lab.WithNodePorts(svc, c.nodePort(i))
	case 8:
		lab.WithNodePorts(svc, c.nodePort(i))
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		ip := numbered(netip.MustParsePrefix("100.64.0.0/16"), uint32(i))
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	case 9:
		svc.Spec.ExternalIPs = []string{numbered(netip.MustParsePrefix("100.65.0.0/16"), uint32(i))}
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	slices := c.slicesOf(svc)
	if len(c.families) == 1 {
		single := corev1.IPFamilyPolicySingleStack
		svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies, svc.Spec.ClusterIPs = &single, svc.Spec.IPFamilies[:1], svc.Spec.ClusterIPs[:1]
	}
	for k := range c.endpointsOf(i) {
		n := c.fresh.Add(1)
		if k > 0 && k%perSlice == 0 {
			slices = append(c.further(svc, k/perSlice), slices...)
		}
		for f, s := range slices[:len(c.families)] {
			s.Endpoints = append(s.Endpoints, c.endpoint(c.families[f], n))
		}
	}
	return svc, slices
}

// perSlice is as many endpoints as the API allows in a slice.
const perSlice = 1000

// slicesOf makes the first slices of a Service, one per family.
func (c *cluster) slicesOf(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	return lab.NewSlices(svc)[:len(c.families)]
}

// further makes the next slices of a Service whose last ones are full.
func (c *cluster) further(svc *corev1.Service, k int) []*discoveryv1.EndpointSlice {
	more := c.slicesOf(svc)
	for _, s := range more {
		s.Name = fmt.Sprintf("%s-%d", s.Name, k)
	}
	return more
}

// endpointsOf is how many endpoints the i-th Service has: few when it is the one that is watched, since connections find the
// new one of 50 only after 50 tries in the mean, which would be measured along.
func (c *cluster) endpointsOf(i int) int {
	if i == watched && c.services > 1 {
		return min(c.endpoints, 3)
	}
	return c.endpoints
}

// nodePort is unique to a Service that has one.
func (c *cluster) nodePort(i int) int32 { return int32(firstNodePort + i/10*3 + max(0, i%10-6)) }

// nodes are what endpoints are spread over, the measured one among them.
const nodes = 100

func (c *cluster) endpoint(f lab.Family, n uint32) discoveryv1.Endpoint {
	node, ready := fmt.Sprintf("node-%d", 1+n%nodes), true
	return discoveryv1.Endpoint{
		Addresses: []string{numbered(endpointRange(f), n)}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
	}
}

// vip is the i-th Service's address.
func vip(f lab.Family, i int) netip.AddrPort { return netip.AddrPortFrom(lab.ClusterIP(f, i+2), port) }

// swap replaces the oldest endpoint of the i-th Service and returns the new one's name. Not for the same Service at once.
func (c *cluster) swap(ctx context.Context, i int) (string, error) {
	n := c.fresh.Add(1)
	for f, s := range c.slices[i][:len(c.families)] {
		s.Endpoints = append(s.Endpoints[1:], c.endpoint(c.families[f], n))
		// Without a resource version, so that it is one write and no read.
		if _, err := c.cp.Client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return "", fmt.Errorf("swap an endpoint of %s: %w", s.Name, err)
		}
	}
	return fmt.Sprintf("%s:%d", numbered(endpointRange(c.families[0]), n), target), nil
}

// create writes one more Service, and then its endpoints, as the controllers of a cluster would. It returns its number.
func (c *cluster) create(ctx context.Context) (int, error) {
	i := c.services + c.created
	c.created++
	svc, slices := c.object(i, 0)
	return i, c.cp.Apply(ctx, lab.Objects(svc, slices)...)
}

// writers is how many churn at once. A write takes the server 4 ms, most of it waiting, so that they manage 1,000 a second
// where the processors do.
const writers = 16

// churn swaps endpoints of all but the hot Services, rate times a second, until the context ends. It returns how often.
func (c *cluster) churn(ctx context.Context, rate int) (int, error) {
	var done atomic.Int64
	start := time.Now()
	errs := make(chan error, writers)
	each := (c.services - hot) / writers // Services of one writer's own
	for w := range writers {
		go func() {
			for j := 0; ; j++ {
				due := start.Add(time.Duration(j*writers+w) * time.Second / time.Duration(rate))
				select {
				case <-ctx.Done():
					errs <- nil
					return
				case <-time.After(time.Until(due)):
				}
				if _, err := c.swap(context.WithoutCancel(ctx), hot+w+writers*(j%each)); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		}()
	}
	var err error
	for range writers {
		err = errors.Join(err, <-errs)
	}
	return int(done.Load()), err
}
