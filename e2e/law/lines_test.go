// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package law

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// maxLines is how many lines of product code a folder may have, tests left out, comments included. A package counts for the
// longest folder it lies in. A number may be raised on purpose only, in the commit that needs it and says why; where a package
// has become shorter, lower its number in the same commit.
var maxLines = map[string]int{
	"cmd/nftproxy":      2620,
	"ctsync":            660,
	"ctsync/kernel":     890,
	"internal":          470,
	"nft":               4620,
	"nft/kernel":        1890,
	"proxier":           3470,
	"proxier/config":    1500,
	"proxier/events":    220,
	"proxier/explain":   1650,
	"proxier/health":    710,
	"proxier/inspect":   1800,
	"proxier/kube":      1530,
	"proxier/localhost": 750,
	"proxier/manifests": 560,
	"proxier/metrics":   740,
	"proxier/services":  1250,
	"proxier/sysctl":    220,
	"proxier/trace":     610,
	"routing":           1550,
	"routing/kernel":    1200,
}

// maxTotal is how many lines of product code there may be in all.
const maxTotal = 28620

// Comments are between these shares of product lines: a reader needs some, and code that needs more is not clear enough.
const minComments, maxComments = 0.12, 0.27

func TestLines(t *testing.T) {
	type count struct{ lines, comments int }
	counts, total := map[string]count{}, count{}
	for _, name := range tracked(t, "*.go") {
		if !isProduct(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not committed yet
		} else if err != nil {
			t.Fatal(err)
		}
		folder := ""
		for f := range maxLines {
			if below(filepath.Dir(name), f) && len(f) > len(folder) {
				folder = f
			}
		}
		if folder == "" {
			t.Errorf("%s lies in no folder that maxLines has", name)
		}
		n, c := bytes.Count(text, []byte("\n")), commentLines(text)
		was := counts[folder]
		counts[folder] = count{was.lines + n, was.comments + c}
		total.lines, total.comments = total.lines+n, total.comments+c
	}

	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "lines\tat most\tcomments\t ")
	for _, f := range sortedFolders() {
		c := counts[f]
		if c.lines > 0 {
			fmt.Fprintf(w, "%d\t%d\t%.0f%%\t %s\n", c.lines, maxLines[f], 100*share(c.comments, c.lines), f)
		}
		if c.lines > maxLines[f] {
			t.Errorf("%s has %d lines, at most %d", f, c.lines, maxLines[f])
		}
	}
	fmt.Fprintf(w, "%d\t%d\t%.0f%%\t in all\n", total.lines, maxTotal, 100*share(total.comments, total.lines))
	w.Flush()
	t.Logf("\n%s", &table)

	if total.lines > maxTotal {
		t.Errorf("%d lines in all, at most %d", total.lines, maxTotal)
	}
	if s := share(total.comments, total.lines); s < minComments || s > maxComments {
		t.Errorf("%.1f%% of the lines are comments, want %.0f to %.0f%%", 100*s, 100*minComments, 100*maxComments)
	}
}

func share(part, whole int) float64 { return float64(part) / float64(max(whole, 1)) }

func sortedFolders() (out []string) {
	for f := range maxLines {
		out = append(out, f)
	}
	slices.Sort(out)
	return out
}

// commentLines counts the lines that hold nothing but a comment.
func commentLines(text []byte) (n int) {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, text, nil, scanner.ScanComments)
	last := 0 // line of the last token that is no comment
	for {
		pos, tok, literal := s.Scan()
		switch line := file.Line(pos); {
		case tok == token.EOF:
			return n
		case tok == token.COMMENT && line != last:
			n += 1 + strings.Count(literal, "\n")
		case tok != token.COMMENT:
			last = line
		}
	}
}

// isProduct reports whether a Go file is part of the product: neither a test nor a tool of the repository.
func isProduct(name string) bool {
	if strings.HasSuffix(name, "_test.go") {
		return false
	}
	return slices.ContainsFunc([]string{"cmd", "nft", "routing", "ctsync", "proxier", "internal"}, func(f string) bool { return below(name, f) })
}

// tracked lists the files that git knows.
func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"ls-files", "--"}, patterns...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	return strings.Fields(string(out))
}

// topLevel is all that lies in the repository's root.
var topLevel = []string{
	".ci", ".gitattributes", ".gitignore", ".golangci.yaml", "LICENSE", "Makefile", "README.md",
	"cmd", "ctsync", "docs", "e2e", "examples", "go.mod", "go.sum", "internal", "manifests", "nft", "proxier", "routing",
}

func TestTopLevel(t *testing.T) {
	for _, name := range tracked(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(topLevel, top) {
			t.Errorf("%s: %s has no place at the top of the repository (topLevel)", name, top)
		}
	}
}

func TestLicenceHeaders(t *testing.T) {
	const header = "// Copyright 2026 The nftproxy Authors\n// SPDX-License-Identifier: Apache-2.0\n"
	for _, name := range tracked(t, "*.go") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil && !bytes.HasPrefix(text, []byte(header)) {
			t.Errorf("%s lacks the licence header", name)
		}
	}
}
