// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/routing"
)

// Read returns the state of the node as far as it matters for c, which must be normalized; the zero Config has no
// steering table and no lookups.
//
// The parts are read one after the other. If another program changes something in between, they may not fit together;
// then a notification of that change triggers the next round.
func (k *Kernel) Read(ctx context.Context, c routing.Config) (routing.State, error) {
	r := reader{ctx: ctx, k: k, s: routing.State{
		Ours: routing.Set{}, Neighbours: map[routing.Neighbour]bool{}, Forwarding: map[routing.Family]bool{},
		Found: map[routing.Lookup]routing.FoundRoute{},
	}}
	r.s.Links = dump(&r, "links", dumpLinks(), decodeLink)
	slices.SortFunc(r.s.Links, func(a, b routing.Link) int { return cmp.Compare(a.Index, b.Index) })
	for _, f := range nl.Families() { // the socket is strict (NETLINK_GET_STRICT_CHK), so the kernel honours filters
		r.family(f, c.Steering.Table)
	}
	for _, l := range c.Lookups() {
		r.lookup(l)
	}
	if err := errors.Join(r.failed...); err != nil {
		return routing.State{}, fmt.Errorf("routing: read the kernel: %w", err)
	}
	return r.s, nil
}

// reader is one run of Read.
type reader struct {
	ctx    context.Context
	k      *Kernel
	s      routing.State
	failed []error
}

// dump collects what decode returns for each message of a dump. An interrupted dump may lack or repeat entries: it is
// repeated. A family that the kernel was built or booted without has nothing to dump, and ENOENT is the answer for a
// table without routes.
func dump[E any](r *reader, what string, m message, decode func([]byte) (E, bool)) (out []E) {
	m.flags |= unix.NLM_F_DUMP
	err := nl.Retry(r.ctx, func() error {
		out = nil
		err := request(r.k.dumps, m, func(b []byte) {
			if e, ok := decode(b); ok {
				out = append(out, e)
			}
		})
		if errors.Is(err, vnl.ErrDumpInterrupted) {
			return unix.EINTR
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOENT) {
		r.failed = append(r.failed, fmt.Errorf("dump %s: %w", what, err))
	}
	return out
}

// family reads what a node has per family. table is the steering table, 0 for none.
func (r *reader) family(f routing.Family, table uint32) {
	s := &r.s
	for _, a := range dump(r, f.String()+" addresses", header(unix.RTM_GETADDR, 0, f, unix.SizeofIfAddrmsg), decodeAddr) {
		if a.ours {
			s.Ours[routing.Address{Index: a.Index, Prefix: a.Prefix}] = struct{}{}
		} else {
			s.Addrs = append(s.Addrs, a.Addr)
		}
	}
	for _, n := range dump(r, f.String()+" neighbours", header(unix.RTM_GETNEIGH, 0, f, unix.SizeofNdMsg), decodeNeighbour) {
		switch {
		case !n.permanent:
		case n.ours:
			s.Ours[n.Neighbour] = struct{}{}
		default:
			s.Neighbours[n.Neighbour] = true
		}
	}
	ours := header(unix.RTM_GETROUTE, 0, f, unix.SizeofRtMsg)
	ours.body[5] = routing.Protocol // in all tables
	for _, route := range dump(r, f.String()+" routes", ours, decodeRoute) {
		if route.Protocol == routing.Protocol {
			s.Ours[route.Route] = struct{}{}
		}
	}
	if table != 0 {
		m := header(unix.RTM_GETROUTE, 0, f, unix.SizeofRtMsg)
		m.body.Host32(unix.RTA_TABLE, table)
		for _, route := range dump(r, fmt.Sprintf("%s table %d", f, table), m, decodeRoute) {
			if route.Protocol != routing.Protocol && route.Table == table {
				s.TableRoutes = append(s.TableRoutes, route)
			}
		}
	}
	for _, x := range dump(r, f.String()+" rules", header(unix.RTM_GETRULE, 0, f, unix.SizeofRtMsg), decodeRule) {
		if x.Protocol == routing.Protocol {
			s.Ours[routing.Rule{Fam: x.Fam, Priority: x.Priority, Mark: x.Mark, Mask: x.Mask, Table: x.Table}] = struct{}{}
		} else {
			s.Rules = append(s.Rules, x)
		}
	}
	for _, c := range dump(r, f.String()+" settings", header(unix.RTM_GETNETCONF, 0, f, 4), decodeNetconf) {
		if c.index == netconfAll {
			s.Forwarding[f] = c.forwarding
			if f == routing.IPv4 {
				s.AllRPFilter = c.rpFilter
			}
			continue
		}
		for i := range s.Links {
			if f == routing.IPv4 && s.Links[i].Index == c.index {
				s.Links[i].RPFilter = c.rpFilter
			}
		}
	}
}

// lookup reads by which route a packet leaves (RTM_F_FIB_MATCH: IPv4 since 4.13, IPv6 since 4.16). Destinations
// without a route are left out.
func (r *reader) lookup(l routing.Lookup) {
	err := request(r.k.other, lookupMessage(l), func(b []byte) {
		if route, ok := decodeRoute(b); ok {
			r.s.Found[l] = route
		}
	})
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) { // an errno is the kernel's answer: unreachable, prohibited, no such family
		r.failed = append(r.failed, fmt.Errorf("look up the route to %s: %w", l.Dst, err))
	}
}

// decodeLink reads a message of type RTM_NEWLINK.
func decodeLink(b []byte) (l routing.Link, ok bool) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, false
	}
	flags := nl.Host(b[8:12])
	l = routing.Link{Index: int(nl.Host(b[4:8])), Up: flags&unix.IFF_UP != 0, Loopback: flags&unix.IFF_LOOPBACK != 0}
	for typ, v := range nl.Attrs(b[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = nl.Text(v)
		case unix.IFLA_MTU:
			l.MTU = int(nl.Host(v))
		case unix.IFLA_PROP_LIST:
			for typ, v := range nl.Attrs(v) {
				if typ == unix.IFLA_ALT_IFNAME {
					l.AltNames = append(l.AltNames, nl.Text(v))
				}
			}
		}
	}
	return l, true
}

type foundAddr struct {
	routing.Addr
	ours bool
}

// decodeAddr reads a message of type RTM_NEWADDR.
func decodeAddr(b []byte) (a foundAddr, ok bool) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, false
	}
	flags := uint32(b[2])
	a.Index, a.Global = int(nl.Host(b[4:8])), b[3] == unix.RT_SCOPE_UNIVERSE
	var local, address netip.Addr
	var proto, tag uint32
	for typ, v := range nl.Attrs(b[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_LOCAL: // on point-to-point links the other end is IFA_ADDRESS
			local = nl.Addr(v)
		case unix.IFA_ADDRESS:
			address = nl.Addr(v)
		case unix.IFA_FLAGS:
			flags = nl.Host(v)
		case ifaProto:
			proto = nl.Host(v)
		case ifaRTPriority:
			tag = nl.Host(v)
		}
	}
	if !local.IsValid() {
		local = address
	}
	a.Prefix = netip.PrefixFrom(local, int(b[1]))
	a.Tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	a.Deprecated = flags&unix.IFA_F_DEPRECATED != 0
	a.ours = proto == routing.Protocol || proto == 0 && tag == addressTag
	return a, a.Prefix.IsValid()
}

// decodeRoute reads a message of type RTM_NEWROUTE or RTM_DELROUTE.
func decodeRoute(b []byte) (r routing.FoundRoute, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return r, false
	}
	odd := b[7] != unix.RTN_UNICAST
	dst := routing.Family(b[0]).Unspecified()
	r.Table, r.OnLink, r.Protocol = uint32(b[4]), nl.Host(b[8:12])&unix.RTNH_F_ONLINK != 0, b[5]
	for typ, v := range nl.Attrs(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			dst = nl.Addr(v)
		case unix.RTA_TABLE:
			r.Table = nl.Host(v)
		case unix.RTA_OIF:
			r.Index = int(nl.Host(v))
		case unix.RTA_GATEWAY:
			r.Gateway = nl.Addr(v)
		case unix.RTA_PREFSRC:
			r.Source = nl.Addr(v)
		case unix.RTA_PRIORITY:
			r.Metric = nl.Host(v)
		case unix.RTA_METRICS:
			r.MTU = nl.Host(nl.Find(v, unix.RTAX_MTU))
		case unix.RTA_MULTIPATH, unix.RTA_VIA:
			odd = true
		}
	}
	if odd {
		r.Index = 0
	}
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	return r, r.Dst.IsValid()
}

// decodeRule reads a message of type RTM_NEWRULE. It leaves out the kernel's own, which have no owner before 4.17 and
// are recognized by their priorities.
func decodeRule(b []byte) (r routing.ForeignRule, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return r, false
	}
	r = routing.ForeignRule{
		Fam: routing.Family(b[0]), Table: uint32(b[4]), Selective: b[3] != 0 || nl.Host(b[8:12])&fibRuleInvert != 0,
	}
	for typ, v := range nl.Attrs(b[unix.SizeofRtMsg:]) {
		switch typ {
		case vnl.FRA_PRIORITY:
			r.Priority = nl.Host(v)
		case vnl.FRA_FWMARK:
			r.Mark = nl.Host(v)
		case vnl.FRA_FWMASK:
			r.Mask = nl.Host(v)
		case vnl.FRA_TABLE:
			r.Table = nl.Host(v)
		case vnl.FRA_PROTOCOL:
			r.Protocol = uint8(nl.Host(v))
		case vnl.FRA_SUPPRESS_PREFIXLEN, vnl.FRA_SUPPRESS_IFGROUP:
			r.Selective = r.Selective || nl.Host(v) != ^uint32(0)
		case vnl.FRA_FLOW, fraPad:
		default:
			r.Selective = true
		}
	}
	standard := r.Priority == 0 || r.Priority == 32766 || r.Priority == 32767
	return r, !standard || r.Mask != 0
}

type foundNeighbour struct {
	routing.Neighbour
	ours, permanent bool
}

// decodeNeighbour reads a message of type RTM_NEWNEIGH or RTM_DELNEIGH.
func decodeNeighbour(b []byte) (n foundNeighbour, ok bool) {
	if len(b) < unix.SizeofNdMsg {
		return n, false
	}
	n.Index, n.permanent = int(nl.Host(b[4:8])), nl.Host(b[8:10])&unix.NUD_PERMANENT != 0
	for typ, v := range nl.Attrs(b[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_DST:
			n.Addr = nl.Addr(v)
		case unix.NDA_LLADDR:
			copy(n.MAC[:], v)
		case ndaProtocol:
			n.ours = nl.Host(v) == routing.Protocol
		}
	}
	return n, n.Addr.IsValid()
}

// netconf is an answer to RTM_GETNETCONF.
type netconf struct {
	index      int
	rpFilter   int
	forwarding bool
}

// netconfAll is the index of conf.all (NETCONFA_IFINDEX_ALL).
const netconfAll = -1

func decodeNetconf(b []byte) (c netconf, ok bool) {
	if len(b) < 4 {
		return c, false
	}
	c.index = int(int32(nl.Host(nl.Find(b[4:], netconfIfindex))))
	c.forwarding = nl.Host(nl.Find(b[4:], netconfForward)) != 0
	c.rpFilter = int(nl.Host(nl.Find(b[4:], netconfRPFilter)))
	return c, c.index != 0
}
