// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// Wanted is what the sources ask of one family's table: what a Proxier with the same configuration would make of it.
type Wanted struct {
	Family nft.Family
	Config nft.Config
	// Services have their endpoints sorted, without slots, and affinity views without numbers (see nft.Memory and
	// nft.Table.Number). They are in the order of their Services' names.
	Services []*nft.Service
	// Node are the elements that belong to no Service.
	Node []nft.Element
}

// Observer learns what a Proxier would, and programs nothing: for whoever wants to compare or to show. Make one with
// NewObserver, give its Sink to a source, and wait until it is Complete. Safe for concurrent use.
type Observer struct {
	config  *config.Config
	netns   int
	tracker *tracker
	kicked  chan struct{}
}

// NewObserver returns an Observer of the node that the configuration is for. netns is the descriptor of the network
// namespace whose addresses count, 0 for that of the process.
func NewObserver(c *config.Config, netns int) *Observer {
	o := &Observer{config: c, netns: netns, kicked: make(chan struct{}, 1)}
	o.tracker = newTracker(func() {
		select {
		case o.kicked <- struct{}{}:
		default:
		}
	})
	return o
}

// Sink takes what the source learns.
func (o *Observer) Sink() kube.Sink { return o.tracker }

// Complete returns once every kind of object has been listed. The error is that of ctx.
func (o *Observer) Complete(ctx context.Context) error {
	for !o.tracker.complete() {
		select {
		case <-o.kicked:
		case <-ctx.Done():
			return fmt.Errorf("the source has not listed everything: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Problems is what is wrong with objects now.
func (o *Observer) Problems() map[kube.Ref]error {
	o.tracker.mu.Lock()
	defer o.tracker.mu.Unlock()
	return maps.Clone(o.tracker.problems)
}

// Endpoints calls show for each endpoint that the slices of a Service have now.
func (o *Observer) Endpoints(n kube.Name, show func(*kube.Endpoint)) {
	_, list := o.tracker.service(n)
	for _, s := range list {
		for i := range s.Endpoints {
			show(&s.Endpoints[i])
		}
	}
}

// NodeName is that of this node.
func (o *Observer) NodeName() string { return o.config.NodeName }

// Wanted computes what the objects known now ask for, in each of the families. It reads the addresses of the
// interfaces, as the rules for NodePorts depend on them.
func (o *Observer) Wanted(families []nft.Family) ([]Wanted, error) {
	local, names, err := o.addresses()
	if err != nil {
		return nil, err
	}
	node, cidrs := o.tracker.cluster()
	around := surround(inputs{config: o.config, node: node, cidrs: cidrs, local: local, links: names})
	var out []Wanted
	for _, f := range families {
		out = append(out, Wanted{Family: f, Config: around.byFam[f].config, Node: around.byFam[f].elements})
	}
	index, all := services.NewIndex(), o.tracker.names()
	slices.SortFunc(all, kube.Name.Compare)
	for _, n := range all {
		if svc, eps := o.tracker.service(n); svc != nil && tooMany(&o.config.Own, svc, eps) == nil {
			index.Set(n, svc.Created, services.Claims(svc))
		}
	}
	for _, n := range all {
		svc, endpoints := o.tracker.service(n)
		if svc == nil || tooMany(&o.config.Own, svc, endpoints) != nil {
			continue // deleted meanwhile, or not served
		}
		built := services.Build(services.Input{
			Service: svc, Slices: endpoints, Node: services.Node(around.node),
			Options: buildOptions(&o.config.Own, &around),
			Lost:    index.Lost(n),
		})
		if tooLarge(&o.config.Own, built.Size()) != nil {
			continue
		}
		ports := built.Ports
		for i := range ports {
			ports[i].AffinitySize = uint32(o.config.Own.AffinityMapSize)
			if j := slices.Index(families, ports[i].Family); j >= 0 {
				out[j].Services = append(out[j].Services, &ports[i].Service)
			}
		}
	}
	return out, nil
}

// addresses lists the addresses and, as far as the rules need them, the names of the interfaces.
func (o *Observer) addresses() ([]netip.Addr, links, error) {
	ns := netns.None()
	if o.netns != 0 {
		ns = netns.NsHandle(o.netns)
	}
	h, err := newHandle(ns)
	if err != nil {
		return nil, links{}, fmt.Errorf("open route netlink socket: %w", err)
	}
	defer h.Close()
	var addrs []netlink.Addr
	var devices []netlink.Link
	for range listAttempts {
		addrs, err = h.AddrList(nil, netlink.FAMILY_ALL)
		if err == nil {
			devices, err = h.LinkList()
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, links{}, fmt.Errorf("list addresses and interfaces: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, ip.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), namesOf(devices, addrs), nil
}

// listAttempts bounds how often a list that others changed meanwhile is read anew.
const listAttempts = 10
