// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The load of one target: a connection every gap at most, that has timeout to be made and answered. A SYN that is lost is
// sent again after 1 s and 3 s, so that it shows as slow, and is a failure only if it goes on.
const (
	gap     = 20 * time.Millisecond
	timeout = 5 * time.Second
)

// count is what became of the connections to a target since the last reset.
type count struct {
	Made     int      `json:"made"`
	Failed   int      `json:"failed"`
	Slowest  float64  `json:"slowestMs"`
	Over1s   int      `json:"over1s"`
	Again    int      `json:"again"`              // answered at the second attempt
	Failures []string `json:"failures,omitempty"` // the first few
}

// counts are those of all targets, by name. Safe for concurrent use.
type counts struct {
	mu sync.Mutex
	by map[string]count
}

// add counts one connection.
func (c *counts) add(target string, took time.Duration, again bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.by[target]
	n.Made++
	n.Slowest = max(n.Slowest, float64(took.Microseconds())/1000)
	if took > time.Second {
		n.Over1s++
	}
	if again && err == nil {
		n.Again++
	}
	if err != nil {
		n.Failed++
		if len(n.Failures) < 5 {
			n.Failures = append(n.Failures, time.Now().Format("15:04:05.000 ")+err.Error())
		}
	}
	c.by[target] = n
}

// ServeHTTP answers GET with the counts, and POST with the counts after which it begins anew.
func (c *counts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	json.NewEncoder(w).Encode(c.by)
	if r.URL.Path == "/reset" {
		c.by = map[string]count{}
	}
}

// load connects to targets until it is ended: NAME=tcp:ADDRESS:PORT asks for a line, NAME=dns:ADDRESS:PORT for an address
// of the API server's Service, each time from a new socket.
func load(targets []string) error {
	all := &counts{by: map[string]count{}}
	for _, t := range targets {
		name, to, ok := strings.Cut(t, "=")
		kind, addr, ok2 := strings.Cut(to, ":")
		ask := map[string]func(string) (bool, error){"tcp": askTCP, "dns": askDNS}[kind]
		if !ok || !ok2 || ask == nil {
			return fmt.Errorf("%s: must be NAME=tcp:ADDRESS:PORT or NAME=dns:ADDRESS:PORT", t)
		}
		go func() {
			for ; ; time.Sleep(gap) {
				began := time.Now()
				again, err := ask(addr)
				all.add(name, time.Since(began), again, err)
			}
		}()
	}
	return http.ListenAndServe(":8090", all)
}

// askTCP makes a connection, asks, reads the answer and closes. There is no second attempt.
func askTCP(addr string) (again bool, err error) {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return false, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := fmt.Fprintln(c, "name?"); err != nil {
		return false, err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	return false, err
}

// attempts is how often a lookup is sent, each time from a new socket; 2 is what resolv.conf(5) has.
const attempts = 2

// askDNS looks an address up. Those that took a second datagram are counted apart: a client's port that it used half a
// minute ago still leads to the server of then, which may be about to end, with any proxy that keeps what runs.
func askDNS(addr string) (again bool, err error) {
	for i := range attempts {
		if err = askOnce(addr); err == nil {
			return i > 0, nil
		}
	}
	return true, err
}

// askOnce sends one datagram and waits for its answer.
func askOnce(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout/attempts)
	defer cancel()
	tried := false
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if tried {
			return nil, fmt.Errorf("the datagram had no answer")
		}
		tried = true
		return (&net.Dialer{}).DialContext(ctx, "udp", addr)
	}}
	_, err := r.LookupNetIP(ctx, "ip4", "kubernetes.default.svc.cluster.local.")
	return err
}
