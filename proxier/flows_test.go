// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/ctsync"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/services"
)

// TestFlowsOfUnready: an association to an endpoint that is not ready any more stays until no slice lists the endpoint.
func TestFlowsOfUnready(t *testing.T) {
	vip, one, two := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddrPort("10.244.0.1:5000"), netip.MustParseAddrPort("10.244.0.2:5000")
	of := func(serving, unready []netip.AddrPort) *entry {
		return &entry{ports: []services.Port{{Family: nft.IPv4, Serving: serving, Unready: unready, Service: nft.Service{
			Name: "a/b", Proto: nft.SCTP, Frontends: []nft.Frontend{{Kind: nft.ClusterIP, Addr: vip, Port: 5000}}}}}}
	}
	flow := ctsync.Flow{Proto: ctsync.SCTP, Src: netip.MustParseAddrPort("10.244.1.1:4000"), Dst: netip.AddrPortFrom(vip, 5000), ReplySrc: one, Replied: true}
	state := ctsync.NewState(ctsync.Scope{SCTP: true})
	var was *entry
	for _, step := range []struct {
		name string
		next *entry
		want ctsync.Reason
	}{
		{"ready", of([]netip.AddrPort{one, two}, nil), ctsync.Keep},
		{"not ready", of([]netip.AddrPort{two}, []netip.AddrPort{one}), ctsync.Keep},
		{"gone", of([]netip.AddrPort{two}, nil), ctsync.EndpointGone},
		{"not ready, alone", of(nil, []netip.AddrPort{one}), ctsync.Keep},
		{"no endpoint", of(nil, nil), ctsync.NoEndpoints},
		{"no Service", nil, ctsync.Keep},
	} {
		gone, offered := flowChanges([]*update{{prev: was, next: step.next}})
		state.Update(append(gone, offered...), time.Time{})
		if got := state.Reason(&flow); got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
		was = step.next
	}
}
