// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// rounds is how often each client comes back to be seen to stick: of 3 endpoints it meets the same one by chance in 1 of
// 3^11 cases.
const rounds = 12

// sticks sends connections of ten clients, in turn through the kinds of addresses, and reports whether each of them met one
// endpoint only. The first time it also remembers whom.
func sticks(at ...string) measure {
	return func(s *side, c *cell, effort int) outcome {
		met := s.remember(c.flowKey(), func() any { return map[netip.Addr]string{} }).(map[netip.Addr]string)
		o := outcome{"sticks", "sticks"}
		for _, source := range c.sources() {
			seen := map[string]bool{}
			for range rounds {
				for _, kind := range at {
					r := s.from(c, source, kind, effort)
					if r.Verdict != lab.Answered {
						return outcome{string(r.Verdict), s.describe(r)}
					}
					seen[r.Backend] = true
					met[source] = r.Backend
				}
			}
			if len(seen) > 1 {
				o = outcome{"spreads", "spreads"}
			}
		}
		return o
	}
}

// sources are the addresses that the sender counts as clients with: ten of client-1, the own one of others.
func (c *cell) sources() []netip.Addr {
	if c.from == outside {
		return sourceAddrs(c.family)
	}
	return []netip.Addr{{}}
}

// from sends one connection with one of the sender's addresses.
func (s *side) from(c *cell, source netip.Addr, kind string, effort int) lab.Result {
	return lab.Probe{From: s.host(c.from), Proto: c.proto, To: address(c.svc, kind, c.proto, c.family),
		Source: netip.AddrPortFrom(source, s.fresh(c).Port()), Timeout: efforts[effort].timeout}.Send()
}

// stays reports whether clients that met an endpoint (see sticks) which is still there stay with it, and the others find one
// that is.
func stays(left ...string) measure {
	return func(s *side, c *cell, effort int) outcome {
		met := s.remember(c.flowKey(), func() any { return map[netip.Addr]string{} }).(map[netip.Addr]string)
		for source, before := range met {
			r := s.from(c, source, c.at, effort)
			switch {
			case r.Verdict != lab.Answered || !slices.Contains(left, r.Backend):
				return outcome{string(r.Verdict), s.describe(r)}
			case slices.Contains(left, before) && r.Backend != before:
				return outcome{"moves", fmt.Sprintf("a client of %s moved", before)}
			}
		}
		return outcome{"stays", "stays"}
	}
}

// outlasts reports whether affinity holds for a client that comes back after a while, each time, for some times.
func outlasts(pause time.Duration, times int) measure {
	return func(s *side, c *cell, effort int) outcome {
		first := map[netip.Addr]string{}
		o := outcome{"sticks", "sticks"}
		for i := range times + 1 {
			if i > 0 {
				time.Sleep(pause) // the time itself is what is tried
			}
			for _, source := range sourceAddrs(c.family) {
				r := s.from(c, source, c.at, effort)
				if r.Verdict != lab.Answered {
					return outcome{string(r.Verdict), s.describe(r)}
				}
				if i == 0 {
					first[source] = r.Backend
				} else if first[source] != r.Backend {
					o = outcome{"spreads", "spreads"}
				}
			}
		}
		return o
	}
}

// flowKey is the same in all steps.
func (c *cell) flowKey() string {
	return fmt.Sprintf("%s|%s|%s|%s|%s", c.scenario, c.from, c.at, c.proto, c.family)
}

// proxyDelay is how long a proxy may take to follow a step with flows and addresses: kube-proxy deletes conntrack entries after it has
// written its rules, and a busy machine delays both.
const proxyDelay = 5 * time.Second

// eventually is reach, repeated for what a proxy may learn in another order than it was written: Nodes and addresses.
func eventually(s *side, c *cell, effort int) outcome {
	deadline := time.Now().Add(proxyDelay)
	for {
		if o := reach(s, c, effort); o.names == c.want || time.Now().After(deadline) {
			return o
		}
		time.Sleep(50 * time.Millisecond) // polled: a proxy sends no signal
	}
}

// flow is one flow through all steps: the same source address and port over UDP, a connection that is kept over TCP.
func flow(s *side, c *cell, effort int) outcome {
	deadline := time.Now().Add(proxyDelay)
	for {
		seen := sightings{}
		if c.proto == lab.TCP {
			seen.add(s, s.ping(c))
		} else {
			seen.add(s, lab.Probe{From: s.host(c.from), Proto: c.proto, To: c.target(), Source: s.source(c), Timeout: efforts[effort].timeout}.Send())
		}
		if o := seen.outcome(); o.names == c.want || c.want == "" || time.Now().After(deadline) {
			return o
		}
		time.Sleep(50 * time.Millisecond) // the interval of a client that keeps asking
	}
}

// ping uses the kept connection, and opens it first.
func (s *side) ping(c *cell) lab.Result {
	kept := s.remember(c.flowKey(), func() any {
		conn, _ := s.host(c.from).Open(c.proto, c.target())
		return conn
	}).(*lab.Conn)
	if kept.Verdict != lab.Answered {
		return kept.Result
	}
	r := kept.Ping(time.Second)
	if r.Verdict == lab.Answered {
		return kept.Result
	}
	return r
}

// get fetches a URL from the sender and records status and body.
func get(url func(c *cell) string) measure {
	return func(s *side, c *cell, _ int) outcome {
		body, err := s.host(c.from).Get(url(c))
		text := "200 OK: " + strings.TrimSpace(body)
		if err != nil {
			text = err.Error()
			if _, rest, ok := strings.Cut(text, "/: "); ok { // the URL goes first
				text = rest
			}
			if strings.Contains(text, "refused") {
				text = "refused"
			}
		}
		if head, json, ok := strings.Cut(text, "{"); ok { // spaces in it are the writer's choice
			text = head + spaces.ReplaceAllString("{"+json, "")
		}
		return outcome{strings.TrimSuffix(strings.Fields(text)[0], ":"), text}
	}
}

var spaces = regexp.MustCompile(`[\s]+`)

// healthCheck asks a node's health check port of the Service.
func healthCheck(node int) measure {
	return get(func(c *cell) string {
		return fmt.Sprintf("http://%s/", netip.AddrPortFrom(lab.NodeIP(c.family, node), uint16(c.svc.Spec.HealthCheckNodePort)))
	})
}

// large sends more than a packet holds, and reads it back: a datagram in two fragments (backends take 2 KiB), or a line of
// many segments.
func large(s *side, c *cell, effort int) outcome {
	size := map[lab.Proto]int{lab.TCP: 200_000, lab.UDP: 1_900}[c.proto]
	h := s.host(c.from)
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = net.DialTimeout(strings.ToLower(string(c.proto)), c.target().String(), 5*efforts[effort].timeout)
		return err
	})
	if err != nil {
		return outcome{"failed", err.Error()}
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * efforts[effort].timeout)); err != nil {
		return outcome{"failed", err.Error()}
	}
	sent := append(bytes.Repeat([]byte("x"), size), '\n')
	go conn.Write(sent) // the echo comes while it writes
	var got []byte
	buf := make([]byte, 1<<16)
	for bytes.Count(got, sent[:1]) < size {
		n, err := conn.Read(buf)
		if err != nil {
			return outcome{"failed", fmt.Sprintf("%d of %d bytes came back: %v", bytes.Count(got, sent[:1]), size, err)}
		}
		got = append(got, buf[:n]...)
	}
	return outcome{"200", fmt.Sprintf("%d bytes came back", size)}
}

// unasked sends SCTP to a port that the Service has for TCP and UDP only.
func unasked(s *side, c *cell, effort int) outcome {
	seen := sightings{}
	seen.add(s, lab.Probe{From: s.host(c.from), Proto: c.proto, To: address(c.svc, c.at, lab.TCP, c.family), Timeout: efforts[effort].timeout}.Send())
	return seen.outcome()
}
