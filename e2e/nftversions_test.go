// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/routing"
)

// counters are what differs between two listings of one table while packets pass. Timeouts of clients run down.
var counters = regexp.MustCompile(`counter packets \d+ bytes \d+| expires [0-9dhms]+`)

// nftVersions are the nft versions of the Debian releases of today. nft 0.9.8 lists our tables, but its parser takes the declaration
// of every map with concatenated data for a mistake ("datatype mismatch"), so that it loads neither our tables nor any
// others with such maps; and it prints its warnings about JSON into the JSON.
var nftVersions = []struct {
	suite       string
	json, loads bool
}{{"bullseye", false, false}, {"bookworm", true, true}, {"trixie", true, true}, {"sid", true, true}}

// TestNFTVersions: each nft lists our tables with every feature in them, as text and as JSON, and loads what it has listed into
// an empty namespace, where it lists the same again. That is law 3: an administrator who saves the ruleset of a node and
// loads it at boot must get a node that boots.
func TestNFTVersions(t *testing.T) {
	b := newBeyond(t, func(c *routing.Config) { c.Masquerade.Enabled = true })
	pod, far := b.here(b.Pod(3, 1)), b.Pod(2, 1).Endpoint()
	b.add(nil, pod, far)
	b.add(localITP, pod, b.node.Endpoint())
	b.add(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, far)
	b.add(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, pod, far)
	b.add(func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"172.18.0.0/16", "192.0.2.0/28", "198.51.100.7/32", "10.0.0.0/9", "fd00:18::/64", "2001:db8::1/128", "2001:db8:8000::/33"}
	}, far)
	b.add(nil)

	for _, v := range nftVersions {
		t.Run(v.suite, func(t *testing.T) {
			path := lab.Must(exec.Command("nftversions/get.sh", v.suite).Output())(t)
			nft := strings.TrimSpace(string(path))
			t.Log(strings.TrimSpace(string(lab.Must(exec.Command(nft, "--version").Output())(t))))
			asJSON := lab.Must(b.node.Run(nft, "-j", "list", "ruleset"))(t)
			if v.json && !json.Valid([]byte(asJSON)) {
				t.Errorf("nft -j list ruleset is not JSON: %.300s", asJSON)
			}
			// Tables of others are not ours to save: the lab has some of its own.
			var saved strings.Builder
			for _, family := range []string{"ip", "ip6"} {
				saved.WriteString(lab.Must(b.node.Run(nft, "list", "table", family, "nftproxy"))(t))
			}
			if !strings.Contains(saved.String(), "chain nat-postrouting") {
				t.Errorf("nft lists no rules: %.300s", saved.String())
			}
			if !v.loads {
				return
			}
			file := filepath.Join(t.TempDir(), "saved.nft")
			if err := os.WriteFile(file, []byte(saved.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			again := exec.Command("unshare", "--net", "sh", "-c", `"$1" -f "$2" && "$1" list ruleset`, "sh", nft, file)
			var refused strings.Builder
			again.Stderr = &refused
			out, err := again.Output()
			if err != nil {
				t.Fatalf("nft does not load what it has listed: %v\n%.2000s", err, refused.String())
			}
			strip := func(s string) string { return counters.ReplaceAllString(s, "") }
			if was, is := strip(saved.String()), strip(string(out)); was != is {
				t.Errorf("nft lists another ruleset after loading its own:\n%s", firstDifference(was, is))
			}
		})
	}
}

// firstDifference shows two texts around the first line in which they differ.
func firstDifference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range as {
		if i >= len(bs) || as[i] != bs[i] {
			end := min(i+3, len(as), len(bs))
			return "- " + strings.Join(as[i:max(i, end)], "\n- ") + "\n+ " + strings.Join(bs[min(i, len(bs)):max(min(i, len(bs)), end)], "\n+ ")
		}
	}
	return "the second is longer"
}
