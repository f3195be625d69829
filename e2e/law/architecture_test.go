// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package law

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitecturePage: each function that the table of docs/architecture.md names is there, as Type.Method or package.Function.
func TestArchitecturePage(t *testing.T) {
	have := map[string]bool{}
	for _, p := range ours(t) {
		if below(p.path(), "e2e") {
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if f.Recv == nil {
					have[p.Name+"."+f.Name.Name] = true
				} else {
					have[receiver(f)+"."+f.Name.Name] = true
				}
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## From an EndpointSlice event to the kernel's answer\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := regexp.MustCompile("`([A-Za-z]+\\.[A-Za-z]+)`").FindAllStringSubmatch(section, -1)
	if len(named) < 8 {
		t.Errorf("the page names %d functions only", len(named))
	}
	types := map[string]bool{"nft.Service": true, "kube.EndpointSlice": true, "nft.Batch": true} // not functions
	for _, m := range named {
		if !have[m[1]] && !types[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
}

// receiver is the name of a method's type.
func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	if ident, ok := typ.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}
