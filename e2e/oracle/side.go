// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// side is a network with one of the proxies on its nodes.
type side struct {
	kind  lab.ProxyKind
	net   *lab.Net
	hosts map[string]*lab.Host

	mu     sync.Mutex
	memory map[string]any // what a step has to know of one before
	ports  map[string]int // how many fresh ports each sender had
}

// ports that backends listen on. A backend on another port than the first says so in its name.
var ports = []uint16{8080, 8081}

func newSide(kind lab.ProxyKind, st *setup) (*side, error) {
	n, err := lab.New(labOptions(st.options))
	if err != nil {
		return nil, err
	}
	s := &side{kind: kind, net: n, hosts: map[string]*lab.Host{}, memory: map[string]any{}, ports: map[string]int{}}
	if err := s.furnish(); err != nil {
		n.Close()
		return nil, fmt.Errorf("network for %s: %w", kind, err)
	}
	return s, nil
}

// labOptions sizes a network: the fourth pods are never endpoints.
func labOptions(o lab.Options) lab.Options {
	o.Nodes, o.PodsPerNode, o.Clients = 2, 4, 2
	return o
}

// furnish adds backends, routes and addresses.
func (s *side) furnish() error {
	var errs []error
	add := func(h *lab.Host, protos ...lab.Proto) {
		s.hosts[h.Name] = h
		for i, port := range ports {
			name := h.Name
			if i > 0 {
				name = fmt.Sprintf("%s:%d", h.Name, port)
			}
			_, err := h.Serve(name, port, protos...)
			errs = append(errs, err)
		}
	}
	for _, n := range s.net.Nodes {
		add(n.Host, lab.TCP, lab.UDP)
		for _, p := range n.Pods {
			add(p.Host, lab.TCP, lab.UDP, lab.SCTP)
		}
	}
	for k, c := range s.net.Clients {
		s.hosts[c.Name] = c.Host
		errs = append(errs, c.Via(s.net.Nodes[k]))
	}
	for _, f := range lab.Families() {
		for _, a := range sourceAddrs(f) {
			errs = append(errs, s.net.Client(1).AddAddr("eth0", netip.PrefixFrom(a, lab.NodeCIDR(f).Bits())))
		}
	}
	for _, f := range lab.Families() {
		a := secondAddr(f)
		errs = append(errs, s.net.Node(1).AddAddr("eth0", a))
		for _, c := range s.net.Clients {
			errs = append(errs, c.Route(a.Masked(), lab.NodeIP(f, 1), ""))
		}
		errs = append(errs, s.net.Node(2).Route(a.Masked(), lab.NodeIP(f, 1), ""))
	}
	return errors.Join(errs...)
}

// start attaches the control plane and runs the proxies.
func (s *side) start(cp *lab.ControlPlane, st *setup) error {
	api, err := s.net.Attach(cp)
	if err != nil {
		return err
	}
	spec := lab.ProxySpec{Kind: s.kind, API: api, Timeout: time.Minute}
	if st.own != "" && s.kind == lab.NFTProxy {
		file := filepath.Join(s.net.Dir(), "own.yaml")
		if err := os.WriteFile(file, []byte(st.own), 0o600); err != nil {
			return err
		}
		spec.Flags = append(spec.Flags, "--nftproxy-config="+file)
	}
	// As often as kube-proxy can: the table is about what it does, not when.
	spec.Config = map[string]any{"nftables": map[string]any{"minSyncPeriod": "50ms"}}
	for k, v := range st.config {
		spec.Config[k] = v
	}
	_, err = lab.StartProxies(s.net, spec)
	return err
}

// change does what a step does to the network.
func (s *side) change(all []*scenario, i int) error {
	for _, sc := range all {
		if i < len(sc.steps) && sc.steps[i].do != nil {
			if err := sc.steps[i].do(s.net); err != nil {
				return fmt.Errorf("%s: %w", sc.name, err)
			}
		}
	}
	return nil
}

func (s *side) host(sender string) *lab.Host {
	h := s.hosts[hosts[sender]]
	if h == nil {
		panic("sender " + sender)
	}
	return h
}

// remember returns what was stored under a key, or stores it.
func (s *side) remember(key string, make func() any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.memory[key]; ok {
		return v
	}
	v := make()
	s.memory[key] = v
	return v
}

// source is an address of the sender with a port for the flow alone, below the ephemeral ones, which begin at 32768.
func (s *side) source(c *cell) netip.AddrPort {
	port := s.remember(c.flowKey()+" port", func() any { return uint16(12000 + len(s.memory)) }).(uint16)
	return s.host(c.from).At(c.family, port)
}

// fresh is a source for a new flow, zero where the kernel's choice is as good. UDP ports come in turn: the kernel picks one at
// random, which conntrack may still know from an earlier step, and lead as it did then. The ports are below those of nodes and
// above those of flows that are kept. Each comes again after 16,000, and no sender sends as many in a setup.
func (s *side) fresh(c *cell) netip.AddrPort {
	if c.proto != lab.UDP {
		return netip.AddrPort{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[c.from]++
	return netip.AddrPortFrom(netip.Addr{}, uint16(14000+s.ports[c.from]%16000))
}

// await waits until every node serves a Service in both families.
func (s *side) await(ctx context.Context, index int) error {
	for _, n := range s.net.Nodes {
		for _, f := range lab.Families() {
			p := lab.Probe{From: n.Host, Proto: lab.TCP, To: netip.AddrPortFrom(lab.ClusterIP(f, index), 80), Timeout: 100 * time.Millisecond}
			for {
				r := p.Send()
				if r.Verdict == lab.Answered {
					break
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("%s on %s does not serve a new Service over %s: %s: %w", s.kind, n.Name, f, r, ctx.Err())
				case <-time.After(10 * time.Millisecond): // polled: neither proxy sends a signal
				}
			}
		}
	}
	return nil
}
