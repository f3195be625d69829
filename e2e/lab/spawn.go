// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

// Spawn starts a program in the host's namespace with both outputs in a log file, appended to what is there. It ends with
// the Net at the latest.
func (h *Host) Spawn(log string, argv ...string) (*Process, error) {
	return h.Net.launcher.spawn(h.Namespace, h.Name+" "+argv[0], log, nil, argv...)
}
