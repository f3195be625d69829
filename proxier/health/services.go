// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Service is what the health check server of one Service needs to know.
type Service struct {
	// Port is spec.healthCheckNodePort.
	Port uint16
	// LocalEndpoints is the number of distinct addresses of ready endpoints on
	// this node; terminating ones do not count, so that load balancers drain.
	LocalEndpoints int
}

// Services is the wanted set of health check servers, one per Service of type
// LoadBalancer with externalTrafficPolicy Local.
type Services map[types.NamespacedName]Service

// Timeouts of health check connections. Load balancers poll every few seconds,
// so a connection idle for a minute is one that nobody uses.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = time.Minute
)

// Listeners are the health check servers of all Services. They share one
// http.Server: a Service costs a socket and a goroutine per address. Sync is
// for one goroutine at a time; requests come from any.
type Listeners struct {
	proxy  *Proxy
	failed func(types.NamespacedName, error)
	server *http.Server

	mu    sync.Mutex
	addrs []netip.Addr
	open  map[types.NamespacedName]*instance
}

// instance is the server of one Service.
type instance struct {
	name      types.NamespacedName
	port      uint16
	listeners []net.Listener

	mu        sync.Mutex
	endpoints int
	closed    bool
}

// instanceKey finds the instance in a request's context.
type instanceKey struct{}

// NewListeners makes an empty set. failed is told when the port of a Service
// cannot be bound, once per Sync that tried (the event
// FailedToStartServiceHealthcheck); it must not call back into Listeners.
func NewListeners(proxy *Proxy, failed func(types.NamespacedName, error)) *Listeners {
	l := &Listeners{proxy: proxy, failed: failed, open: map[types.NamespacedName]*instance{}}
	l.server = &http.Server{
		Handler:           http.HandlerFunc(l.serve),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext: func(listener net.Listener) context.Context {
			tagged, _ := listener.(*taggedListener)
			return context.WithValue(context.Background(), instanceKey{}, tagged.instance)
		},
	}
	return l
}

// taggedListener knows whose listener it is.
type taggedListener struct {
	net.Listener
	instance *instance
}

// Sync opens, closes and updates servers so that they are the wanted ones.
// addrs are the addresses to listen on, the unspecified one of a family for
// all of that family, nil for every address of the node of both families;
// another list than before reopens all. A port that cannot be
// bound is tried again by the next Sync; the result is how many there are.
func (l *Listeners) Sync(want Services, addrs []netip.Addr) (failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moved := !slices.Equal(addrs, l.addrs)
	l.addrs = slices.Clone(addrs)
	// Close before opening: a port may pass from one Service to another.
	for name, in := range l.open {
		if w, ok := want[name]; !ok || w.Port != in.port || moved {
			in.close()
			delete(l.open, name)
		}
	}
	// Sorted, so that of two Services with one port the same one gets it.
	for _, name := range slices.SortedFunc(maps.Keys(want), compareNames) {
		if !l.ensure(name, want[name]) {
			failed++
		}
	}
	return failed
}

// ensure opens the server of a Service unless it is open, and sets its count.
func (l *Listeners) ensure(name types.NamespacedName, want Service) bool {
	in, ok := l.open[name]
	if !ok {
		in = &instance{name: name, port: want.Port}
		if err := l.listen(in); err != nil {
			in.close()
			l.failed(name, fmt.Errorf("health check port %d: %w", want.Port, err))
			return false
		}
		l.open[name] = in
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.endpoints = want.LocalEndpoints
	return true
}

// listen binds all addresses and serves them.
func (l *Listeners) listen(in *instance) error {
	var lc net.ListenConfig
	for _, h := range l.hosts() {
		addr := net.JoinHostPort(h.host, strconv.Itoa(int(in.port)))
		listener, err := lc.Listen(context.Background(), h.network, addr)
		if errors.Is(err, unix.EAFNOSUPPORT) { // all addresses of a family that the kernel lacks are none
			continue
		}
		if err != nil {
			return err
		}
		in.listeners = append(in.listeners, listener)
	}
	for _, listener := range in.listeners {
		go func() { _ = l.server.Serve(&taggedListener{listener, in}) }() // ends when the listener is closed
	}
	return nil
}

// host is what to listen on.
type host struct{ network, host string }

// hosts are the hosts to listen on. Go takes an unspecified address of either family for both, unless the network says
// which one is meant.
func (l *Listeners) hosts() []host {
	if l.addrs == nil {
		return []host{{network: "tcp"}}
	}
	var out []host
	for _, a := range l.addrs {
		network := "tcp6"
		if a.Is4() {
			network = "tcp4"
		}
		out = append(out, host{network, a.String()})
	}
	return out
}

// Close closes every server and connection. The set must not be used again.
func (l *Listeners) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, in := range l.open {
		in.close()
		delete(l.open, name)
	}
	// The server may still list a socket whose goroutine has not ended yet.
	if err := l.server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Ports returns the Services whose server is open, with their ports.
func (l *Listeners) Ports() map[types.NamespacedName]uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[types.NamespacedName]uint16, len(l.open))
	for name, in := range l.open {
		out[name] = in.port
	}
	return out
}

// close closes the sockets and marks the instance, so that connections that
// are kept alive learn of it with their next request.
func (in *instance) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for _, listener := range in.listeners {
		_ = listener.Close()
	}
}

// serviceAnswer is the JSON of a health check port.
type serviceAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// serve answers for the instance that the connection came in by: 200 when it
// has ready endpoints here and the proxy is healthy and has synced once.
func (l *Listeners) serve(w http.ResponseWriter, r *http.Request) {
	in, ok := r.Context().Value(instanceKey{}).(*instance)
	if !ok {
		http.Error(w, "no such health check", http.StatusNotFound)
		return
	}
	in.mu.Lock()
	count, closed := in.endpoints, in.closed
	in.mu.Unlock()
	if closed {
		count = 0
		w.Header().Set("Connection", "close")
	}
	st := l.proxy.snapshot()
	healthy := st.healthy && st.ready
	var a serviceAnswer
	a.Service.Namespace, a.Service.Name = in.name.Namespace, in.name.Name
	a.LocalEndpoints, a.ServiceProxyHealthy = count, healthy
	status := http.StatusServiceUnavailable
	if count > 0 && healthy {
		status = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
	writeJSON(w, status, a)
}

// compareNames orders names by namespace, then name.
func compareNames(a, b types.NamespacedName) int {
	if a.Namespace != b.Namespace {
		return strings.Compare(a.Namespace, b.Namespace)
	}
	return strings.Compare(a.Name, b.Name)
}
