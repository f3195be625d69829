// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package law

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// acyclic are the packages whose files call each other in one direction only, so that they can be read from the top down,
// with the number of files that are still part of a cycle.
var acyclic = map[string]int{
	"proxier": 0,
}

// TestFilesCallOneWay fails when two files of a package call each other, directly or by way of others. A call or any other use
// of a function or method counts. Types, constants and fields do not: they are shared by nature. Neither do calls by way of
// interfaces and function values, which are how something below reports to something above.
func TestFilesCallOneWay(t *testing.T) {
	for path, allowed := range acyclic {
		calls := callsBetweenFiles(t, "./"+path)
		cycles := cyclesOf(calls)
		inCycles := 0
		var text strings.Builder
		for _, files := range cycles {
			inCycles += len(files)
			for _, from := range files {
				for _, to := range files {
					if uses := calls[from][to]; len(uses) > 0 {
						fmt.Fprintf(&text, "\n  %s -> %s: %s", from, to, strings.Join(slices.Sorted(maps.Keys(uses)), ", "))
					}
				}
			}
		}
		if inCycles > allowed {
			t.Errorf("%s: %d files call each other in circles, at most %d:%s", path, inCycles, allowed, &text)
		} else if inCycles > 0 {
			t.Logf("%s: %d files call each other in circles:%s", path, inCycles, &text)
		}
	}
}

// graph maps a file to the files that it calls, and to the names of what it calls there.
type graph map[string]map[string]map[string]bool

// callsBetweenFiles type-checks a package against the export data of its imports.
func callsBetweenFiles(t *testing.T, pattern string) graph {
	t.Helper()
	exports := map[string]string{}
	listed := list(t, "-export", "-deps", pattern)
	for _, p := range listed {
		exports[p.ImportPath] = p.Export
	}
	target := listed[len(listed)-1] // dependencies come first

	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range target.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(target.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := conf.Check(target.ImportPath, fset, files, info)
	if err != nil {
		t.Fatal(err)
	}

	file := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	out := graph{}
	for ident, object := range info.Uses {
		used, ok := object.(*types.Func)
		if !ok || used.Pkg() != pkg || ofInterface(used) {
			continue
		}
		from, to := file(ident.Pos()), file(used.Origin().Pos())
		if from == to {
			continue
		}
		if out[from] == nil {
			out[from] = map[string]map[string]bool{}
		}
		if out[from][to] == nil {
			out[from][to] = map[string]bool{}
		}
		out[from][to][used.Name()] = true
	}
	return out
}

// ofInterface reports whether a function is a method of an interface.
func ofInterface(f *types.Func) bool {
	recv := f.Signature().Recv()
	return recv != nil && types.IsInterface(recv.Type())
}

// cyclesOf returns the sets of files that reach each other, of two files or more: Tarjan's strongly connected components.
func cyclesOf(g graph) (out [][]string) {
	index, low := map[string]int{}, map[string]int{}
	onStack := map[string]bool{}
	var stack []string
	var visit func(v string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack = append(stack, v)
		onStack[v] = true
		for _, w := range slices.Sorted(maps.Keys(g[v])) {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if onStack[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		at := slices.Index(stack, v)
		component := slices.Sorted(slices.Values(stack[at:]))
		for _, w := range component {
			onStack[w] = false
		}
		stack = stack[:at]
		if len(component) > 1 {
			out = append(out, component)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(g)) {
		if index[v] == 0 {
			visit(v)
		}
	}
	return out
}

func TestCyclesOf(t *testing.T) {
	edge := func(to ...string) map[string]map[string]bool {
		out := map[string]map[string]bool{}
		for _, v := range to {
			out[v] = map[string]bool{"f": true}
		}
		return out
	}
	g := graph{"a": edge("b", "d"), "b": edge("c"), "c": edge("b", "e"), "e": edge("f"), "f": edge("g"), "g": edge("e")}
	if got := fmt.Sprint(cyclesOf(g)); got != "[[e f g] [b c]]" {
		t.Errorf("cycles: %s", got)
	}
	delete(g, "c")
	delete(g, "g")
	if got := cyclesOf(g); got != nil {
		t.Errorf("cycles where there are none: %v", got)
	}
}
