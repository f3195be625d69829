// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command nftproxy serves the Services of a Kubernetes node with nftables, in
// kube-proxy's place. See README.md.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
)

func main() { os.Exit(cli.Run(newCommand(os.Stdout))) }
