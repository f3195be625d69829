// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
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
