// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier"
	"github.com/nftproxy/nftproxy/proxier/events"
	"github.com/nftproxy/nftproxy/proxier/localhost"
	"github.com/nftproxy/nftproxy/proxier/metrics"
)

// addLocalhost makes the part that serves NodePorts on loopback addresses, if that is asked for.
func (p *parts) addLocalhost(options *proxier.Options) {
	if !p.cfg.NodePorts.Localhost {
		return
	}
	forwarder := localhost.New(localhost.Options{Report: p.loopbackPortFailed})
	options.Localhost = forwarder
	p.metrics.LocalhostFrom(func() metrics.Localhost { return metrics.Localhost(forwarder.Stats()) })
	p.more = append(p.more, part{"localhost", forwarder.Run})
}

// loopbackPortFailed reports that a NodePort cannot be served on a loopback address, or that it can after all. That
// the node lacks a family is no news about a Service.
func (p *parts) loopbackPortFailed(port localhost.Port, target localhost.Target, err error) {
	switch {
	case err == nil:
		klog.InfoS("NodePort is served on localhost after all", "service", target.Owner, "port", port)
	case errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT):
		klog.V(2).InfoS("NodePort is not served on localhost, the node has no such address", "service", target.Owner, "port", port)
	default:
		klog.ErrorS(err, "NodePort is not served on localhost, will try again", "service", target.Owner, "port", port)
		if p.events != nil {
			p.events.Emit(events.Event{
				Object:  v1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: target.Owner.Namespace, Name: target.Owner.Name},
				Warning: true, Reason: "FailedToServeLocalhostNodePort", Action: "Listen",
				Note: fmt.Sprintf("node %s: %v", p.cfg.NodeName, err),
			})
		}
	}
}
