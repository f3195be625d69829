// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// path is a way that is compared: through a Service, or to an endpoint directly. Those from the same host are comparable.
type path struct {
	name string
	from *lab.Host
	to   netip.AddrPort
}

func (s *session) paths() []path {
	f := s.families[0]
	endpoint := netip.MustParseAddrPort(fmt.Sprintf("%s:%d", numbered(endpointRange(f), 1), target))
	node := netip.AddrPortFrom(s.pod.Node.IP(f), uint16(s.nodePort(s.exposed())))
	return []path{
		{"direct", s.client, endpoint},
		{"cluster_ip", s.client, vip(f, min(steady, s.services-1))},
		{"direct_outside", s.outside, endpoint},
		{"node_port", s.outside, node},
	}
}

// exposed is a Service with a NodePort.
func (c *cluster) exposed() int {
	if c.services < hot {
		return 0
	}
	return 6
}

// connections compares new connections over the paths, taking turns, and then one stream.
func (s *session) connections(context.Context) error {
	const turns, each = 4, 500 * time.Millisecond
	for range turns {
		for _, p := range s.paths() {
			if err := s.burst(p, each); err != nil {
				return err
			}
		}
	}
	const streams, long = 2, time.Second
	for range streams {
		for _, p := range s.paths()[:2] {
			rate, err := stream(p, long)
			if err != nil {
				return fmt.Errorf("stream over %s to %s: %w", p.name, p.to, err)
			}
			s.add(p.name+"_throughput", rate/(1<<30))
		}
	}
	s.share("cluster_ip_share", "cluster_ip_rate", "direct_rate")
	s.share("node_port_share", "node_port_rate", "direct_outside_rate")
	s.share("throughput_share", "cluster_ip_throughput", "direct_throughput")
	return nil
}

// share writes down one median divided by another.
func (s *session) share(name, of, by string) {
	s.samples[name] = []float64{quantile(s.samples[of], 0.5) / quantile(s.samples[by], 0.5)}
}

// burst makes connections one after another for some time. What one took is the handshake, as the client waits for it. Failures are
// counted as those of a watch are, and are an error only when there is nothing else.
func (s *session) burst(p path, d time.Duration) error {
	const (
		sampled = 20 // one in 20 is written down: some hundreds of each path
		waited  = 64 // far fewer than a listener's queue has room for, 4,096
	)
	var t tally
	start := time.Now()
	err := onThread(p.from, func() {
		for time.Since(start) < d {
			begun := time.Now()
			took, err := connect(p.to, tooLong, t.total%waited == 0)
			if t.add(begun, took, err); t.total%sampled == 0 && err == nil {
				s.took(p.name+"_first", took)
			}
		}
	})
	if err == nil && t.failed == t.total {
		err = t.first
	}
	if err != nil {
		return fmt.Errorf("connections over %s to %s: %w", p.name, p.to, err)
	}
	if t.failed > 0 {
		progress("%s: %d of %d connections over %s to %s failed, the first: %v", s.name, t.failed, t.total, p.name, p.to, t.first)
	}
	s.add(p.name+"_rate", float64(t.total)/time.Since(start).Seconds())
	s.burstTally(p, &t)
	return nil
}

// burstTally writes down what a watch would. Bursts take turns, so that a slow one has no direct one beside it to compare with.
func (s *session) burstTally(p path, t *tally) {
	kind := ""
	if strings.HasPrefix(p.name, "direct") {
		kind = "direct_"
	}
	for name, v := range map[string]float64{
		"total": float64(t.total), "failed": float64(t.failed), "slow": float64(len(t.slow)), "slowest": t.slowest.Seconds(),
	} {
		s.add(connName("connections", kind+name), v)
	}
}

// chunk is what a stream writes and reads at a time.
const chunk = 256 << 10

// stream sends over one connection for some time and returns bytes per second.
func stream(p path, d time.Duration) (rate float64, err error) {
	var c net.Conn
	if err := p.from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", p.to.String(), tooLong)
		return err
	}); err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return 0, err
	}
	buf, start, sent := make([]byte, chunk), time.Now(), 0
	for time.Since(start) < d {
		n, err := c.Write(buf)
		if err != nil {
			return 0, err
		}
		sent += n
	}
	return float64(sent) / time.Since(start).Seconds(), nil
}

// listen makes a host answer on a port of all its addresses: with the address that was dialed and the peer's, as the lab's own
// backends do; then it reads whatever comes and forgets it.
func listen(h *lab.Host, at netip.AddrPort) (io.Closer, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		network := "tcp4"
		if at.Addr().Is6() {
			network = "tcp6"
		}
		l, err = lc.Listen(context.Background(), network, at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go swallow(c)
		}
	}()
	return l, nil
}

func swallow(c net.Conn) {
	defer c.Close()
	fmt.Fprintf(c, "%s|%s\n", c.LocalAddr(), c.RemoteAddr())
	first := make([]byte, 1) // most send nothing, and there are thousands
	if _, err := c.Read(first); err != nil {
		return
	}
	for buf := make([]byte, chunk); ; {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}
