// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/nl"
	"github.com/nftproxy/nftproxy/nft"
)

// Removed is what a cleanup removed.
type Removed struct {
	// Tables are whole tables, as "ip nftproxy".
	Tables []string
	// Chains is the number of removed chains of iptables tables, Rules that of rules elsewhere which led to them.
	Chains, Rules int
	// Kept are chains of kube-proxy that stay because rules of other software lead to them.
	Kept []string
}

// RemoveTables deletes our own tables. It is no error if there are none.
func (c *Conn) RemoveTables() (Removed, error) {
	return c.removeTables(func(t tableEntry) bool { return t.name == nft.TableName })
}

// RemoveTraces deletes the tables that a killed trace left behind on a kernel before 5.12. Tables with an owner stay: the
// kernel removes them together with their owner.
func (c *Conn) RemoveTraces() (Removed, error) {
	return c.removeTables(func(t tableEntry) bool { return nft.IsTraceTable(t.name) && t.flags&nft.TableOwner == 0 })
}

// remove commits removals, unless they are only to be shown.
func (c *Conn) remove(batches ...*nft.Batch) error {
	if c.DryRun {
		return nil
	}
	return c.CommitAll(batches, nil)
}

func (c *Conn) removeTables(remove func(tableEntry) bool) (Removed, error) {
	var out Removed
	for _, f := range nft.Families() {
		tables, _, err := stable(func() ([]tableEntry, error) { return c.dumpTables(f) })
		if err != nil {
			return out, fmt.Errorf("list tables of family %s: %w", f, err)
		}
		for _, t := range tables {
			if !remove(t) {
				continue
			}
			b := &nft.Batch{}
			b.DeleteTable(f, t.name)
			switch err := c.remove(b); {
			case errors.Is(err, unix.ENOENT): // removed meanwhile
			case err != nil:
				return out, err
			default:
				out.Tables = append(out.Tables, f.String()+" "+t.name)
			}
		}
	}
	return out, nil
}

// kubeProxyTable is the table of kube-proxy's nftables mode.
const kubeProxyTable = "kube-proxy"

// KubeProxyServes reports whether kube-proxy has written rules of Services in a family, in nftables mode or, with
// iptables-nft, in iptables mode. It writes all of them in one transaction, so one chain represents all.
func (c *Conn) KubeProxyServes(f nft.Family) (bool, error) {
	for table, isService := range map[string]func(chain string) bool{
		// Chains of Services are named service-HASH-namespace/name/protocol/port, and no other has a slash.
		kubeProxyTable: func(chain string) bool { return strings.Contains(chain, "/") },
		"nat":          func(chain string) bool { return strings.HasPrefix(chain, "KUBE-SVC-") },
	} {
		chains, err := c.chainNames(f, table)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(chains, isService) {
			return true, nil
		}
	}
	return false, nil
}

// chainNames lists the chains of a table, none if there is no such table.
func (c *Conn) chainNames(f nft.Family, table string) (names []string, err error) {
	chains, _, err := stable(func() ([]chainEntry, error) { return c.dumpChains(f, table) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("chains of table %s %s: %w", f, table, err)
	}
	for _, ch := range chains {
		names = append(names, ch.name)
	}
	return names, nil
}

// RemoveKubeProxy deletes what kube-proxy left in nf_tables: its own tables, and its chains in the tables of iptables-nft
// together with the rules that lead to them. It leaves everything else alone: KUBE-FIREWALL, KUBE-IPTABLES-HINT and
// KUBE-KUBELET-CANARY are the kubelet's. What iptables-legacy wrote is not in nf_tables and stays.
//
// Call it after our own first commit, so that Services are served all the time. It works in steps, each a transaction: the
// first removes everything that leads to the chains, so that the others concern no packet.
func (c *Conn) RemoveKubeProxy() (Removed, error) {
	out, err := c.removeTables(func(t tableEntry) bool { return t.name == kubeProxyTable })
	if err != nil {
		return out, err
	}
	for _, f := range nft.Families() {
		err := errUnsteady
		for range dumpAttempts {
			var found *kubeProxyChains
			if found, err = c.findKubeProxy(f); err != nil {
				break
			}
			if err = c.remove(found.batches()...); err == nil {
				found.count(&out)
				break
			}
			// Another program, for example the kubelet, may have changed the tables since.
			if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
				break
			}
		}
		if err != nil {
			return out, fmt.Errorf("remove kube-proxy's chains of family %s: %w", f, err)
		}
	}
	return out, nil
}

// iptablesTables are the tables of iptables that kube-proxy writes to.
func iptablesTables() []string { return []string{"filter", "nat", "mangle"} }

// iptablesChain is the name of a chain of an iptables table.
type iptablesChain struct{ table, name string }

// kubeProxyChains are kube-proxy's chains in the iptables tables of a family, and the rules of other chains that lead there.
type kubeProxyChains struct {
	family nft.Family
	chains map[iptablesChain]bool // true for one that stays
	jumps  []iptablesRule
}

// iptablesRule is a rule by its handle.
type iptablesRule struct {
	iptablesChain
	handle uint64
}

// markMasq is the only chain of kube-proxy that other software is known to use (the portmap plugin of CNI can be configured
// so). It is harmless: it sets the mark by which we masquerade, too.
const markMasq = "KUBE-MARK-MASQ"

// isKubeProxys reports whether a chain is one of kube-proxy's iptables and IPVS modes: those of Services and endpoints have a
// hash after the prefix, the others have fixed names.
func isKubeProxys(name string) bool {
	for _, prefix := range []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-XLB-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", markMasq, "KUBE-FORWARD",
		"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}, name)
}

func (c *Conn) findKubeProxy(f nft.Family) (*kubeProxyChains, error) {
	out := &kubeProxyChains{family: f, chains: map[iptablesChain]bool{}}
	for _, table := range iptablesTables() {
		names, err := c.chainNames(f, table)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if isKubeProxys(name) {
				out.chains[iptablesChain{table, name}] = false
			}
		}
	}
	if len(out.chains) == 0 {
		return out, nil // no need to read the rules of others
	}
	for _, table := range iptablesTables() {
		rules, _, err := stable(func() ([]ruleEntry, error) { return c.dumpRules(f, table, "") })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("rules of table %s %s: %w", f, table, err)
		}
		for i := range rules {
			out.rule(table, &rules[i])
		}
	}
	return out, nil
}

// rule notes a rule of another chain that leads to one of kube-proxy's.
func (k *kubeProxyChains) rule(table string, r *ruleEntry) {
	in, target := iptablesChain{table, r.chain}, iptablesChain{table, jumpTarget(r.exprs)}
	_, own := k.chains[in]
	_, leads := k.chains[target]
	switch {
	case own || !leads:
	case target.name == markMasq:
		k.chains[target] = true
	default:
		k.jumps = append(k.jumps, iptablesRule{in, r.handle})
	}
}

// jumpTarget returns the chain that a rule jumps or goes to, empty if there is none.
func jumpTarget(exprs []byte) string {
	for _, e := range nl.Attrs(exprs) {
		data := nl.Find(nl.Find(e, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
		if name := nl.Find(nl.Find(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN); name != nil {
			return nl.Text(name)
		}
	}
	return ""
}

// batches returns the transactions that remove the chains: first the rules that lead to them, then their own rules, which
// refer to each other, then the chains.
func (k *kubeProxyChains) batches() []*nft.Batch {
	jumps := &nft.Batch{}
	for _, r := range k.jumps {
		jumps.Add(nft.Op{Kind: nft.DeleteRule, Family: k.family, Table: r.table, Name: r.name, Handle: r.handle})
	}
	out := []*nft.Batch{jumps}
	var chains []iptablesChain
	for ch, kept := range k.chains {
		if !kept {
			chains = append(chains, ch)
		}
	}
	slices.SortFunc(chains, func(a, b iptablesChain) int { return strings.Compare(a.table+" "+a.name, b.table+" "+b.name) })
	for _, kind := range []nft.OpKind{nft.FlushChain, nft.DeleteChain} {
		for part := range slices.Chunk(chains, nft.ChunkSize) {
			b := &nft.Batch{}
			for _, ch := range part {
				b.Add(nft.Op{Kind: kind, Family: k.family, Table: ch.table, Name: ch.name})
			}
			out = append(out, b)
		}
	}
	return out
}

func (k *kubeProxyChains) count(out *Removed) {
	out.Rules += len(k.jumps)
	for ch, kept := range k.chains {
		if kept {
			out.Kept = append(out.Kept, k.family.String()+" "+ch.table+" "+ch.name)
		} else {
			out.Chains++
		}
	}
	slices.Sort(out.Kept)
}
