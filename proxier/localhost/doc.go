// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package localhost serves NodePorts on loopback addresses, 127.0.0.1 and ::1, for processes of the node itself.
//
// The kernel does not translate what is sent to a loopback address away from the loopback interface: for IPv4 only
// with route_localnet, which also opens 127.0.0.0/8 to the neighbours of the node (CVE-2020-8558), and for IPv6
// not at all. So a [Forwarder] listens there, and opens one connection, or UDP socket, of its own for each that
// it gets, to an address at which the kernel serves the Service. The kernel's rules then choose the endpoint, as they do
// for any other process of the node: session affinity holds, and the endpoint sees an address of the node.
//
// What is different from a NodePort in the kernel:
//
//   - a TCP client is connected before an endpoint is: if that fails it is reset instead of refused. Only where the
//     Service has no endpoint at all there is no listener, and clients are refused at once;
//   - connections run through this process, and end with it;
//   - they are limited in number, and so are UDP clients: see [Limits]; idle ones end;
//   - SCTP is not served: its multihoming cannot be relayed, and Go has no sockets for it.
//
// In come the wanted ports with their targets, out go reports of ports that cannot be opened, and numbers. The package
// never touches the kernel's rules and never listens on another interface than lo.
//
// A NodePort that loses its Service is closed at once; TCP connections that run go on. UDP has no connections: its
// clients get a refusal.
package localhost
