// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// pages are the README and docs/.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil || len(names) < 5 {
		t.Fatalf("pages %q: %v", names, err)
	}
	out := map[string]string{}
	for _, name := range append(names, filepath.Join(top, "README.md")) {
		out[name] = read(t, name)
	}
	return out
}

// TestLinks: what a page links to is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// commands are the lines of the shell blocks of a page, continued lines joined, without comments and prompts.
func commands(text string) (out []string) {
	block := regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```")
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		for line := range strings.SplitSeq(strings.ReplaceAll(m[2], "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			if m[1] == "console" {
				_, line, _ = strings.Cut(line, "# ")
			}
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, line)
			}
		}
	}
	return out
}

// TestCommands: what the commands of the pages name exists: files of manifests/ and examples/, targets of the Makefile,
// and flags of nftproxy.
func TestCommands(t *testing.T) {
	makefile := read(t, top, "Makefile")
	file := regexp.MustCompile(`\b(?:manifests|examples|e2e)/[a-z0-9/._-]+[a-z0-9]`)
	target := regexp.MustCompile(`^make ([a-z]+)`)
	checked := 0
	for name, text := range pages(t) {
		for _, c := range commands(text) {
			for _, f := range file.FindAllString(c, -1) {
				if _, err := os.Stat(filepath.Join(top, f)); err != nil {
					t.Errorf("%s: %s: %v", name, c, err)
				}
				checked++
			}
			if m := target.FindStringSubmatch(c); m != nil && !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: %s: no such target", name, c)
			}
			checked += flagsExist(t, name, c)
		}
	}
	if checked < 20 {
		t.Errorf("checked %d things only", checked)
	}
}

// flagsExist checks the flags of a call of nftproxy.
func flagsExist(t *testing.T, page, command string) (checked int) {
	t.Helper()
	call := regexp.MustCompile(`(?:^|[ /])nftproxy((?: [a-z]+)?)((?: [^;|]*)?)`).FindStringSubmatch(command)
	if call == nil || strings.HasPrefix(command, "kubectl") && !strings.Contains(command, " -- ") || strings.HasPrefix(command, "nft ") {
		return 0
	}
	if _, after, ok := strings.Cut(command, " -- "); ok {
		return flagsExist(t, page, after)
	}
	sub := strings.TrimSpace(call[1])
	help, err := exec.Command(lab.Must(lab.NftproxyBinary())(t), append(strings.Fields(sub), "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", page, command, err, help)
	}
	if sub != "" && !strings.Contains(string(help), "nftproxy "+sub) {
		t.Errorf("%s: %s: no such subcommand", page, command)
	}
	for _, f := range regexp.MustCompile(`(?:^| )(--?[a-z][a-z-]*)`).FindAllStringSubmatch(call[2], -1) {
		checked++
		if !regexp.MustCompile(`(?m)^ +(-[a-z], )?` + f[1] + `\b|^ +` + f[1] + `, `).Match(help) {
			t.Errorf("%s: %s: no flag %s", page, command, f[1])
		}
	}
	return checked
}
