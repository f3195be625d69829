// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"context"
	"fmt"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// DryRun plans as a Proxier does, and programs nothing: for callers that compare or show. Make one with NewDryRun, give its
// Sink to a source, and wait until it is Complete. Safe for concurrent use.
type DryRun struct {
	config  *config.Config
	netNS   int
	tracker *tracker
	kicked  chan struct{}
}

// DryTable is what the sources ask of one family's table.
type DryTable struct {
	Family nft.Family
	Config nft.Config
	// Services have their endpoints sorted, without slots, and sticky views without numbers (see nft.SlotRecovery and
	// nft.Table.Number). They are in the order of their Services' names.
	Services []*nft.Service
	// Node are the elements that belong to no Service.
	Node []nft.Element
}

// NewDryRun returns a DryRun for the node of the configuration. netNS is the descriptor of the network namespace whose
// interfaces count, 0 for that of the process.
func NewDryRun(c *config.Config, netNS int) *DryRun {
	d := &DryRun{config: c, netNS: netNS, kicked: make(chan struct{}, 1)}
	d.tracker = newTracker(func() { kick(d.kicked) }, func(kube.Kind, int, int) {})
	return d
}

// Sink takes the objects of the source.
func (d *DryRun) Sink() kube.Sink { return d.tracker }

// Complete returns once every kind of object has been listed. The error is that of ctx.
func (d *DryRun) Complete(ctx context.Context) error {
	for !d.tracker.complete() {
		select {
		case <-d.kicked:
		case <-ctx.Done():
			return fmt.Errorf("the source has not listed everything: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Endpoints calls show for each endpoint that the slices of a Service have now.
func (d *DryRun) Endpoints(n kube.Name, show func(*kube.Endpoint)) {
	_, list := d.tracker.service(n)
	for _, s := range list {
		for i := range s.Endpoints {
			show(&s.Endpoints[i])
		}
	}
}

// NodeName is that of this node.
func (d *DryRun) NodeName() string { return d.config.NodeName }

// Tables plans for the objects known now, in each of the families. It reads the addresses of the interfaces, as the rules
// for NodePorts depend on them. Limits that depend on the order of events, those of all Services, do not apply.
func (d *DryRun) Tables(families []nft.Family) ([]DryTable, error) {
	interfaces, err := newInterfaceWatch(d.netNS, true, nil).listOnce()
	if err != nil {
		return nil, err
	}
	own := d.config.Own
	own.MaxElements = 0
	p := newPlanner(&own, d.tracker, newReporter(nil, nil, families))
	p.state = d.tracker.state(d.config, interfaces, nil)
	names := map[kube.Name]bool{}
	p.everything(names)
	updates := p.plan(context.Background(), names)
	var out []DryTable
	for _, f := range families {
		table := DryTable{Family: f, Config: p.state.of(f).config, Node: p.state.of(f).elements}
		for _, u := range updates {
			for i := range u.nextPorts() {
				if u.next.ports[i].Family == f {
					table.Services = append(table.Services, &u.next.ports[i].Service)
				}
			}
		}
		out = append(out, table)
	}
	return out, nil
}
