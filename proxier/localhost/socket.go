// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

var errProto = errors.New("neither TCP nor UDP")

// loopbackOnly binds a listener to the loopback interface, so that it stays closed to the network even where other
// software has set route_localnet. Linux 5.7 and later allow that without CAP_NET_RAW.
func loopbackOnly() net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), "lo") })
		return errors.Join(err, failed)
	}}
}

// network is the name of a protocol for package net, without the other family.
func network(proto string, ipv6 bool) string {
	if ipv6 {
		return proto + "6"
	}
	return proto + "4"
}

// readable waits until there is a datagram, or an error, to read, so that those who wait hold no buffer. It honours
// the read deadline.
func readable(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(set, 0)
		return err != nil || n > 0
	})
}
