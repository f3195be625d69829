// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	. "github.com/nftproxy/nftproxy/nft"
)

// others is what must stay: the kubelet's chains, a user's, and a CNI plugin's that uses a chain of kube-proxy.
const others = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:MY-KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp --dport 22 -j ACCEPT
-A FORWARD -j MY-KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A MY-KUBE-SERVICES -m comment --comment "jumps to KUBE-SERVICES" -j RETURN
COMMIT
`

// kubeProxys is what kube-proxy writes in iptables mode, with one Service; %s are two addresses.
const kubeProxys = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT 1 -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT 1 -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-I INPUT 1 -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-I FORWARD 1 -j KUBE-FORWARD
-I FORWARD 1 -m conntrack --ctstate NEW -j KUBE-SERVICES
-I OUTPUT 1 -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXT-V2OKYYMBY3REGZOG - [0:0]
:KUBE-SVC-V2OKYYMBY3REGZOG - [0:0]
:KUBE-SEP-W65CRSTGWBQXZ3LN - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODEPORTS -p tcp --dport 30001 -j KUBE-EXT-V2OKYYMBY3REGZOG
-A KUBE-EXT-V2OKYYMBY3REGZOG -j KUBE-MARK-MASQ
-A KUBE-EXT-V2OKYYMBY3REGZOG -j KUBE-SVC-V2OKYYMBY3REGZOG
-A KUBE-SERVICES -d %[1]s -p tcp --dport 80 -j KUBE-SVC-V2OKYYMBY3REGZOG
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-V2OKYYMBY3REGZOG -j KUBE-SEP-W65CRSTGWBQXZ3LN
-A KUBE-SEP-W65CRSTGWBQXZ3LN -s %[2]s -j KUBE-MARK-MASQ
-A KUBE-SEP-W65CRSTGWBQXZ3LN -p tcp -j DNAT --to-destination %[3]s
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
`

// kubeProxyRules returns the rules of a family.
func kubeProxyRules(f Family) string {
	vip, ep := addr(f, "10.96.0.1", "fd00:10:96::1"), addr(f, "10.244.0.1", "fd00:244::1")
	to := ep.String() + ":8080"
	if f == IPv6 {
		to = "[" + ep.String() + "]:8080"
	}
	return fmt.Sprintf(kubeProxys, vip, ep, to)
}

func (n *namespace) restore(t *testing.T, f Family, text string) {
	t.Helper()
	tool := "iptables-nft-restore"
	if f == IPv6 {
		tool = "ip6tables-nft-restore"
	}
	if _, err := exec.LookPath(tool); err != nil {
		if os.Getenv("NFTPROXY_KERNEL") == "required" {
			t.Fatalf("%v: install iptables", err)
		}
		t.Skipf("%v: install iptables", err)
	}
	if out, err := n.run(text, tool, "--noflush"); err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, out)
	}
}

func TestKubeProxyLeftoversGoAndNothingElse(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	for _, f := range Families() {
		n.restore(t, f, others+"*nat\nCOMMIT\n")
		n.nft(t, "", "add", "table", f.String(), "strange")
		program(t, k, f, nil, nil)
	}
	before := n.nft(t, "", "list", "ruleset")
	for _, f := range Families() {
		n.restore(t, f, kubeProxyRules(f))
		n.nft(t, fmt.Sprintf("table %s kube-proxy { chain a { }; map m { type inet_service : verdict; elements = { 1 : goto a }; }; }", f), "-f", "-")
	}
	got, err := k.RemoveKubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	// 1 chain in mangle, 6 in filter, 8 in nat; 6 and 3 jumps: in both families.
	if got.Chains != 2*15 || got.Rules != 2*9 || len(got.Kept) != 0 || !slices.Equal(got.Tables, []string{"ip kube-proxy", "ip6 kube-proxy"}) {
		t.Errorf("says that it removed %+v", got)
	}
	// iptables-nft made the base chains of nat; they are empty and not kube-proxy's.
	after := n.nft(t, "", "list", "ruleset")
	for _, f := range Families() {
		n.nft(t, "", "delete", "table", f.String(), "nat")
		n.nft(t, "", "list", "table", f.String(), "strange")
	}
	if strings.Contains(after, "KUBE-SERVICES\"") || strings.Contains(after, "kube-proxy") {
		t.Errorf("left behind:\n%s", after)
	}
	if after := n.nft(t, "", "list", "ruleset"); sorted(after) != sorted(before) {
		t.Errorf("changed more than kube-proxy's:\n%s\n--- was\n%s", after, before)
	}
	if got, err := k.RemoveKubeProxy(); err != nil || got.Chains != 0 || got.Rules != 0 || got.Tables != nil {
		t.Errorf("second time: %+v, %v", got, err)
	}
}

// sorted makes listings comparable: tables come in the order in which they were made.
func sorted(listing string) string {
	lines := strings.Split(listing, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestMarkMasqStaysWhereOthersUseIt(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.restore(t, IPv4, kubeProxyRules(IPv4))
	n.restore(t, IPv4, "*nat\n:CNI-HOSTPORT-SETMARK - [0:0]\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\nCOMMIT\n")
	got, err := k.RemoveKubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	if got.Chains != 14 || !slices.Equal(got.Kept, []string{"ip nat KUBE-MARK-MASQ"}) {
		t.Errorf("says that it removed %+v", got)
	}
	text := n.nft(t, "", "list", "table", "ip", "nat")
	for _, want := range []string{"jump KUBE-MARK-MASQ", "chain KUBE-MARK-MASQ", "0x4000"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is gone:\n%s", want, text)
		}
	}
}

// More chains than one transaction takes.
func TestManyKubeProxyChainsGo(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	var chains, rules strings.Builder
	const services = ChunkSize + 10
	for i := range services {
		fmt.Fprintf(&chains, ":KUBE-SVC-%d - [0:0]\n", i)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -p tcp --dport %d -j KUBE-SVC-%d\n", i+1, i)
	}
	n.restore(t, IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n"+chains.String()+"-A PREROUTING -j KUBE-SERVICES\n"+rules.String()+"COMMIT\n")
	got, err := k.RemoveKubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	if got.Chains != services+1 || got.Rules != 1 {
		t.Errorf("says that it removed %+v", got)
	}
	if text := n.nft(t, "", "list", "ruleset"); strings.Contains(text, "KUBE-") {
		t.Errorf("left behind:\n%s", text)
	}
}

func TestRemoveTablesTakesOursOnly(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.nft(t, "", "add", "table", "ip", "other")
	before := n.nft(t, "", "list", "ruleset")
	for _, f := range Families() {
		program(t, k, f, nil, nil)
	}
	for _, want := range [][]string{{"ip nftproxy", "ip6 nftproxy"}, nil} {
		if got, err := k.RemoveTables(); err != nil || !slices.Equal(got.Tables, want) {
			t.Errorf("removed %v, %v, want %v", got, err, want)
		}
	}
	if after := n.nft(t, "", "list", "ruleset"); after != before {
		t.Errorf("%s\n--- was\n%s", after, before)
	}
}

func addr(f Family, v4, v6 string) netip.Addr {
	if f == IPv4 {
		return netip.MustParseAddr(v4)
	}
	return netip.MustParseAddr(v6)
}
