// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds nftproxy against real packets, a real API server and real kube-proxy.
package e2e

import (
	"os"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// shared is the control plane of all tests of this binary.
var shared lab.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}
