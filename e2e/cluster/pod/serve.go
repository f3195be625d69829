// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// serve answers each line with the pod's name, as a good server does it: at SIGTERM it takes no more connections, and ends
// when those it has are done. What comes later is refused, so clients that are still sent here fail visibly.
func serve() error {
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		l.Close()
	}()
	name, _ := os.Hostname() // a pod's is its name
	var open sync.WaitGroup
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) { // by us
			open.Wait()
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second)) // below the grace period
			for lines := bufio.NewScanner(c); lines.Scan(); {
				fmt.Fprintln(c, name)
			}
		})
	}
}
