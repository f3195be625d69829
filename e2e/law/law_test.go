// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package law holds the rules that the code as a whole keeps: who may import whom, and what the product never does.
package law

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/nftproxy/nftproxy/"

// mayImport says which of our packages those below a folder may use. What is not listed may use none.
var mayImport = map[string][]string{
	"nft":       {},
	"routing":   {},
	"ctsync":    {},
	"proxier":   {"proxier", "nft", "routing", "ctsync"},
	"cmd":       {"proxier", "nft", "routing", "ctsync", "cmd"},
	"manifests": {"proxier", "nft", "routing", "ctsync", "cmd"},
	"e2e":       {"e2e", "proxier", "nft", "routing", "ctsync"},
}

// kubernetesFree are the packages that know nothing of Kubernetes.
var kubernetesFree = []string{"nft", "routing", "ctsync"}

// root is the repository's.
const root = "../.."

func top(pkg string) string { return strings.SplitN(pkg, "/", 2)[0] }

func TestImportsRunOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, module+"...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	packages := 0
	for sc := bufio.NewScanner(strings.NewReader(string(out))); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		from, ok := strings.CutPrefix(fields[0], module)
		if !ok {
			continue
		}
		packages++
		for _, imp := range fields[1:] {
			if to, ours := strings.CutPrefix(imp, module); ours && top(to) != top(from) && !contains(mayImport[top(from)], top(to)) {
				t.Errorf("%s imports %s", from, to)
			}
			if contains(kubernetesFree, top(from)) && strings.HasPrefix(imp, "k8s.io/") {
				t.Errorf("%s imports %s, but knows nothing of Kubernetes", from, imp)
			}
			if imp == "os/exec" && top(from) != "e2e" {
				t.Errorf("%s imports os/exec: the product executes no binary", from)
			}
		}
	}
	if packages < 10 {
		t.Errorf("saw only %d packages", packages)
	}
}

func contains(list []string, v string) bool {
	for _, s := range list {
		if s == v {
			return true
		}
	}
	return false
}

// Budgets of length: a function that is longer holds several thoughts, a file several subjects.
const (
	maxFunction = 60
	maxFile     = 450
)

func TestLengths(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, filepath.Join(root, "e2e")) {
			return err
		}
		return lengths(t, path)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func lengths(t *testing.T, path string) error {
	files := token.NewFileSet()
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(files, path, src, parser.ParseComments)
	if err != nil {
		return err
	}
	if n := strings.Count(string(src), "\n"); n > maxFile {
		t.Errorf("%s has %d lines, at most %d", path, n, maxFile)
	}
	if !strings.HasPrefix(string(src), "// Copyright 2026 The nftproxy Authors\n// SPDX-License-Identifier: Apache-2.0\n") {
		t.Errorf("%s lacks the licence header", path)
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			if n := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; n > maxFunction && !tableLiteral(f) {
				t.Errorf("%s has %d lines, at most %d", fmt.Sprintf("%s: %s", path, f.Name.Name), n, maxFunction)
			}
		}
	}
	return nil
}

// tableLiteral tells functions that are one literal with a return around it.
func tableLiteral(f *ast.FuncDecl) bool {
	if f.Body == nil || len(f.Body.List) == 0 {
		return false
	}
	_, ok := f.Body.List[len(f.Body.List)-1].(*ast.ReturnStmt)
	return ok && len(f.Body.List) <= 2
}
