// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of our own settings.
const (
	// maxAffinityMapSize keeps one map below some 2 GB of kernel memory (about
	// 128 bytes per element).
	maxAffinityMapSize = 1 << 24
	maxBatchWindow     = time.Second
	// Numbers of ip rules: 0 is the local table's, 32766 and 32767 the kernel's
	// for main and default; rules after those would never be asked.
	maxRulePriority = 32765
	// Tables 253 to 255 are default, main and local; 0 is unspecified.
	firstKernelTable, lastKernelTable = 253, 255
)

// ownParser turns the document into Own and collects what is wrong with it.
type ownParser struct{ errs field.ErrorList }

// parseOwn validates the document and returns it in parsed form.
func parseOwn(d *NFTProxyConfiguration) (Own, field.ErrorList) {
	root := field.NewPath(OwnKind)
	p := &ownParser{}
	p.errs = append(p.errs, between(d.AffinityMapSize, 1, maxAffinityMapSize, root.Child("affinityMapSize"))...)
	if w := d.BatchWindow.Duration; w < 0 || w > maxBatchWindow {
		p.errs = append(p.errs, field.Invalid(root.Child("batchWindow"), w.String(), "must be from 0s to 1s"))
	}
	if d.StaleFlows.Reset && !d.StaleFlows.TCP {
		p.errs = append(p.errs, field.Invalid(root.Child("staleFlows", "reset"), true, "needs staleFlows.tcp"))
	}
	own := Own{
		StrictSourceRanges: d.StrictSourceRanges,
		AffinityMapSize:    d.AffinityMapSize,
		BatchWindow:        d.BatchWindow.Duration,
		StaleFlows:         StaleFlows(d.StaleFlows),
		Routing:            p.routing(d.Routing, root.Child("routing")),
	}
	return own, p.errs
}

// routing parses the routing section. What the node's state decides (devices
// that are missing, subnets that overlap) is for package routing to check.
func (p *ownParser) routing(s RoutingSection, path *field.Path) Routing {
	return Routing{
		ServiceRoutes: ServiceRoutes{
			Enabled: s.ServiceRoutes.Enabled,
			Device:  p.device(s.ServiceRoutes.Device, false, path.Child("serviceRoutes", "device")),
			CIDRs:   p.prefixes(s.ServiceRoutes.CIDRs, path.Child("serviceRoutes", "cidrs")),
		},
		MasqueradeSubnet: Subnets{
			// .1 to .4 are taken: 3 bits of host part hold them.
			IPv4: p.subnet(s.MasqueradeSubnet.IPv4, false, 29, path.Child("masqueradeSubnet", "ipv4")),
			IPv6: p.subnet(s.MasqueradeSubnet.IPv6, true, 125, path.Child("masqueradeSubnet", "ipv6")),
		},
		Steering: p.steering(s.Steering, path.Child("steering")),
		HandOff:  p.handOff(s.HandOff, path.Child("handOff")),
	}
}

func (p *ownParser) steering(s SteeringSection, path *field.Path) Steering {
	if s.Enabled {
		p.errs = append(p.errs, between(s.Priority, 1, maxRulePriority, path.Child("priority"))...)
		if s.Table < 1 || s.Table >= firstKernelTable && s.Table <= lastKernelTable {
			p.errs = append(p.errs, field.Invalid(path.Child("table"), s.Table, "must be 1 to 252, or above 255"))
		}
		if s.Mark == 0 {
			p.errs = append(p.errs, field.Invalid(path.Child("mark"), s.Mark, "must not be 0: every unmarked packet has it"))
		}
	}
	return Steering{
		Enabled:  s.Enabled,
		Device:   p.device(s.Device, s.Enabled, path.Child("device")),
		Gateways: p.addrs(s.Gateways, path.Child("gateways")),
		Mark:     s.Mark, Priority: s.Priority, Table: s.Table,
	}
}

func (p *ownParser) handOff(s HandOffSection, path *field.Path) HandOff {
	h := HandOff{
		Enabled:  s.Enabled,
		Device:   p.device(s.Device, s.Enabled, path.Child("device")),
		LocalETP: p.addrs(s.LocalETP, path.Child("localETP")),
		Hairpin:  p.addrs(s.Hairpin, path.Child("hairpin")),
	}
	for i, class := range s.Classes {
		switch class {
		case classNodePort:
			h.NodePorts = true
		case classExternalIP:
			h.ExternalIPs = true
		case classLoadBalancer:
			h.LoadBalancers = true
		default:
			p.errs = append(p.errs, field.NotSupported(path.Child("classes").Index(i), class,
				[]string{classNodePort, classExternalIP, classLoadBalancer}))
		}
	}
	if s.Enabled && len(s.Classes) == 0 {
		p.errs = append(p.errs, field.Required(path.Child("classes"), "nothing would be handed off"))
	}
	return h
}

// device checks the name of an interface.
func (p *ownParser) device(name string, required bool, path *field.Path) string {
	switch {
	case name == "" && required:
		p.errs = append(p.errs, field.Required(path, "the mode needs a device"))
	case len(name) > ifNameMax:
		p.errs = append(p.errs, field.TooLong(path, name, ifNameMax))
	}
	return name
}

// addrs parses at most one address per family.
func (p *ownParser) addrs(list []string, path *field.Path) Addrs {
	var out Addrs
	for i, s := range list {
		a, ok := parseAddr(s)
		slot := &out.IPv4
		if a.Is6() {
			slot = &out.IPv6
		}
		switch {
		case !ok:
			p.errs = append(p.errs, field.Invalid(path.Index(i), s, "must be an IP address"))
		case slot.IsValid():
			p.errs = append(p.errs, field.Invalid(path.Index(i), s, "at most one address per family"))
		default:
			*slot = a
		}
	}
	return out
}

// prefixes parses a list of CIDRs.
func (p *ownParser) prefixes(list []string, path *field.Path) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range list {
		if cidr, ok := parsePrefix(s); ok {
			out = append(out, cidr)
		} else {
			p.errs = append(p.errs, field.Invalid(path.Index(i), s, "must be a CIDR"))
		}
	}
	return out
}

// subnet parses one CIDR of a family that leaves at least the host part of
// longest bits; empty is none.
func (p *ownParser) subnet(s string, ipv6 bool, longest int, path *field.Path) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	cidr, ok := parsePrefix(s)
	if !ok || cidr.Addr().Is6() != ipv6 || cidr.Bits() > longest {
		p.errs = append(p.errs, field.Invalid(path, s, "must be a CIDR of this family with room for 8 addresses"))
	}
	return cidr
}
