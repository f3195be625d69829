// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
)

// familyStatus is one family's entry of the answer.
type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answer is the JSON of /healthz and /livez: kube-proxy's keys and types, with
// Synced added.
type answer struct {
	LastUpdated  time.Time                    `json:"lastUpdated"`
	CurrentTime  time.Time                    `json:"currentTime"`
	NodeEligible *bool                        `json:"nodeEligible,omitempty"`
	Healthy      bool                         `json:"healthy"`
	Synced       bool                         `json:"synced"`
	Status       map[v1.IPFamily]familyStatus `json:"status,omitempty"`
}

// Counter counts the answers given, by HTTP status. Either may be nil.
type Counter struct{ Healthz, Livez func(status int) }

// Handler serves /healthz and /livez. /livez is 200 while no family is late.
// /healthz also wants the node to be eligible and every family to have synced
// once: load balancers and rollouts wait for a node that serves.
func (p *Proxy) Handler(count Counter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		st := p.snapshot()
		reply(w, st, st.healthy && st.ready && st.eligible, &st.eligible, count.Healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		st := p.snapshot()
		reply(w, st, st.healthy, nil, count.Livez)
	})
	return mux
}

// reply writes the answer. A good one says that the state is of now, however
// long ago the last change was: older load balancers look at lastUpdated.
func reply(w http.ResponseWriter, st state, good bool, eligible *bool, count func(int)) {
	a := answer{
		LastUpdated: st.updated, CurrentTime: st.now, NodeEligible: eligible,
		Healthy: st.healthy, Synced: st.ready, Status: st.families,
	}
	status := http.StatusServiceUnavailable
	if good {
		status = http.StatusOK
		a.LastUpdated = st.now
	}
	if count != nil {
		count(status)
	}
	writeJSON(w, status, a)
}

// writeJSON writes a value that always encodes (no channels, no cycles).
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the peer is gone: nobody to tell
}
