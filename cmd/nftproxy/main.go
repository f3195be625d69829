// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command nftproxy serves the Services of a Kubernetes node with nftables, in
// kube-proxy's place. See README.md.
package main

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

func main() { os.Exit(tell(cli.RunNoErrOutput(newCommand(os.Stdout)))) }

// exitError is an error with the code to exit with, where that means something.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// runError is an error of the proxy itself. It goes to the log, those of other commands to whoever typed them.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

// tell reports how a command ended, and returns the code to exit with.
func tell(err error) int {
	var exit *exitError
	var run runError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errDrift): // it has been printed
		return 1
	case errors.As(err, &run):
		klog.ErrorS(run.error, "command failed")
		logs.FlushLogs()
		return 1
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}
