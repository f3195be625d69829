// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

var (
	own      = nft.TraceTable{Family: unix.NFPROTO_IPV4, Name: nft.TableName}
	watcher  = nft.TraceTable{Family: unix.NFPROTO_IPV4, Name: nft.TraceTablePrefix + "1"}
	firewall = nft.TraceTable{Family: unix.NFPROTO_INET, Name: "firewall"}
	began    = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
)

func packet(src, dst string, iif, oif uint32) *nft.TracePacket {
	return &nft.TracePacket{
		Family: nft.IPv4, Proto: nft.TCP, Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), IIF: iif, OIF: oif,
	}
}

// hooks has one chain at an end.
func hooks(_ nft.TraceTable, chain string) (nft.Hook, bool) {
	if chain == "filter-input" {
		return nft.Hook{Type: "filter", Num: unix.NF_INET_LOCAL_IN}, true
	}
	return nft.Hook{Type: "filter", Num: unix.NF_INET_PRE_ROUTING}, chain != "watch"
}

// starts is the message of the filter's rule.
func starts(id uint32, p *nft.TracePacket) *nft.TraceEvent {
	return &nft.TraceEvent{ID: id, Table: watcher, Chain: "watch", Type: nft.TraceRule, Handle: 1, Verdict: nft.VerdictContinue, Packet: p}
}

func rule(id uint32, table nft.TraceTable, chain string, handle uint64, verdict int32, target string, p *nft.TracePacket) *nft.TraceEvent {
	return &nft.TraceEvent{ID: id, Table: table, Chain: chain, Type: nft.TraceRule, Handle: handle, Verdict: verdict, Target: target, Packet: p}
}

func policy(id uint32, table nft.TraceTable, chain string, verdict int32, p *nft.TracePacket) *nft.TraceEvent {
	return &nft.TraceEvent{ID: id, Table: table, Chain: chain, Type: nft.TracePolicy, Verdict: verdict, Packet: p}
}

// Messages of packets at the same time are told apart, and others' packets are left out.
func TestCollect(t *testing.T) {
	c := Collector{Quiet: time.Second, Hook: hooks}
	a, b, other := packet("10.0.0.1:1", "10.96.0.1:80", 2, 0), packet("10.0.0.2:2", "10.96.0.1:80", 2, 0), packet("10.0.0.3:3", "10.96.0.1:80", 2, 0)
	for _, e := range []*nft.TraceEvent{
		starts(1, a), starts(2, b), policy(3, firewall, "raw", nft.VerdictAccept, other), policy(1, own, "filter-input", nft.VerdictAccept, a),
		starts(4, packet("10.0.0.4:4", "10.96.0.1:80", 2, 0)),
	} {
		if got := c.Add(e, began); got != nil {
			t.Errorf("complete too early: %+v", got)
		}
	}
	if got := c.Add(rule(2, firewall, "raw", 7, nft.VerdictDrop, "", b), began); got == nil || len(got.Events) != 2 || got.Events[0].ID != 2 {
		t.Errorf("what is dropped is complete: %+v", got)
	}
	if got := c.Complete(began.Add(time.Second/2), false); len(got) != 0 {
		t.Errorf("complete too early: %+v", got)
	}
	c.Lost()
	got := c.Complete(began.Add(time.Second), false)
	if len(got) != 1 || len(got[0].Events) != 2 || got[0].Events[0].ID != 1 || !got[0].Incomplete {
		t.Errorf("want the first only: %+v", got)
	}
	// The one that is not through is waited for.
	if got := c.Complete(began.Add(unfinishedFactor*time.Second-1), false); len(got) != 0 || !c.Unfinished() {
		t.Errorf("complete too early: %+v", got)
	}
	if got := c.Complete(began.Add(unfinishedFactor*time.Second), false); len(got) != 1 || got[0].Events[0].ID != 4 || c.Unfinished() || len(c.open) != 0 {
		t.Errorf("want the last one only: %+v", got)
	}
}

// A number that comes again is another packet.
func TestCollectNumbersAgain(t *testing.T) {
	c := Collector{Quiet: time.Second, Hook: hooks}
	a := packet("10.0.0.1:1", "10.96.0.1:80", 2, 0)
	c.Add(starts(1, a), began)
	if got := c.Add(starts(1, a), began); got == nil || len(got.Events) != 1 {
		t.Errorf("the first is not complete: %+v", got)
	}
	if got := c.Complete(began, true); len(got) != 1 || len(got[0].Events) != 1 {
		t.Errorf("the second is not there: %+v", got)
	}
}

// What leaves by the loopback device comes in by it with another number, and another port if it was masqueraded; of two
// packets each goes on with its own as far as that can be told.
func TestCollectLoopback(t *testing.T) {
	c := Collector{Quiet: time.Second, Hook: hooks}
	for i, src := range []string{"10.0.0.1:1", "10.0.0.1:2"} {
		id := uint32(i + 1)
		c.Add(starts(id, packet(src, "10.96.0.1:80", 0, 2)), began)
		c.Add(rule(id, own, "nat-postrouting", 1, nft.VerdictContinue, "", packet(src, "10.0.0.1:8080", 0, loopback)), began)
	}
	c.Add(policy(11, own, "filter-input", nft.VerdictAccept, packet("10.0.0.1:1", "10.0.0.1:8080", loopback, 0)), began)
	c.Add(policy(12, own, "filter-input", nft.VerdictAccept, packet("10.0.0.1:777", "10.0.0.1:8080", loopback, 0)), began)
	got := c.Complete(began, true)
	if len(got) != 2 || len(got[0].Events) != 3 || got[0].Events[2].ID != 11 || len(got[1].Events) != 3 || got[1].Events[2].ID != 12 {
		t.Errorf("%+v", got)
	}
}

// The kernel of the tests below: one Service with two endpoints, and a firewall.
func testFacts(t *testing.T) (Facts, *nft.Snapshot) {
	t.Helper()
	service := &nft.Service{
		Name: "default/web:http", Proto: nft.TCP, Served: true,
		Frontends: []nft.Frontend{{Kind: nft.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		Cluster:   []netip.AddrPort{netip.MustParseAddrPort("10.244.1.1:8080"), netip.MustParseAddrPort("10.244.2.1:8080")},
	}
	s := nft.Model(nft.IPv4, nft.Config{MasqueradeBit: 14}, []*nft.Service{service}, nil)
	return Facts{
		Hook: func(table nft.TraceTable, chain string) (nft.Hook, bool) {
			switch {
			case table == own && s.Chains[chain].Hook != nil:
				return *s.Chains[chain].Hook, true
			case table == firewall && chain == "forward":
				return nft.Hook{Type: "filter", Num: unix.NF_INET_FORWARD, Priority: 10}, true
			}
			return nft.Hook{}, false
		},
		// A rule's handle is its place and 100 in this kernel.
		Rule: func(table nft.TraceTable, chain string, handle uint64) (nft.TracedRule, int) {
			if handle < 100 {
				return nft.TracedRule{}, 0
			}
			return nft.TracedRule{Handle: handle, Comment: "a comment", Rejects: handle == 105 || chain == "refuse"}, int(handle - 100)
		},
		Interface:       func(i uint32) string { return []string{"", "lo", "eth0", "pods0", "br0"}[i] },
		Describer:       func(nft.Family) *explain.Describer { return explain.NewDescriber(inspect.Read(s)) },
		BridgeNetfilter: func(iface string, f nft.Family) bool { return iface == "br0" && f == nft.IPv4 },
		Node:            func(nft.Family) explain.Node { return explain.Node{} },
	}, s
}

// toEndpoint is the way to the second endpoint, up to forward.
func toEndpoint() []*nft.TraceEvent {
	sent, to := packet("10.0.0.1:40000", "10.96.0.1:80", 2, 0), packet("10.0.0.1:40000", "10.244.2.1:8080", 2, 3)
	return []*nft.TraceEvent{
		starts(1, sent),
		rule(1, own, "nat-prerouting", 101, nft.VerdictJump, "services", sent),
		rule(1, own, "services", 101, nft.VerdictGoto, "run", nil),
		rule(1, own, "run", 101, nft.VerdictGoto, "cluster-2", nil),
		rule(1, own, "cluster-2", 101, nft.VerdictAccept, "", nil),
		policy(1, own, "filter-forward", nft.VerdictAccept, to),
	}
}

func TestDescribe(t *testing.T) {
	facts, _ := testFacts(t)
	end := packet("10.0.0.1:40000", "10.244.2.1:8080", 2, 3)
	bridged := toEndpoint()[:5] // the kernel's trace of what a bridge forwards has no more
	for i := range bridged {
		if p := bridged[i].Packet; p != nil {
			p.IIF = 4
		}
	}
	for name, c := range map[string]struct {
		events  []*nft.TraceEvent
		outcome explain.Outcome
		summary string
		text    string // in the short form
	}{
		"sent": {
			append(toEndpoint(), policy(1, own, "nat-postrouting", nft.VerdictAccept, end)), explain.Sent, "sent to endpoint 10.244.2.1:8080 by pods0",
			"endpoints { 10.96.0.1 . tcp . 80 . 0:1 : 10.244.2.1 . 8080 }",
		},
		"dropped by others": {
			append(toEndpoint(), rule(1, firewall, "forward", 104, nft.VerdictDrop, "", end)), explain.Dropped,
			`dropped by table inet firewall, chain forward, rule 4, handle 104 ("a comment"), which is not nftproxy's`,
			`inet firewall forward, rule 4, handle 104 ("a comment"): drop`,
		},
		"refused by others": {
			append(toEndpoint(), rule(1, firewall, "forward", 105, nft.VerdictDrop, "", end)), explain.Refused, "refused by table inet firewall", "drop",
		},
		"by a policy": {
			append(toEndpoint(), policy(1, firewall, "forward", nft.VerdictDrop, end)), explain.Dropped,
			"dropped by the policy of table inet firewall, chain forward", "inet firewall forward, policy: drop",
		},
		"queued": {append(toEndpoint(), rule(1, firewall, "forward", 104, nft.VerdictQueue|1<<16, "", end)), explain.Queued, "handed to a program", "queue"},
		"later":  {toEndpoint()[5:], explain.Sent, "sent untranslated to 10.244.2.1:8080 by pods0", ""},
		"halted": {toEndpoint(), explain.Lost, "not seen after forward", "default/web:http"},
		"lost":   {toEndpoint()[:5], explain.Lost, "not seen after prerouting", "default/web:http"},
		"gone": {
			append(toEndpoint(), rule(1, own, "unserved", 1, nft.VerdictContinue, "", end), policy(1, own, "nat-postrouting", nft.VerdictAccept, end)),
			explain.Sent, "sent to endpoint", "warning: rules of nftproxy were replaced",
		},
		"bridged": {bridged, explain.Bridged, "the trace ends after prerouting, on its way to 10.96.0.1:80: br0 is a bridge and net.bridge.bridge-nf-call-iptables is 1", "default/web:http"},
		"nothing": {toEndpoint()[:1], explain.Lost, "not seen", "10.0.0.1:40000"},
	} {
		s := &Seen{At: began}
		for _, e := range c.events {
			s.Events = append(s.Events, *e)
		}
		p := Describe(s, facts)
		var text bytes.Buffer
		if err := Text(&text, p, false); err != nil {
			t.Fatal(err)
		}
		if p.Outcome != c.outcome || !strings.HasPrefix(p.Summary, c.summary) || !strings.Contains(text.String(), c.text) {
			t.Errorf("%s: want %s, %q, %q:\n%s: %s", name, c.outcome, c.summary, c.text, p.Outcome, text.String())
		}
		if p.Service != "default/web:http" && name != "later" {
			t.Errorf("%s: Service %q", name, p.Service)
		}
		if shown := slices.ContainsFunc(p.Steps, func(s explain.Step) bool { return strings.HasPrefix(s.Table, "ip "+nft.TraceTablePrefix) }); shown {
			t.Errorf("%s: the trace's own table is shown", name)
		}
	}
}

// What comes in by a port of a bridge is routed under another number, its destination translated meanwhile.
func TestCollectBridge(t *testing.T) {
	c := Collector{Quiet: time.Second, Hook: func(_ nft.TraceTable, chain string) (nft.Hook, bool) {
		if chain == "filter-forward" {
			return nft.Hook{Type: "filter", Num: unix.NF_INET_FORWARD}, true
		}
		return nft.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING}, chain != "watch"
	}}
	for i, src := range []string{"10.0.0.1:1", "10.0.0.1:2"} {
		c.Add(starts(uint32(i+1), packet(src, "10.96.0.1:80", 4, 0)), began)
	}
	for i, src := range []string{"10.0.0.1:2", "10.0.0.1:1"} {
		c.Add(policy(uint32(i+11), own, "filter-forward", nft.VerdictAccept, packet(src, "10.244.2.1:8080", 4, 3)), began)
	}
	c.Add(policy(13, own, "filter-forward", nft.VerdictAccept, packet("10.0.0.1:3", "10.244.2.1:8080", 4, 3)), began)
	got := c.Complete(began, true)
	if len(got) != 2 || len(got[0].Events) != 2 || got[0].Events[1].ID != 12 || len(got[1].Events) != 2 || got[1].Events[1].ID != 11 {
		t.Errorf("%+v", got)
	}
}
