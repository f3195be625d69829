// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Removed is what RemoveTables or RemoveKubeProxy took away.
type Removed struct {
	// Tables are whole tables, as "ip nftproxy".
	Tables []string
	// Chains and Rules count the chains of iptables tables, and the rules elsewhere that led to them.
	Chains, Rules int
	// Kept are chains of kube-proxy that stay because rules of others lead to them.
	Kept []string
}

// RemoveTables deletes our own tables. That there are none is no error.
func (k *Kernel) RemoveTables() (Removed, error) { return k.removeTables(TableName) }

// RemoveKubeProxy deletes what kube-proxy left in nf_tables: its own tables, and its chains, with the rules
// that lead to them, in the tables of iptables-nft. It touches nothing else: KUBE-FIREWALL, KUBE-IPTABLES-HINT and
// KUBE-KUBELET-CANARY are the kubelet's. What iptables-legacy wrote is not in nf_tables and stays.
//
// Call it after our own first commit, so that Services are served all the time. It is done in steps, each a
// transaction: the first takes away all that leads to the chains, so that what follows concerns no packet.
func (k *Kernel) RemoveKubeProxy() (Removed, error) {
	out, err := k.removeTables(kubeProxyTable)
	if err != nil {
		return out, err
	}
	for _, f := range Families() {
		err := errUnsteady
		for range readAttempts {
			var found *leftovers
			if found, err = k.findLeftovers(f); errors.Is(err, unix.EINTR) {
				continue
			} else if err != nil {
				break
			}
			if err = k.commitAll(found.batches()); err == nil {
				out.add(found)
				break
			}
			// Somebody else, as the kubelet, may have changed the tables since.
			if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
				break
			}
		}
		if err != nil {
			return out, fmt.Errorf("remove kube-proxy's chains of %s: %w", f, err)
		}
	}
	return out, nil
}

func (k *Kernel) removeTables(name string) (Removed, error) {
	var out Removed
	b := &Batch{}
	for _, f := range Families() {
		w := nfgenmsg(f)
		w.name(unix.NFTA_TABLE_NAME, name)
		switch err := k.request(unix.NFT_MSG_GETTABLE, 0, w, nil, nil); {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return out, fmt.Errorf("get table %s %s: %w", f, name, err)
		}
		b.DeleteTable(f, name)
		out.Tables = append(out.Tables, f.String()+" "+name)
	}
	if err := k.Commit(b); err != nil {
		return Removed{}, err
	}
	return out, nil
}

func (k *Kernel) commitAll(batches []*Batch) error {
	for _, b := range batches {
		if err := k.Commit(b); err != nil {
			return err
		}
	}
	return nil
}

// iptablesChain names a chain of an iptables table.
type iptablesChain struct{ table, name string }

// iptablesRule is a rule that leads to a chain.
type iptablesRule struct {
	iptablesChain
	handle []byte // as the kernel writes it
	target string
}

// leftovers are kube-proxy's chains in the iptables tables of a family, and what leads to them from elsewhere.
type leftovers struct {
	family Family
	chains map[iptablesChain]bool
	jumps  []iptablesRule
	kept   map[iptablesChain]bool
}

// kubeProxyChains are the fixed names of kube-proxy's iptables and IPVS modes.
func kubeProxyChains() []string {
	return []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", markMasq, "KUBE-FORWARD",
		"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
}

// markMasq is the one chain of kube-proxy's that other software is known to use (the portmap plugin of CNI can be
// told to). It is harmless: it sets the mark that we masquerade by, too.
const markMasq = "KUBE-MARK-MASQ"

// isKubeProxys tells kube-proxy's chains; those of Services and endpoints have a hash behind the prefix.
func isKubeProxys(name string) bool {
	for _, prefix := range []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-XLB-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains(kubeProxyChains(), name)
}

// findLeftovers reads the iptables tables that kube-proxy writes to.
func (k *Kernel) findLeftovers(f Family) (*leftovers, error) {
	out := &leftovers{f, map[iptablesChain]bool{}, nil, map[iptablesChain]bool{}}
	for _, table := range []string{"filter", "nat", "mangle"} {
		err := k.eachChain(f, table, func(name string) {
			if isKubeProxys(name) {
				out.chains[iptablesChain{table, name}] = true
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if len(out.chains) == 0 {
		return out, nil // the rules of others need not be read
	}
	for _, table := range []string{"filter", "nat", "mangle"} {
		if err := k.findJumps(out, table); err != nil {
			return nil, fmt.Errorf("rules of table %s %s: %w", f, table, err)
		}
	}
	return out, nil
}

func (k *Kernel) findJumps(out *leftovers, table string) error {
	w := nfgenmsg(out.family)
	w.name(unix.NFTA_RULE_TABLE, table)
	var r iptablesRule
	return k.request(unix.NFT_MSG_GETRULE, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		switch a.Type() {
		case unix.NFTA_RULE_TABLE:
			r.table = a.String()
		case unix.NFTA_RULE_CHAIN:
			r.name = a.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = slices.Clone(a.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			r.target = jumpTarget(a.Bytes())
		}
	}, func() {
		if r.table == table {
			out.rule(r)
		}
		r = iptablesRule{}
	})
}

// rule notes a rule of others that leads to one of the chains.
func (l *leftovers) rule(r iptablesRule) {
	target := iptablesChain{r.table, r.target}
	switch {
	case l.chains[r.iptablesChain] || !l.chains[target]:
	case r.target == markMasq:
		l.kept[target] = true
	default:
		l.jumps = append(l.jumps, r)
	}
}

// jumpTarget returns the chain that a rule jumps or goes to, empty if it does not.
func jumpTarget(list []byte) (target string) {
	eachAttr(list, func(_ uint16, elem []byte) {
		data := attr(attr(elem, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
		if name := attr(attr(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN); name != nil {
			target = strings.TrimRight(string(name), "\x00")
		}
	})
	return target
}

// batches returns the transactions that remove them: first what leads to the chains, then their rules, which refer
// to each other, then the chains.
func (l *leftovers) batches() []*Batch {
	jumps := &Batch{}
	for _, r := range l.jumps {
		w := nfgenmsg(l.family)
		w.name(unix.NFTA_RULE_TABLE, r.table)
		w.name(unix.NFTA_RULE_CHAIN, r.name)
		w.bytes(unix.NFTA_RULE_HANDLE, r.handle)
		jumps.add(unix.NFT_MSG_DELRULE, 0, w, subject{family: l.family, op: "delete rule", name: r.table + " " + r.name})
	}
	out := []*Batch{jumps}
	each := func(typ uint16, op string, tableAttr, nameAttr uint16) {
		b := &Batch{}
		for _, c := range l.removable() {
			w := nfgenmsg(l.family)
			w.name(tableAttr, c.table)
			w.name(nameAttr, c.name)
			b.add(typ, 0, w, subject{family: l.family, op: op, name: c.table + " " + c.name})
			if len(b.msgs) == ChunkSize {
				out = append(out, b)
				b = &Batch{}
			}
		}
		out = append(out, b)
	}
	each(unix.NFT_MSG_DELRULE, "flush chain", unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	each(unix.NFT_MSG_DELCHAIN, "delete chain", unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	return out
}

// removable are the chains without those that are kept, in the order of their names.
func (l *leftovers) removable() []iptablesChain {
	return slices.SortedFunc(maps.Keys(filterMap(l.chains, l.kept)), func(a, b iptablesChain) int {
		return strings.Compare(a.table+" "+a.name, b.table+" "+b.name)
	})
}

func filterMap(all, without map[iptablesChain]bool) map[iptablesChain]bool {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(c iptablesChain, _ bool) bool { return without[c] })
	return out
}

func (r *Removed) add(l *leftovers) {
	r.Chains += len(l.chains) - len(l.kept)
	r.Rules += len(l.jumps)
	for c := range l.kept {
		r.Kept = append(r.Kept, l.family.String()+" "+c.table+" "+c.name)
	}
	slices.Sort(r.Kept)
}
