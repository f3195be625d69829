// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command fanout measures what many nodes cost an API server: it opens as many watches as nodes would, each on a connection of its
// own and with nftproxy's selectors, changes one endpoint at a time, and prints the server's processor time and the bytes sent, per
// event and watch; and the same of their first lists.
//
//	go run -C e2e/bench ./fanout -watches 10,50,200
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

func main() {
	watches := flag.String("watches", "10,50,200", "how many nodes watch, separated by commas")
	events := flag.Int("events", 200, "changes at each number of watches")
	per := flag.Int("endpoints", 10, "endpoints of the slice that changes")
	services := flag.Int("services", 1000, "Services with as many endpoints, for the first list")
	flag.Parse()
	if err := run(context.Background(), *watches, *events, *per, *services); err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, watches string, events, per, services int) error {
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{})
	if err != nil {
		return err
	}
	defer cp.Close()
	var objects []lab.Object
	for i := range services {
		objects = append(objects, slice(i, per, 0))
	}
	if err := cp.Apply(ctx, objects...); err != nil {
		return err
	}
	fmt.Printf("%d slices of %d endpoints, %d changes of one\n", services, per, events)
	for _, text := range strings.Split(watches, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-watches: %q", text)
		}
		if err := measure(ctx, cp, n, events, per, services); err != nil {
			return fmt.Errorf("%d watches: %w", n, err)
		}
	}
	return nil
}

// slice is an EndpointSlice as the controller of a cluster would write it, with Pods as targets.
func slice(i, endpoints, change int) *discoveryv1.EndpointSlice {
	svc := lab.NewService(fmt.Sprintf("service-%d", i), 2, lab.Port(lab.TCP, 80, 8080))
	s := lab.NewSlices(svc)[0]
	s.Labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io"
	for e := range endpoints {
		n := i*endpoints + e
		node, ready := fmt.Sprintf("node-%d", n%5000), true
		addr := fmt.Sprintf("10.%d.%d.%d", n>>16&127, n>>8&255, n&255)
		if e == 0 {
			addr = fmt.Sprintf("10.%d.%d.%d", 128+change>>16&127, change>>8&255, change&255)
		}
		zone := "zone-" + strconv.Itoa(n%3)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return s
}

// watcher is one node's watch.
type watcher struct{ bytes *atomic.Int64 }

// counted counts what is read from a connection, as it was encrypted.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// open lists by streaming, as nftproxy does, and goes on watching until the context ends. What comes is counted and thrown away.
func (w watcher) open(ctx context.Context, cp *lab.ControlPlane, ready *sync.WaitGroup) error {
	cfg := rest.CopyConfig(cp.Config)
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return counted{c, w.bytes}, err
	}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	url := cfg.Host + "/apis/discovery.k8s.io/v1/endpointslices?watch=true&sendInitialEvents=true&allowWatchBookmarks=true" +
		"&resourceVersionMatch=NotOlderThan&labelSelector=%21service.kubernetes.io%2Fheadless"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", cfg.ContentType+";stream=watch")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: %s", resp.Status)
	}
	go func() {
		defer resp.Body.Close()
		ready.Done()
		io.Copy(io.Discard, resp.Body)
		client.CloseIdleConnections()
	}()
	return nil
}

func measure(ctx context.Context, cp *lab.ControlPlane, n, events, per, services int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var bytes atomic.Int64
	var ready sync.WaitGroup
	ready.Add(n)
	before := cpu(cp.Server.PID())
	for range n {
		if err := (watcher{&bytes}).open(ctx, cp, &ready); err != nil {
			return err
		}
	}
	ready.Wait()
	quiet(&bytes)
	list, listCPU := bytes.Load(), cpu(cp.Server.PID())-before
	alone, err := change(ctx, cp, events, per) // its own cost is in the difference between numbers of watches
	if err != nil {
		return err
	}
	quiet(&bytes)
	before, start := cpu(cp.Server.PID()), bytes.Load()
	if _, err := change(ctx, cp, events, per); err != nil {
		return err
	}
	quiet(&bytes)
	used, sent := cpu(cp.Server.PID())-before, bytes.Load()-start
	fmt.Printf("%5d watches: list %.0f bytes and %s per watch, %.0f bytes per slice; %.0f bytes per event and watch; "+
		"server %s per event (write %s)\n", n, float64(list)/float64(n), (listCPU / time.Duration(n)).Round(10*time.Microsecond),
		float64(list)/float64(n)/float64(services), float64(sent)/float64(n)/float64(events),
		(used / time.Duration(events)).Round(time.Microsecond), alone.Round(10*time.Microsecond))
	return nil
}

// change changes one endpoint of a slice again and again, and returns how long a write took in the mean.
func change(ctx context.Context, cp *lab.ControlPlane, events, per int) (time.Duration, error) {
	start := time.Now()
	for k := range events {
		s := slice(0, per, k+1)
		if _, err := cp.Client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return 0, err
		}
	}
	return time.Since(start) / time.Duration(events), nil
}

// quiet waits until nothing more comes for half a second.
func quiet(bytes *atomic.Int64) {
	const window = 500 * time.Millisecond
	for last := int64(-1); last != bytes.Load(); {
		last = bytes.Load()
		time.Sleep(window)
	}
}

// cpu is the processor time of a process and its threads, in ticks of 10 ms of /proc/PID/stat.
func cpu(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var sum time.Duration
	for _, field := range f[11:13] { // user, system
		n, _ := strconv.Atoi(field)
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}
