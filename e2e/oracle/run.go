// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// setup is one configuration of both proxies, with the scenarios that are played under it.
type setup struct {
	name    string
	options lab.Options
	config  map[string]any // laid over lab.BaseConfig
	own     string         // an NFTProxyConfiguration for nftproxy
	// fill adds the scenarios.
	fill func(*plan)
	slow bool // not part of the fast subset
}

// options of a run.
type options struct {
	fast bool
	only *regexp.Regexp // nil is all
	log  func(format string, args ...any)
}

// run plays all setups, one after the other: the machine is small, and what a proxy is given must be alike on both sides.
func run(ctx context.Context, cp *lab.ControlPlane, o options) (all []*cell, err error) {
	for _, st := range setups() {
		if o.fast && st.slow {
			continue
		}
		start := time.Now()
		cells, err := st.run(ctx, cp, o)
		if err != nil {
			return all, fmt.Errorf("setup %s: %w", st.name, err)
		}
		if len(cells) > 0 {
			o.log("%s: %d cells in %s", st.name, len(cells), time.Since(start).Round(time.Millisecond))
		}
		all = append(all, cells...)
	}
	return all, nil
}

func (st *setup) run(ctx context.Context, cp *lab.ControlPlane, o options) ([]*cell, error) {
	ours, err := newSide(lab.NFTProxy, st)
	if err != nil {
		return nil, err
	}
	defer ours.net.Close()
	chosen := st.plan(ours.net).chosen(st.name, o)
	if len(chosen) == 0 {
		return nil, nil
	}
	theirs, err := newSide(lab.KubeProxy, st)
	if err != nil {
		return nil, err
	}
	defer theirs.net.Close()
	return st.play(ctx, cp, chosen, ours, theirs, o)
}

// plan makes the scenarios, with endpoints in a network.
func (st *setup) plan(n *lab.Net) *plan {
	p := &plan{net: n}
	st.fill(p)
	return p
}

// chosen are the scenarios that the run asks for.
func (p *plan) chosen(setup string, o options) (out []*scenario) {
	for _, sc := range p.scenarios {
		if o.fast && sc.slow || o.only != nil && !o.only.MatchString(setup+": "+sc.name) {
			continue
		}
		out = append(out, sc)
	}
	return out
}

// play takes all steps of the scenarios, the first one before the proxies start.
func (st *setup) play(ctx context.Context, cp *lab.ControlPlane, chosen []*scenario, ours, theirs *side, o options) (all []*cell, err error) {
	if err := cp.Reset(ctx); err != nil {
		return nil, err
	}
	if err := applyNodes(ctx, cp, ours.net, func(n *lab.Node) string { return zones[n.Index] }); err != nil {
		return nil, err
	}
	for i := range steps(chosen) {
		cells, apply, remove := gather(st.name, chosen, i, o)
		if err := errors.Join(cp.Delete(ctx, remove...), cp.Apply(ctx, apply...)); err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
		if i == 0 {
			if err := begin(ctx, cp, st, ours, theirs); err != nil {
				return nil, err
			}
		}
		if err := each(ours, theirs, func(s *side) error { return s.change(chosen, i) }); err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
		if err := mark(ctx, cp, i, ours, theirs); err != nil {
			return nil, err
		}
		start := time.Now()
		judge(ours, theirs, cells)
		o.log("%s, step %d: %d cells observed in %s", st.name, i+1, len(cells), time.Since(start).Round(time.Millisecond))
		all = append(all, cells...)
	}
	return all, nil
}

// begin starts the proxies. kube-proxy may miss its Node's zone at the start: it listens to Nodes a moment before it says who
// is to be told (NewNodeTopologyConfig), and the zone is only told of when it changes. So it changes, and changes back.
func begin(ctx context.Context, cp *lab.ControlPlane, st *setup, ours, theirs *side) error {
	if err := each(ours, theirs, func(s *side) error { return s.start(cp, st) }); err != nil {
		return err
	}
	return errors.Join(
		applyNodes(ctx, cp, ours.net, func(*lab.Node) string { return "elsewhere" }),
		applyNodes(ctx, cp, ours.net, func(n *lab.Node) string { return zones[n.Index] }))
}

// applyNodes writes the Nodes of a network with their zones.
func applyNodes(ctx context.Context, cp *lab.ControlPlane, n *lab.Net, zone func(*lab.Node) string) error {
	for _, node := range n.Nodes {
		if err := cp.Apply(ctx, lab.NewNode(node, "topology.kubernetes.io/zone", zone(node))); err != nil {
			return err
		}
	}
	return nil
}

// steps is the length of the longest scenario.
func steps(all []*scenario) (n int) {
	for _, sc := range all {
		n = max(n, len(sc.steps))
	}
	return n
}

// gather merges a step of all scenarios.
func gather(setup string, all []*scenario, i int, o options) (cells []*cell, apply, remove []lab.Object) {
	for _, sc := range all {
		if i < len(sc.steps) {
			st := &sc.steps[i]
			for _, c := range st.cells(setup, sc) {
				if !o.fast || c.inFast() {
					cells = append(cells, c)
				}
			}
			apply = append(apply, st.apply...)
			remove = append(remove, st.remove...)
		}
	}
	return cells, apply, remove
}

// firstMark is the index of the first Service that marks a step.
const firstMark = 3000

// mark writes a new Service and waits until both sides serve it. Watches keep the order of writes, so both have then seen
// all Services and slices written before.
func mark(ctx context.Context, cp *lab.ControlPlane, i int, ours, theirs *side) error {
	s := lab.NewService(fmt.Sprintf("mark-%d", i), firstMark+i, lab.Port(lab.TCP, 80, ports[0]))
	if err := cp.Apply(ctx, on(s, ours.net.Pod(1, 1).Endpoint())...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return each(ours, theirs, func(s *side) error { return s.await(ctx, firstMark+i) })
}

// each does something on both sides at once.
func each(ours, theirs *side, do func(*side) error) error {
	var errs [2]error
	var wg sync.WaitGroup
	for i, s := range []*side{ours, theirs} {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}
