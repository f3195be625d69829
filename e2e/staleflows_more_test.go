// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// patience bounds the wait for what takes milliseconds on an idle machine.
const patience = time.Minute

// withOwnConfig gives the proxies a file of nftproxy's own settings.
func (c *cluster) withOwnConfig(settings string) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "nftproxy.yaml")
	text := "apiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\n" + settings
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.spec.Flags = append(c.spec.Flags, "--nftproxy-config="+path)
}

// TestStaleFlowsRestart: what goes stale while no proxy runs goes at the next start; what is right stays, without a
// datagram lost.
func TestStaleFlowsRestart(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	a, b := c.Pod(1, 2), c.Pod(2, 1)
	c.serve(5353, []*lab.Pod{a, b}, lab.UDP)
	c.apply(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{
		CIDRs: []string{lab.ServiceCIDR(lab.IPv4).String(), lab.ServiceCIDR(lab.IPv6).String()}}})
	var services []any
	for i := range 3 {
		svc := lab.NewService(fmt.Sprintf("dns-%d", i), 10+i, lab.Port(lab.UDP, 53, 5353))
		services = append(services, svc)
		c.apply(svc, lab.NewSlices(svc, a.Endpoint()))
	}
	proxy := c.start()[0]
	side := &staleSide{Net: c.Net, streams: map[string]*stream{}}
	side.openControl(t, a)
	stays := staleCase{name: "stays", to: func(f lab.Family, _ int) netip.AddrPort { return at(lab.ClusterIP(f, 10), 53) }}
	moves := staleCase{name: "moves", to: func(f lab.Family, _ int) netip.AddrPort { return at(lab.ClusterIP(f, 11), 53) }}
	goes := staleCase{name: "goes", to: func(f lab.Family, _ int) netip.AddrPort { return at(lab.ClusterIP(f, 12), 53) }}
	for _, s := range []staleCase{stays, moves, goes} {
		side.open(t, &s, 0)
		if !side.await(t, &s, a.Name, patience) {
			t.Fatalf("%s is not served at first", s.name)
		}
	}
	begin := time.Now()
	if err := proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	moved := lab.NewService("dns-1", 11, lab.Port(lab.UDP, 53, 5353))
	c.apply(lab.NewSlices(moved, b.Endpoint()))
	if err := c.Delete(t.Context(), lab.Objects(services[2], lab.NewSlices(lab.NewService("dns-2", 12), a.Endpoint()))...); err != nil {
		t.Fatal(err)
	}
	if side.await(t, &moves, b.Name, 300*time.Millisecond) {
		t.Error("moved with no proxy running")
	}
	lab.Must(proxy.Restart())(t)
	if !side.await(t, &moves, b.Name, patience) {
		t.Error("endpoint replaced while no proxy ran: not moved")
	}
	if !side.await(t, &goes, elsewhere, patience) {
		t.Error("Service deleted while no proxy ran: still served")
	}
	stays.then = a.Name
	side.watch(&stays)
	for _, f := range lab.Families() {
		if o := side.streams[key(&stays, f)].judge(begin, fits(a.Name), side.control...); o.failed(true) {
			t.Errorf("%s: a flow that is right was disturbed: %s", f, o)
		}
	}
}

// TestStaleFlowsTCP: with both options on, clients of an endpoint that is gone notice at once, wherever they are and
// though they only read, and clients of one that stays do not.
func TestStaleFlowsTCP(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	c.withOwnConfig("staleFlows: {tcp: true, reset: true}\n")
	a, b := c.Pod(1, 2), c.Pod(2, 1)
	c.serve(8080, []*lab.Pod{a, b}, lab.TCP)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080)
	c.apply(svc, lab.NewSlices(svc, a.Endpoint()))
	c.start()
	gone := c.readers(a.Name)
	c.apply(lab.NewSlices(svc, b.Endpoint(), a.Endpoint().With(false, true, true))) // a terminates, but serves
	served, ok := lab.Probe{From: c.Pod(1, 1).Host, Proto: lab.TCP, To: at(lab.ClusterIP(lab.IPv4, 10), 80)}.
		Eventually(patience, func(r lab.Result) bool { return r.Backend == b.Name })
	if !ok {
		t.Fatalf("still served by %s", served)
	}
	time.Sleep(time.Second) // until after the last look at the change
	stay := c.readers(b.Name)
	for i, conn := range gone {
		if err := readWithin(conn, 10*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d to an endpoint that still serves: %v", i, err)
		}
	}
	c.apply(lab.NewSlices(svc, b.Endpoint()))
	for i, conn := range gone {
		if err := readWithin(conn, patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d to an endpoint that is gone: %v", i, err)
		}
	}
	time.Sleep(time.Second)
	for i, conn := range stay {
		if err := readWithin(conn, 10*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d to an endpoint that stays: %v", i, err)
		}
	}
}

// readers opens connections that wait for more than the greeting: from a pod, from the node and from outside.
func (c *cluster) readers(backend string) (conns []net.Conn) {
	c.t.Helper()
	for _, f := range lab.Families() {
		vip, port := at(lab.ClusterIP(f, 10), 80), at(lab.NodeIP(f, 1), 30080)
		conns = append(conns, c.reader(c.Pod(1, 1).Host, vip, backend), c.reader(c.Node(1).Host, vip, backend),
			c.reader(c.Client(1).Host, port, backend))
	}
	return conns
}

// reader opens one of them, until the backend is the one that is wanted: rules and wish may be a moment apart.
func (c *cluster) reader(from *lab.Host, to netip.AddrPort, backend string) (conn net.Conn) {
	c.t.Helper()
	var greeting string
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(tick) {
		err := from.Do(func() (err error) {
			conn, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = conn.Close() })
		greeting, _ = bufio.NewReader(conn).ReadString('\n')
		if strings.HasPrefix(greeting, backend+"|") {
			return conn
		}
		_ = conn.Close()
	}
	c.t.Fatalf("%s from %s: greeted by %q, want %s", to, from, greeting, backend)
	return nil
}

// readWithin reads from a connection that carries no data, until it ends or the time is over.
func readWithin(conn net.Conn, within time.Duration) error {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := conn.Read(make([]byte, 1))
	return err
}

// TestStaleFlowsSCTP: an association that is set up again from the same port meets an endpoint that serves.
func TestStaleFlowsSCTP(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	a, b := c.Pod(1, 2), c.Pod(2, 1)
	c.serve(5000, []*lab.Pod{a, b}, lab.SCTP)
	svc := lab.NewService("sig", 10, lab.Port(lab.SCTP, 5000, 5000))
	c.apply(svc, lab.NewSlices(svc, a.Endpoint()))
	c.start()
	from := c.Pod(1, 1)
	for _, f := range lab.Families() {
		probe := lab.Probe{From: from.Host, Proto: lab.SCTP, To: at(lab.ClusterIP(f, 10), 5000), Source: from.At(f, 4000)}
		if r := probe.Send(); r.Backend != a.Name {
			t.Fatalf("%s at first", r)
		}
		c.apply(lab.NewSlices(svc, b.Endpoint()))
		if r, ok := probe.Eventually(patience, func(r lab.Result) bool { return r.Backend == b.Name }); !ok {
			t.Errorf("%s: endpoint replaced: %s", f, r)
		}
		c.apply(lab.NewSlices(svc, a.Endpoint()))
		if r, ok := probe.Eventually(patience, func(r lab.Result) bool { return r.Backend == a.Name }); !ok {
			t.Errorf("%s: endpoint back: %s", f, r)
		}
	}
}
