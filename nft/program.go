// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"math/bits"
)

// Program is what a VIP or NodePort is mapped to: the kind of treatment in the top byte, its argument (a
// balancer's modulus, an affinity number) in the 24 bits below. It is an nft classid, held in the packet's
// priority in host byte order; nft prints it as two hexadecimal halves, so cluster-3 is 100:3.
type Program uint32

// Kind is the top byte of a Program.
type Kind uint8

// Balancers and affinities end in DNAT; policies choose one of the former by a second lookup, and affinities a draw.
const (
	KindCluster               Kind = 0x01 // any endpoint of the cluster view; argument: modulus
	KindLocal                 Kind = 0x02 // any endpoint of the local view; argument: modulus
	KindAffinity              Kind = 0x03 // sticky; argument: affinity number
	KindDraw                  Kind = 0x04 // an endpoint id of the cluster view, for an affinity; argument: modulus
	KindDrawLocal             Kind = 0x05 // of the local view
	KindNodePortCluster       Kind = 0x11
	KindNodePortLocal         Kind = 0x12
	KindNodePortAffinity      Kind = 0x13
	KindNodePortDraw          Kind = 0x14
	KindNodePortDrawLocal     Kind = 0x15
	KindExternal              Kind = 0x21 // externalTrafficPolicy Cluster: masquerade, then the cluster view
	KindExternalLocal         Kind = 0x22 // externalTrafficPolicy Local: own pods and the node get the cluster view
	KindNodePortExternal      Kind = 0x31
	KindNodePortExternalLocal Kind = 0x32
	nodePortBit               Kind = 0x10
	maxProgramArg                  = 1<<24 - 1
)

// NewProgram joins kind and argument. The argument must be below 1<<24.
func NewProgram(k Kind, arg uint32) Program { return Program(k)<<24 | Program(arg&maxProgramArg) }

// Kind returns the top byte.
func (p Program) Kind() Kind { return Kind(p >> 24) }

// Arg returns the 24 bits below the kind.
func (p Program) Arg() uint32 { return uint32(p) & maxProgramArg }

// String is the form that nft prints a classid in.
func (p Program) String() string { return fmt.Sprintf("%x:%x", uint32(p)>>16, uint32(p)&0xffff) }

// chain is the name of the kind's chain; a kind with an argument has it after a dash.
func (k Kind) chain() string {
	name := map[Kind]string{
		KindCluster: "cluster", KindLocal: "local", KindAffinity: "affinity", KindDraw: "draw", KindDrawLocal: "draw-local",
		KindExternal: "external", KindExternalLocal: "external-local",
	}[k&^nodePortBit]
	switch {
	case name == "":
		return "unknown"
	case k.IsNodePort():
		return "nodeport-" + name
	}
	return name
}

// IsPolicy reports whether the program looks up the program of a view; the others end in DNAT.
func (k Kind) IsPolicy() bool { return k&0xf0 >= 0x20 }

// IsNodePort reports whether the keys of the program's maps lack an address.
func (k Kind) IsNodePort() bool { return k&nodePortBit != 0 }

// IsAffinity reports whether the argument is an affinity number.
func (k Kind) IsAffinity() bool { return k == KindAffinity || k == KindNodePortAffinity }

// isBalancer reports whether the argument is the number of endpoints to choose from.
func (k Kind) isBalancer() bool { return k&^nodePortBit == KindCluster || k&^nodePortBit == KindLocal }

// IsDraw reports whether the program draws an endpoint's id for an affinity.
func (k Kind) IsDraw() bool { return k&^nodePortBit == KindDraw || k&^nodePortBit == KindDrawLocal }

// View is the view that a balancer or a draw chooses from.
func (k Kind) View() View {
	if k := k &^ nodePortBit; k == KindLocal || k == KindDrawLocal {
		return LocalView
	}
	return ClusterView
}

// Chain is the name of the chain that the program runs.
func (p Program) Chain() string {
	if p.Kind().IsPolicy() {
		return p.Kind().chain()
	}
	return fmt.Sprintf("%s-%d", p.Kind().chain(), p.Arg())
}

// View is which endpoints may be chosen: all that traffic may go to, or those on this node.
type View uint8

const (
	ClusterView View = iota
	LocalView
)

func (v View) String() string {
	if v == LocalView {
		return "local"
	}
	return "cluster"
}

// Slot is the place of an endpoint in its view: the view in the top byte, the index below. One map can
// so hold both views of a VIP, and numgen's offset chooses between them.
type Slot uint32

// NewSlot returns slot i of view v; i must be below 1<<24.
func NewSlot(v View, i int) Slot { return Slot(v)<<24 | Slot(i) }

// exactModulus is how many endpoints are balanced by a chain of their own count. Above it counts share
// chains, so that a Service that grows to 100,000 endpoints does not leave 100,000 chains behind.
const exactModulus = 1024

// modulusSteps is how many moduli there are between two powers of two above exactModulus. With 32, at
// most 1 slot in 33 is empty, so a draw misses with p < 1/33, and after drawsAbove draws with 1/33^6 <
// 1e-9: the excess of slot 0, which then serves, is far below what any count of connections can show.
const (
	modulusSteps = 32
	drawsAbove   = 6
)

// Modulus returns the number of slots that a balancer of n endpoints draws from: n itself up to 1,024, the
// next of 32 steps per power of two above.
func Modulus(n int) uint32 {
	if n <= exactModulus {
		return uint32(n)
	}
	step := 1 << (bits.Len(uint(n-1)) - 1) / modulusSteps
	return uint32((n + step - 1) / step * step)
}

// draws is how often a balancer of modulus m draws before it falls back to slot 0. An exact modulus needs
// one: all slots are taken.
func draws(m uint32) int {
	if m <= exactModulus {
		return 1
	}
	return drawsAbove
}
