// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"

	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// inquiry makes a command exit with 2 when it fails, so that a failure cannot be taken for an answer: 0 means that all is
// well, 1 (errAnswerNo) that it is not. Wrong arguments are answered with the usage line.
func inquiry(cmd *cobra.Command) *cobra.Command {
	args, run := cmd.Args, cmd.RunE
	failed := func(err error) error {
		if err == nil || errors.Is(err, errAnswerNo) {
			return err
		}
		return &exitError{2, permission(err)}
	}
	cmd.Args = func(cmd *cobra.Command, list []string) error { return failed(withUsage(cmd, args(cmd, list))) }
	cmd.RunE = func(cmd *cobra.Command, list []string) error { return failed(run(cmd, list)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return failed(withUsage(cmd, err)) })
	return cmd
}

func withUsage(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nUsage: %s (%s --help has more)", err, cmd.UseLine(), cmd.CommandPath())
}

// permission adds what to do about an EPERM.
func permission(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w (needs CAP_NET_ADMIN; try as root, in the node's network namespace)", err)
	}
	return err
}

// newStamp returns the stamp of a document that is made now. The node has the name that the proxy would give it.
func newStamp(flags *pflag.FlagSet) inspect.Stamp {
	s := inspect.Stamp{Time: time.Now().UTC().Truncate(time.Millisecond), Version: programVersion()}
	if f := flags.Lookup("hostname-override"); f != nil && f.Changed {
		s.Node = f.Value.String()
	} else if name, err := os.Hostname(); err == nil {
		s.Node = name
	}
	s.Node = strings.ToLower(strings.TrimSpace(s.Node))
	return s
}

// serviceRef is NAMESPACE/NAME or NAMESPACE/NAME:PORT; an empty port stands for all.
type serviceRef struct{ namespace, name, port string }

func parseService(s string) (r serviceRef, err error) {
	var slash, colon bool
	r.namespace, r.name, slash = strings.Cut(s, "/")
	r.name, r.port, colon = strings.Cut(r.name, ":")
	if !slash || r.namespace == "" || r.name == "" || strings.Contains(r.name, "/") || colon && r.port == "" {
		return r, fmt.Errorf("%s: must be NAMESPACE/NAME or NAMESPACE/NAME:PORT, with the name or number of a port", inspect.Printable(s))
	}
	return r, nil
}

// of returns the Service ports that a reference selects.
func (r serviceRef) of(ports []inspect.ServicePort) []inspect.ServicePort {
	return inspect.Select(ports, r.namespace, r.name, r.port)
}

// facts are the addresses of the node; its routes are asked from the kernel one by one.
type facts struct {
	local []netip.Addr
}

func readFacts() (*facts, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	f := &facts{}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			f.local = append(f.local, p.Addr().Unmap())
		}
	}
	return f, nil
}

func (f *facts) isLocal(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(f.local, a) }

// route returns the interface by which the node reaches an address. The kernel answers with an error for an address that it
// cannot reach; which one depends on the route.
func (f *facts) route(a netip.Addr) (iface string, ok bool) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", errors.Is(err, syscall.EPERM) // unknown, which is not "no route"
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", true
	}
	return link.Name, true
}

// nextHop returns the next hop of packets to an address with a mark: the address itself if it is on link, not valid without
// a route.
func (f *facts) nextHop(to netip.Addr, mark uint32) netip.Addr {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	if hop, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		return hop.Unmap()
	}
	return to
}

// source is the address that a process on the node sends from to a destination.
func (f *facts) source(to netip.Addr) netip.Addr {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok {
			return a.Unmap()
		}
	}
	for _, a := range f.local {
		if a.Is4() == to.Is4() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	if to.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
