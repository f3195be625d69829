// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command nftproxy serves the Services of a Kubernetes node with nftables, in
// kube-proxy's place. See README.md.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

func main() { os.Exit(report(cli.RunNoErrOutput(newCommand(os.Stdout)))) }

// exitError is an error with the code to exit with, where that means something.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errAnswerNo is the answer of a command that found drift, a refused packet or the like; it has been printed.
var errAnswerNo = errors.New("the answer is no")

// runError is an error of the proxy itself. It goes to the log, those of other commands to the terminal.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

// report prints how a command ended and returns the code to exit with.
func report(err error) int {
	var exit *exitError
	var run runError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errAnswerNo): // it has been printed
		return 1
	case errors.Is(err, config.ErrChanged): // planned: whatever supervises the process starts it again
		klog.InfoS("Ending, to be started again with the new configuration", "reason", err)
		logs.FlushLogs()
		return 1
	case errors.As(err, &run):
		klog.ErrorS(run.error, "command failed")
		logs.FlushLogs()
		return 1
	}
	for i, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintln(os.Stderr, map[bool]string{true: "Error:", false: "      "}[i == 0], inspect.Printable(line))
	}
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}
