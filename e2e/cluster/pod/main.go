// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command pod is what runs in the pods of e2e/cluster:
//
//	pod pause               the first process of a pod: holds its namespaces
//	pod lookup NAME         looks up a name by the pod's resolv.conf, and says what it got
//	pod sleep SECONDS       for preStop
//	pod serve               answers on TCP port 8080 with the pod's name
//	pod load NAME=TARGET... connects to each target over and over, and serves the count on port 8090: see load.go
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

// run does what the first argument says.
func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("pause, lookup, sleep, serve or load")
	}
	switch {
	case args[0] == "pause":
		pause()
		return nil
	case args[0] == "lookup" && len(args) == 2:
		return lookup(args[1])
	case args[0] == "sleep" && len(args) == 2:
		seconds, err := strconv.ParseFloat(args[1], 64)
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		return err
	}
	switch {
	case args[0] == "serve" && len(args) == 1:
		return serve()
	case args[0] == "load" && len(args) > 1:
		return load(args[1:])
	}
	return fmt.Errorf("%s: no such command, or another number of arguments", strings.Join(args, " "))
}

// pause waits to be ended. It takes the exit status of orphans, which come to it if the containers share a process
// namespace.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for { // signals are merged: one may stand for several children
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// lookup prints the addresses of a name.
func lookup(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addrs, " "))
	return nil
}
