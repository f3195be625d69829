// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func name(n string) types.NamespacedName { return types.NamespacedName{Namespace: "ns1", Name: n} }

// freePorts finds ports that nobody uses now, on the given address. They are
// taken from below the ephemeral range (32768 up), so that no outgoing
// connection gets one between here and the test's own bind.
func freePorts(t *testing.T, addr string, n int) []uint16 {
	t.Helper()
	var out []uint16
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(10000+rand.IntN(20000))))
		if err != nil {
			continue
		}
		defer l.Close()
		out = append(out, netip.MustParseAddrPort(l.Addr().String()).Port())
		if len(out) == n {
			return out
		}
	}
	t.Fatalf("no %d free ports", n)
	return nil
}

// readyProxy is one that has synced.
func readyProxy() *Proxy {
	p := New(time.Minute, time.Now, v4)
	p.Synced(v4)
	return p
}

// newListeners makes a set whose failures are recorded.
func newListeners(t *testing.T, p *Proxy) (*Listeners, *[]error) {
	t.Helper()
	var failures []error
	l := NewListeners(p, func(n types.NamespacedName, err error) {
		failures = append(failures, fmt.Errorf("%s: %w", n, err))
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l, &failures
}

var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

// ask asks a health check port; an error is a refused connection.
func ask(t *testing.T, c *http.Client, port uint16) (status int, weight string, body map[string]any) {
	t.Helper()
	resp, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return 0, "", nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), body
}

// newClient opens a connection per request unless keep is set.
func newClient(keep bool) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: !keep}}
}

func TestServiceAnswers(t *testing.T) {
	p := readyProxy()
	l, failures := newListeners(t, p)
	ports := freePorts(t, "127.0.0.1", 2)
	l.Sync(Services{
		name("two"):  {Port: ports[0], LocalEndpoints: 2},
		name("none"): {Port: ports[1]},
	}, loopback)
	c := newClient(false)
	status, weight, body := ask(t, c, ports[0])
	want := map[string]any{
		"service":        map[string]any{"namespace": "ns1", "name": "two"},
		"localEndpoints": 2.0, "serviceProxyHealthy": true,
	}
	if d := cmp.Diff(want, body); d != "" || status != 200 || weight != "2" {
		t.Errorf("two endpoints: status %d, weight %s, body (-want +got):\n%s", status, weight, d)
	}
	if status, weight, _ := ask(t, c, ports[1]); status != 503 || weight != "0" {
		t.Errorf("no endpoints: status %d, weight %s", status, weight)
	}
	l.Sync(Services{name("none"): {Port: ports[1], LocalEndpoints: 1}}, loopback)
	if status, _, _ := ask(t, c, ports[0]); status != 0 {
		t.Errorf("removed Service answers %d", status)
	}
	if status, weight, _ := ask(t, c, ports[1]); status != 200 || weight != "1" {
		t.Errorf("after an endpoint came: status %d, weight %s", status, weight)
	}
	if len(*failures) > 0 {
		t.Errorf("failures: %v", *failures)
	}
}

// TestServiceOfUnhealthyProxy: endpoints do not help while the proxy is late
// or has not synced.
func TestServiceOfUnhealthyProxy(t *testing.T) {
	clock := &fakeClock{t: time.Now()}
	p := New(limit, clock.now, v4)
	l, _ := newListeners(t, p)
	port := freePorts(t, "127.0.0.1", 1)[0]
	l.Sync(Services{name("a"): {Port: port, LocalEndpoints: 3}}, loopback)
	c := newClient(false)
	check := func(when string, wantStatus int, healthy bool) {
		t.Helper()
		status, weight, body := ask(t, c, port)
		if status != wantStatus || weight != "3" || body["serviceProxyHealthy"] != healthy {
			t.Errorf("%s: status %d, weight %s, %v", when, status, weight, body)
		}
	}
	check("before the first sync", 503, false)
	p.Synced(v4)
	check("synced", 200, true)
	p.Queued(v4)
	clock.advance(2 * limit)
	check("late", 503, false)
}

// TestPortMoves: a port that passes from one Service to another in one Sync,
// and a connection that is kept alive across it.
func TestPortMoves(t *testing.T) {
	l, failures := newListeners(t, readyProxy())
	port := freePorts(t, "127.0.0.1", 1)[0]
	l.Sync(Services{name("old"): {Port: port, LocalEndpoints: 1}}, loopback)
	kept := newClient(true)
	if status, _, _ := ask(t, kept, port); status != 200 {
		t.Fatalf("old Service answers %d", status)
	}
	l.Sync(Services{name("new"): {Port: port, LocalEndpoints: 5}}, loopback)
	if status, weight, _ := ask(t, kept, port); status != 503 || weight != "0" {
		t.Errorf("kept connection to the removed Service: status %d, weight %s, want 503 and 0", status, weight)
	}
	// The answer before closed the connection: this one reaches the new Service.
	if status, weight, _ := ask(t, kept, port); status != 200 || weight != "5" {
		t.Errorf("new Service: status %d, weight %s", status, weight)
	}
	if len(*failures) > 0 {
		t.Errorf("failures: %v", *failures)
	}
}

// TestPortTaken: another process has the port. The failure is reported once, the
// others are served, and the port is opened once it is free, without a Sync.
func TestPortTaken(t *testing.T) {
	reports := make(chan error, 10)
	l := NewListeners(readyProxy(), func(_ types.NamespacedName, err error) { reports <- err })
	defer l.Close()
	l.first = time.Millisecond
	ports := freePorts(t, "127.0.0.1", 2)
	other, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	want := Services{name("a"): {Port: ports[0], LocalEndpoints: 1}, name("b"): {Port: ports[1], LocalEndpoints: 1}}
	for range 3 {
		l.Sync(want, loopback)
	}
	if err := <-reports; !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("reported: %v, want EADDRINUSE", err)
	}
	c := newClient(false)
	if status, _, _ := ask(t, c, ports[1]); status != 200 {
		t.Errorf("the other Service answers %d", status)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-reports; err != nil {
		t.Errorf("reported: %v, want the end of the failure", err)
	}
	if status, _, _ := ask(t, c, ports[0]); status != 200 {
		t.Errorf("after the port was freed: %d", status)
	}
	if len(l.unbound) > 0 || len(l.open) != 2 {
		t.Errorf("open: %v, not bound: %v", l.open, l.unbound)
	}
}

// TestAddresses: the addresses to listen on change, to one more and to all.
func TestAddresses(t *testing.T) {
	l, failures := newListeners(t, readyProxy())
	port := freePorts(t, "", 1)[0]
	want := Services{name("a"): {Port: port, LocalEndpoints: 1}}
	reachable := func(addr string) bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, fmt.Sprint(port)), 30*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	for _, step := range []struct {
		addrs  []netip.Addr
		second bool // 127.0.0.2 reachable
	}{
		{loopback, false},
		{[]netip.Addr{loopback[0], netip.MustParseAddr("127.0.0.2")}, true},
		{loopback, false},
		{nil, true},
	} {
		l.Sync(want, step.addrs)
		if !reachable("127.0.0.1") {
			t.Errorf("%v: 127.0.0.1 not reachable", step.addrs)
		}
		if got := reachable("127.0.0.2"); got != step.second {
			t.Errorf("%v: 127.0.0.2 reachable: %v, want %v", step.addrs, got, step.second)
		}
	}
	if len(*failures) > 0 {
		t.Errorf("failures: %v", *failures)
	}
}

// TestAddressesOfOneFamily: all addresses of a family are those of that family only.
func TestAddressesOfOneFamily(t *testing.T) {
	l, failures := newListeners(t, readyProxy())
	port := freePorts(t, "", 1)[0]
	l.Sync(Services{name("a"): {Port: port, LocalEndpoints: 1}}, []netip.Addr{netip.IPv4Unspecified()})
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.0.0.2": true, "::1": false} {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, fmt.Sprint(port)), 30*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		if got := err == nil; got != want {
			t.Errorf("%s reachable: %v, want %v", addr, got, want)
		}
	}
	if len(*failures) > 0 {
		t.Errorf("failures: %v", *failures)
	}
}

// BenchmarkListeners shows what a Service with a health check port costs.
func BenchmarkListeners(b *testing.B) {
	l := NewListeners(readyProxy(), func(n types.NamespacedName, err error) { b.Errorf("%s: %v", n, err) })
	defer func() { _ = l.Close() }()
	want := Services{}
	for i := range 1000 {
		want[name(fmt.Sprint("s", i))] = Service{Port: uint16(20000 + i), LocalEndpoints: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Sync(want, loopback)
		l.Sync(nil, loopback)
	}
}
