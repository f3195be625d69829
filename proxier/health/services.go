// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Service is the input of the health check server of one Service.
type Service struct {
	// Port is spec.healthCheckNodePort.
	Port uint16
	// LocalEndpoints is the number of distinct addresses of ready endpoints on this node; terminating ones do not
	// count, so that load balancers drain.
	LocalEndpoints int
}

// Services are the health check servers that should run, one per Service of type LoadBalancer with
// externalTrafficPolicy Local.
type Services map[types.NamespacedName]Service

// A port that cannot be bound is tried again after firstRetry, doubling up to lastRetry.
const firstRetry, lastRetry = time.Second, 30 * time.Second

// Listeners are the health check servers of all Services. They share one http.Server: a Service costs a socket and a
// goroutine per address. Sync is for one goroutine at a time; requests come from any.
type Listeners struct {
	proxy  *Proxy
	report func(types.NamespacedName, error)
	conns  *pool
	server *http.Server

	mu      sync.Mutex
	addrs   []netip.Addr
	open    map[types.NamespacedName]*instance
	unbound Services // those whose port could not be bound
	timer   *time.Timer
	delay   time.Duration // of the next retry
	first   time.Duration // firstRetry outside tests
}

// instance is the server of one Service.
type instance struct {
	name      types.NamespacedName
	port      uint16
	listeners []net.Listener
	endpoints atomic.Int64
	closed    atomic.Bool
}

// NewListeners makes an empty set. report is called when the port of a Service cannot be bound (the event
// FailedToStartServiceHealthcheck), and with nil when that has ended; not for each attempt. It must not call back into
// Listeners.
func NewListeners(proxy *Proxy, report func(types.NamespacedName, error)) *Listeners {
	l := &Listeners{proxy: proxy, report: report, conns: newPool(maxServices), first: firstRetry,
		open: map[types.NamespacedName]*instance{}, unbound: Services{}}
	l.server = l.conns.server(http.HandlerFunc(l.serve))
	return l
}

// Sync opens, closes and updates servers so that they are the given ones. addrs are the addresses to listen on, the
// unspecified one of a family for all of that family, nil for every address of the node of both families; another list
// than before reopens all. A port that cannot be bound is retried until it can be, or is no longer in want.
func (l *Listeners) Sync(want Services, addrs []netip.Addr) {
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
	for name, failed := range l.unbound {
		if want[name].Port != failed.Port {
			delete(l.unbound, name)
		}
	}
	l.ensure(want)
}

// retry is Sync for the ports that could not be bound.
func (l *Listeners) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	l.ensure(l.unbound)
}

// ensure opens the servers of Services unless they are open, sets their counts, and schedules a retry if some cannot be
// opened.
func (l *Listeners) ensure(want Services) {
	// Sorted, so that of two Services with one port the same one gets it.
	for _, name := range slices.SortedFunc(maps.Keys(want), compareNames) {
		w, in := want[name], l.open[name]
		if in == nil {
			in = &instance{name: name, port: w.Port}
			_, failedBefore := l.unbound[name]
			if err := l.listen(in); err != nil {
				in.close()
				l.unbound[name] = w
				if !failedBefore {
					l.report(name, fmt.Errorf("health check port %d: %w", w.Port, err))
				}
				continue
			}
			l.open[name] = in
			delete(l.unbound, name)
			if failedBefore {
				l.report(name, nil)
			}
		}
		in.endpoints.Store(int64(w.LocalEndpoints))
	}
	switch {
	case len(l.unbound) == 0:
		l.delay = l.first
	case l.timer == nil:
		l.delay = max(l.delay, l.first)
		l.timer = time.AfterFunc(l.delay, l.retry)
		l.delay = min(2*l.delay, lastRetry)
	}
}

// listen binds all addresses and serves them.
func (l *Listeners) listen(in *instance) error {
	var lc net.ListenConfig
	hosts := l.addrs
	if hosts == nil {
		hosts = []netip.Addr{{}}
	}
	for _, a := range hosts {
		// Go takes an unspecified address of either family for both, unless the network names one.
		network, host := "tcp", ""
		switch {
		case a.Is4():
			network, host = "tcp4", a.String()
		case a.Is6():
			network, host = "tcp6", a.String()
		}
		inner, err := lc.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(int(in.port))))
		if errors.Is(err, unix.EAFNOSUPPORT) { // all addresses of a family that the kernel lacks are none
			continue
		}
		if err != nil {
			return err
		}
		in.listeners = append(in.listeners, &listener{Listener: inner, pool: l.conns, max: maxService, service: in})
	}
	for _, one := range in.listeners {
		go func() { _ = l.server.Serve(one) }() // ends when the listener is closed
	}
	return nil
}

// Close closes every server and connection. The set must not be used again.
func (l *Listeners) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unbound = nil
	if l.timer != nil {
		l.timer.Stop()
	}
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

// close closes the sockets and marks the instance, so that connections that are kept alive end with their next request.
func (in *instance) close() {
	in.closed.Store(true)
	for _, one := range in.listeners {
		_ = one.Close()
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

// serve answers for the instance that accepted the connection: 200 when it has ready endpoints here and the proxy is
// healthy and has synced once.
func (l *Listeners) serve(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		http.Error(w, "no such health check", http.StatusNotFound)
		return
	}
	in := c.listener.service
	count := in.endpoints.Load()
	if in.closed.Load() {
		count = 0
		w.Header().Set("Connection", "close")
	}
	st := l.proxy.snapshot()
	a := serviceAnswer{LocalEndpoints: int(count), ServiceProxyHealthy: st.healthy && st.ready}
	a.Service.Namespace, a.Service.Name = in.name.Namespace, in.name.Name
	status := http.StatusServiceUnavailable
	if count > 0 && a.ServiceProxyHealthy {
		status = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(count, 10))
	writeJSON(w, status, a)
}

// compareNames orders names by namespace, then name.
func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
