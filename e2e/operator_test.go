// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// cleanup beside a proxy that runs would be undone at once: it is refused, unless it is forced; a dry run shows all and removes
// nothing.
func TestCleanupBesideProxy(t *testing.T) {
	c := fromManifests(t, lab.Options{Nodes: 1})
	svc := lab.NewService("web", 20, lab.Port(lab.TCP, 80, 8080))
	c.apply(svc, lab.NewSlices(svc, c.Pod(1, 1).Endpoint()))
	proxy, node, bin := c.start()[0], c.Node(1), lab.Must(lab.NftproxyBinary())(t)
	tables := func() int {
		return strings.Count(lab.Must(lab.NFT(node.Host, "list", "tables"))(t), "nftproxy")
	}
	lab.Must(node.Run(bin, "dump"))(t)
	out, err := node.Run(bin, "cleanup")
	if err == nil || !strings.Contains(err.Error(), "serves this network namespace") || out != "" || tables() != 2 {
		t.Errorf("beside a proxy: %q, %v, %d tables", out, err, tables())
	}
	out = lab.Must(node.Run(bin, "cleanup", "--dry-run"))(t)
	if !strings.Contains(out, "would remove table ip nftproxy\nwould remove table ip6 nftproxy\n") || tables() != 2 {
		t.Errorf("dry run: %q, %d tables", out, tables())
	}
	if out = lab.Must(node.Run(bin, "cleanup", "--force"))(t); !strings.Contains(out, "removed table ip nftproxy") {
		t.Errorf("by force: %q", out)
	}
	if err := proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	if log := proxy.Tail(1); !strings.Contains(log, "Ending on a signal") {
		t.Errorf("the last line of a stopped proxy: %s", log)
	}
	lab.Must(node.Run(bin, "cleanup"))(t)
	if n := tables(); n != 0 {
		t.Errorf("%d tables after the proxy ended", n)
	}
	// A check by the exit code of dump notices that nothing is programmed.
	if out, err := node.Run(bin, "dump"); !isAnswer(err) {
		t.Errorf("dump without tables: %v: %s", err, out)
	}
}

// A proxy that cannot work leaves the node as it is.
func TestNothingIsSetBeforeTheSourceIsUsable(t *testing.T) {
	c := fromManifests(t, lab.Options{Nodes: 1})
	const name = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
	read := func() string { return lab.Must(c.Node(1).Run("cat", name))(t) }
	before := read()
	for _, args := range [][]string{{"--kubeconfig=/nope"}, {"--manifests=/nope"}, {"--config=/nope"}} {
		_, err := c.Node(1).Run(append([]string{lab.Must(lab.NftproxyBinary())(t), "--conntrack-max-per-core=0", "--oom-score-adj=0"}, args...)...)
		if after := read(); err == nil || after != before {
			t.Errorf("%v: %v, %s was %s, is %s", args, err, name, before, after)
		}
	}
}

// What is wrong with a command line is said with what would be right.
func TestUsageErrors(t *testing.T) {
	c := fromManifests(t, lab.Options{Nodes: 1})
	for line, want := range map[string]string{
		"explain tcp": "Usage: nftproxy explain PROTOCOL ADDRESS:PORT|NAMESPACE/NAME:PORT",
		"explain tcp 10.96.0.1:80 --from 10.1.2.3 --iif nope": "--iif nope: ",
		"explain tcp default/nope:http":                       "no table has an address of Service default/nope:http for tcp",
		"dump --service web":                                  "must be NAMESPACE/NAME",
		"dump x":                                              "Usage: nftproxy dump",
		"trace --service web":                                 "must be NAMESPACE/NAME",
		"trace tcp --timeout 0s":                              "--timeout 0s: must be above 0",
		"trace tcp --count -1":                                "--count -1: must not be negative",
		"trace tcp --rate 0":                                  "--rate 0: must be from 1 to",
		"dump --diff --master=http://127.0.0.1:1":             "127.0.0.1:1: connect: connection refused",
	} {
		if _, err := c.Node(1).Run(append([]string{lab.Must(lab.NftproxyBinary())(t)}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "exit status 2") {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	// Of the proxy itself, with its many flags, too.
	if _, err := c.Node(1).Run(lab.Must(lab.NftproxyBinary())(t), "--hostname-overide=x"); err == nil || strings.Count(err.Error(), "--") > 3 || !strings.Contains(err.Error(), "Usage: nftproxy [flags]") {
		t.Errorf("a mistyped flag: %v", err)
	}
}

// Without CAP_NET_ADMIN each command and the proxy itself name it.
func TestPermissionErrors(t *testing.T) {
	c := fromManifests(t, lab.Options{Nodes: 1})
	for _, line := range []string{
		"dump", "explain tcp 10.96.0.1:80", "trace tcp", "cleanup", "--manifests=" + c.t.TempDir() + " --conntrack-max-per-core=0 --oom-score-adj=0",
	} {
		args := append([]string{"setpriv", "--bounding-set=-net_admin", lab.Must(lab.NftproxyBinary())(t)}, strings.Fields(line)...)
		if _, err := c.Node(1).Run(args...); err == nil || !strings.Contains(err.Error(), "needs CAP_NET_ADMIN") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
