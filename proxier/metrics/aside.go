// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "sync"

// asideNamed bounds the series that name Services: whoever may create Services chooses how many there are.
const asideNamed = 100

// asideServices are the Services that are named, with the reason.
type asideServices struct {
	mu     sync.Mutex
	reason map[[2]string]string
}

// ServiceAside names a Service that is set aside, and why ("refused", "too-large", "no-room"); with an empty reason it is not
// any more. Beyond 100 none is named.
func (m *Metrics) ServiceAside(namespace, name, reason string) {
	m.aside.mu.Lock()
	defer m.aside.mu.Unlock()
	key := [2]string{namespace, name}
	was, named := m.aside.reason[key]
	if was == reason {
		return
	}
	if named {
		m.v.asideService.Delete(map[string]string{"namespace": namespace, "service": name, "reason": was})
		delete(m.aside.reason, key)
	}
	if reason != "" && len(m.aside.reason) < asideNamed {
		m.aside.reason[key] = reason
		m.v.asideService.WithLabelValues(namespace, name, reason).Set(1)
	}
}
