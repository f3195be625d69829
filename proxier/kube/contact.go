// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// retryBackoff is the pause between repeated requests of one kind: 0.2 s, doubled to 1.6 s, each lengthened by up to a half
// at random. Two pauses, of a refused watch and of the list after it, take less than 5 s, in which the proxy must follow a
// server that works again. client-go pauses up to 60 s instead, and has no pause where a streamed list ends early or is
// refused with 410. A server in trouble gets some 0.5 requests per second, kind and node.
func retryBackoff() wait.Backoff {
	return wait.Backoff{Duration: 200 * time.Millisecond, Cap: 1600 * time.Millisecond, Steps: 4, Factor: 2, Jitter: 0.5}
}

const (
	// paceReset is how long after a request the next one counts as the first: a repeated failure comes sooner.
	paceReset = 10 * time.Second
	// longPause is the pause after the server has refused an optional resource.
	longPause = time.Minute
)

// pacer spaces requests. It is not safe for concurrent use. The zero pacer is ready.
type pacer struct {
	backoff wait.Backoff
	last    time.Time
	pause   time.Duration // before the next request, whatever the backoff
}

// wait blocks until the next request may be sent, or ctx ends.
func (p *pacer) wait(ctx context.Context) error {
	delay := p.pause
	p.pause = 0
	if time.Since(p.last) > paceReset {
		p.backoff = retryBackoff()
	} else {
		delay = max(delay, p.backoff.Step())
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.last = time.Now()
	return ctx.Err()
}

// long makes the next pause a long one.
func (p *pacer) long() { p.pause = wait.Jitter(longPause, 0.5) }

// Status is how one kind of object is connected to its API server.
type Status struct {
	Kind Kind
	// Connected is set while a watch is open.
	Connected bool
	// LastContact is when the server last answered or sent an event or bookmark (it sends one each minute); zero before.
	LastContact time.Time
}

// contact is the state of the connections to the API server. It logs when the server is lost and when it is back. It is
// safe for concurrent use.
type contact struct {
	mu    sync.Mutex
	kinds [KindFile]Status
	since [KindFile]time.Time // when Connected was set
	lost  time.Time           // the first failure since all kinds were connected; zero if there is none
	next  time.Duration       // after lost: when to log that again
	log   klog.Logger         // of the last line about the loss
}

const (
	// firstLog is how long the server must be lost before that is logged. Each further line comes after three times as long.
	firstLog = 10 * time.Second
	// steady is how long all watches must be open for the server to be back.
	steady = 2 * time.Second
)

func (c *contact) status() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.kinds {
		c.kinds[i].Kind = Kind(i)
	}
	return slices.Clone(c.kinds[:])
}

// answered notes that the server answered or sent an event.
func (c *contact) answered(k Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[k].LastContact = time.Now()
}

// setConnected notes that a watch is open, or has ended.
func (c *contact) setConnected(k Kind, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[k].Connected = open
	if !open {
		return
	}
	c.since[k] = time.Now()
	c.kinds[k].LastContact = c.since[k]
	if !c.lost.IsZero() {
		time.AfterFunc(steady, c.back)
	}
}

// failed notes that a request failed or a watch ended early, and logs that if it has been so for long enough.
func (c *contact) failed(log klog.Logger, server string, k Kind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.lost.IsZero() {
		c.lost, c.next = now, firstLog
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // without the URL of the request, which is long
	}
	if since := now.Sub(c.lost); since >= c.next {
		c.next, c.log = 3*since, log.WithValues("server", server)
		c.log.Error(err, "The API server is unreachable or does not answer properly; the proxy serves the last known state",
			"kind", k, "for", since.Round(time.Second))
	}
}

// back ends a loss if all watches have been open for a while.
func (c *contact) back() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i, s := range c.kinds {
		if !s.Connected || now.Sub(c.since[i]) < steady {
			return
		}
	}
	if c.next > firstLog {
		c.log.Info("The API server answers again", "after", now.Sub(c.lost).Round(time.Second))
	}
	c.lost = time.Time{}
}
