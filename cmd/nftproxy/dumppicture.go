// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/inspect/draw"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// picture returns what draws one Service. If the flags name a source it is asked first where the endpoints are.
func (d *dumper) picture(ctx context.Context) (func(io.Writer, *inspect.Dump) error, error) {
	if d.service == "" {
		return nil, fmt.Errorf("-o %s draws one Service: --service NAMESPACE/NAME is needed", d.output)
	}
	var o draw.Options
	if hasSource(d.flags) {
		source, err := observe(ctx, d.options, d.flags)
		if err != nil {
			return nil, err
		}
		defer source.stop()
		o = draw.Options{Node: source.NodeName(), Places: map[netip.Addr]draw.Place{}}
		source.Endpoints(d.name, func(e *kube.Endpoint) {
			o.Places[e.Addr] = draw.Place{Node: e.Node.String(), Zone: e.Hints.Zone()}
		})
	}
	return func(w io.Writer, doc *inspect.Dump) error {
		p := draw.New(d.service, doc.ServicePorts, o)
		if d.output == "dot" {
			return p.DOT(w)
		}
		return p.SVG(w)
	}, nil
}
