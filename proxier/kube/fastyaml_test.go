// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// checkFastYAML holds fastJSON against the complete parser: what it reads, it reads the same.
func checkFastYAML(t *testing.T, doc string) (fast bool) {
	t.Helper()
	got, ok := fastJSON(nil, []byte(doc))
	if !ok {
		return false
	}
	slow, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatalf("%q: read as %s, but is no YAML: %v", doc, got, err)
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%q: %s is no JSON: %v", doc, got, err)
	}
	if err := json.Unmarshal(slow, &b); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b, a); d != "" {
		t.Fatalf("%q: (-complete +fast)\n%s", doc, d)
	}
	return true
}

func TestFastYAML(t *testing.T) {
	for _, doc := range []string{
		"a: 1\n", "a: b", "a:\n  b: 1\n  c: two words\n", "a:\n- b\n- c: 1\n  d: x\n-\n  e: 1\n-\n- - f\n  - g\nh: i\n",
		"# comment\n\na: b # comment\nb: 'it is' # x\nc: \"a\\\"b\\n\"   \n", "a: {b: 1, c: [x, 'y', \"z\"], d: {}, e: []}\n",
		"a: 10.96.0.1\nb: 10.0.0.0/8\nc: fd00::1\nd: 2001:db8::1/64\ne: /x\nf: ~\ng: null\nh: true\ni: false\nj: 0\nk: 123\n",
		"a:\nb:\n  c:\nd: 1\n", "'a b': 1\n\"c\": 2\n", "a: b#c\nd: http://x/y?z\ne: a,b\n", "- 1\n- a\n",
		"a:\n    - b: 1\n      c:\n        d: 1\n    - e\n", "a: x'y\nb: x\"y\nc: a\\b\n", "a:    \n  b:   1   \n",
		"a: [10.0.0.1, fd00::1]\n", "annotations: {a.b/c-d: \"{}\"}\n",
	} {
		if !checkFastYAML(t, doc) {
			t.Errorf("%q is left to the slow parser", doc)
		}
	}
	for _, doc := range []string{
		"", "\n", "# x", "a", "a: yes", "a: 1.5", "a: 010", "a: 0x1", "a: 2026-01-02", "a: &x b", "a: *x", "a: !!str b", "a: |\n  x\n", "a: >\n  x\n",
		"a: b\n  c\n", "a: [b,\n c]", "a: \"x\n  y\"", "a: 'it''s'", "a: \"\\x41\"", "a: b: c", "a:b", "?a: b", "a:\tb", "a: ü", "y: 1", "1: 2", "{a: 1}", "a: {b}", "a: -", "a: -1",
		"a: 1\n b: 2", "a:\n  b: 1\n c: 2", "- a\nb: 1", "a:\n  - b\n  c: 1", "---\na: 1", "a: 1\n---\n", "a: 1\n...\n", "%YAML 1.1\n", "a: 'x'#y", "a: \"x\" y", "a: [b] c", "a: 1_000",
		"a: 123456789012345678901", strings.Repeat("k", 1100) + ": 1", strings.Repeat("- ", 100) + "a", "a: .5", "a: +1", "a: 1e3", "a: Null", "<<: {a: b}", "a: =",
	} {
		if checkFastYAML(t, doc) {
			t.Logf("%q is read too, and rightly", doc)
		}
	}
}

// TestFastYAMLMutated edits real manifests at random, with what YAML gives a meaning to, and compares.
func TestFastYAMLMutated(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	docs := []string{
		strings.ReplaceAll(manifest(1, 2), "---\n", ""), svc("a", "10.96.0.1"),
		"a: {b: [c, 'd', \"e\"], f: {}}\nl:\n- - x\n  - y\n-\n  k: v\n- [1, 2]\nn:\n  - o: 1\n    p: ~\n",
	}
	atoms := []string{
		" ", "  ", "\n", "\n  ", "\n- ", "- ", ": ", ":", ",", "[", "]", "{", "}", "'", "\"", "\\", "#", " #", "&", "*", "!", "|", ">", "%", "@", "?", "-", "---", "...",
		"0", "1", "-1", "1.5", "0x1", "1e3", "010", "true", "yes", "No", "null", "~", "2026-01-02", "1:2:3", "::1", "<<", "=", "a", "\t", "\r", "ü", "_", "",
	}
	fast := 0
	for range 5000 {
		doc := docs[rng.IntN(len(docs))]
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(doc) + 1)
			end := min(len(doc), at+rng.IntN(4))
			doc = doc[:at] + atoms[rng.IntN(len(atoms))] + doc[end:]
		}
		if checkFastYAML(t, doc) {
			fast++
		}
	}
	if fast < 200 {
		t.Errorf("only %d of 5000 documents were read the fast way: the test is worth little", fast)
	}
	t.Logf("%d of 5000 read the fast way", fast)
}

func FuzzFastYAML(f *testing.F) {
	for _, doc := range []string{
		"a: 1\nb:\n- c: d\n  e: {f: [g, 'h']}\n-\n- - i\n", "a: 10.96.0.1\nb: fd00::1 # c\nd: \"e\\n\"\n'f': ~\n", "- a:\n  - b\n  c:\n    d: e\n", "a: yes\nb: 1.5\nc: 0x1\nd: -1\n",
	} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) { checkFastYAML(t, doc) })
}
