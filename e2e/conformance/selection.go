// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// rule leaves tests out, for a reason that a reader can check.
type rule struct {
	match  *regexp.Regexp
	reason string
}

// groups are the parts of [sig-network] that are about Services and the proxy that serves them; a test of another part is
// not listed at all. The names are those of the Describe blocks of test/e2e/network.
var groups = regexp.MustCompile(`^\[sig-network\] (` + strings.Join([]string{
	`Services`, `Conntrack`, `Networking`, `\[Feature:IPv6DualStack\]`, `EndpointSlice`, `EndpointSliceMirroring`, `Endpoints`,
	`EndpointsController`, `Proxy`, `KubeProxy`, `Traffic Distribution`, `Topology Hints`, `Service CIDRs`,
	`ServiceCIDR and IPAddress API`, `Service endpoints latency`, `HostPort`, `NoSNAT`, `Connectivity Pod Lifecycle`, `DNS`,
	`LoadBalancers`, `LoadBalancers ExternalTrafficPolicy: Local`,
}, "|") + `)( |$)`)

// rules are asked in this order; the first that matches a test leaves it out. What is not left out is run, and may still
// skip itself: its own words then stand in the table.
var rules = []rule{
	{regexp.MustCompile(`\[sig-network\] LoadBalancers`), "needs a cloud that gives Services their load balancers"},
	{regexp.MustCompile(`\[Feature:(PerformanceDNS|Networking-Performance)\]`),
		"measures throughput of a pod network or of the DNS server, on more machine than this"},
	{regexp.MustCompile(`Internet connection`), "needs the Internet"},
	{regexp.MustCompile(`iptables rules if they are deleted`), "deletes iptables chains over SSH; what it stands for is in e2e: TestServe"},
	{regexp.MustCompile(`\[Feature:KubeProxyNFAcct\]`), "a counter of kube-proxy's iptables mode"},
	{regexp.MustCompile(`should work after restarting (kube-proxy|apiserver)`),
		"restarts over SSH; what it stands for is in e2e: TestKillAtRandomPoints, e2e/source: TestSourceAPIOutage"},
	{regexp.MustCompile(`configMap nameserver`), "configures kube-dns, not a proxy"},
	{regexp.MustCompile(`configurable pod resolv.conf`), "runs a CoreDNS inside of agnhost's image, which ours has not; about a pod's resolver, not a proxy"},
	{regexp.MustCompile(`\[Provider:GCE\]`), "needs a node on Google's cloud"},
	{regexp.MustCompile(`\[Feature:Windows\]|\[Feature:Ingress\]`), "not about Linux nodes and Services"},
	{regexp.MustCompile(`\[Alpha\]|\[Feature:OffByDefault\]`), "needs a feature gate that is off by default"},
}

// noSCTP leaves out what needs SCTP on a kernel that has none; such a test would wait for its servers until it gives up.
var noSCTP = rule{regexp.MustCompile(`\[Feature:SCTPConnectivity\]`), "the kernel of the nodes has no SCTP"}

// noEviction leaves out the test that has a pod evicted for its files.
var noEviction = rule{regexp.MustCompile(`evicted pods`),
	"the kubelets of e2e/cluster do not count local storage (localStorageCapacityIsolation), so that none evicts"}

// smoke are the Conformance tests of Services.
var smoke = regexp.MustCompile(`^\[sig-network\] Services .*\[Conformance\]`)

// apart are the tests that upstream runs one at a time.
var apart = regexp.MustCompile(`\[(Serial|Disruptive)\]`)

// test is one of upstream's, by its full text.
type test struct {
	Name string
	// Skip says why it is not run; empty when it is.
	Skip string
}

// Serial reports whether the test must be alone in the cluster.
func (t test) Serial() bool { return apart.MatchString(t.Name) }

// sortOut judges every test that upstream lists: those of our groups, in upstream's order, with what is left out and why,
// by the rules and by those that hold on this machine alone.
func sortOut(names []string, only *regexp.Regexp, here ...rule) []test {
	var list []test
	for _, name := range names {
		if !groups.MatchString(name) || only != nil && !only.MatchString(name) {
			continue
		}
		list = append(list, test{Name: name, Skip: reason(name, append(here, rules...))})
	}
	return list
}

// reason is why a test is left out.
func reason(name string, rules []rule) string {
	for _, r := range rules {
		if r.match.MatchString(name) {
			return r.reason
		}
	}
	return ""
}

// listed reads what `e2e.test --list-tests` prints: lines of "    file:line: full text".
func listed(r io.Reader) ([]string, error) {
	var names []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if _, name, ok := strings.Cut(lines.Text(), ": ["); ok && strings.HasPrefix(lines.Text(), "    ") {
			names = append(names, "["+name)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no test in the list")
	}
	return names, nil
}

// focus is the regular expression of exactly these tests. Ginkgo matches it against the full text, behind the name of the
// suite.
func focus(tests []test) string {
	quoted := make([]string, len(tests))
	for i, t := range tests {
		quoted[i] = regexp.QuoteMeta(t.Name)
	}
	return "(" + strings.Join(quoted, "|") + ")$"
}

// parts are the tests that are run beside others, and those that are run alone.
func parts(tests []test) (beside, alone []test) {
	for _, t := range tests {
		switch {
		case t.Skip != "":
		case t.Serial():
			alone = append(alone, t)
		default:
			beside = append(beside, t)
		}
	}
	return beside, alone
}
