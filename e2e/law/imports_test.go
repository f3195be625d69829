// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package law

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport lists the packages of this module that the packages below a folder may import. The longest matching folder
// counts; a package may always import those below its own folder. Imports run from the command to the kernel, never back.
var mayImport = map[string][]string{
	"internal":       {"internal"},
	"nft":            {"internal"},
	"nft/kernel":     {"nft", "internal"},
	"routing":        {"internal"},
	"routing/kernel": {"routing", "internal"},
	"ctsync":         {"internal"},
	"ctsync/kernel":  {"ctsync", "internal"},
	"proxier":        {"proxier", "nft", "routing", "ctsync", "internal"},
	"cmd":            {"cmd", "proxier", "nft", "routing", "ctsync", "internal"},
	"manifests":      {"cmd", "proxier", "nft", "routing", "ctsync", "internal"},
	"e2e":            {"e2e", "proxier", "nft", "routing", "ctsync", "internal"},
}

// pure are the packages that compute and nothing else: they open no socket and no file, read no clock and no environment.
// Their subpackage named kernel does that for them.
var pure = []string{"nft", "routing", "ctsync"}

// notPure are imports that a pure package has no use for.
var notPure = []string{
	"os", "os/exec", "os/signal", "syscall", "net", "net/http", "log", "io/ioutil",
	"github.com/mdlayher/netlink", "github.com/mdlayher/socket", "github.com/vishvananda/netlink", "github.com/vishvananda/netns",
	"github.com/ti-mo/conntrack", "github.com/google/nftables", "k8s.io/klog/v2",
}

// clock are the functions of package time that read the clock or wait.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// systemCalls are the functions of golang.org/x/sys/unix that pure packages may use; beside them only constants and types.
var systemCalls = []string{"ByteSliceToString"}

// below reports whether a package path is a folder or lies in it.
func below(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// folderOf returns the longest folder of mayImport that a package lies in.
func folderOf(path string) (best string, ok bool) {
	for folder := range mayImport {
		if below(path, folder) && len(folder) >= len(best) {
			best, ok = folder, true
		}
	}
	return best, ok
}

func isKernel(path string) bool { return strings.HasSuffix(path, "/kernel") }

func isPure(path string) bool {
	return !isKernel(path) && slices.ContainsFunc(pure, func(f string) bool { return below(path, f) })
}

func TestImportsRunOneWay(t *testing.T) {
	for _, p := range ours(t) {
		from := p.path()
		folder, ok := folderOf(from)
		if !ok {
			t.Errorf("%s has no place in the floor plan (mayImport)", from)
			continue
		}
		for _, imp := range p.Imports {
			if to, own := strings.CutPrefix(imp, module+"/"); own && !mayUse(folder, from, to) {
				t.Errorf("%s imports %s", from, to)
			}
			if strings.HasPrefix(imp, "k8s.io/") && !slices.Contains([]string{"cmd", "proxier", "e2e"}, strings.SplitN(from, "/", 2)[0]) {
				t.Errorf("%s imports %s, but does not know Kubernetes", from, imp)
			}
			if imp == "os/exec" && !below(from, "e2e") {
				t.Errorf("%s imports os/exec: the product runs no other program", from)
			}
		}
	}
}

// mayUse reports whether package from, in a folder of mayImport, may import package to.
func mayUse(folder, from, to string) bool {
	if isKernel(to) && isPure(from) {
		return false // a pure package does not reach its own sockets
	}
	return below(to, folder) || slices.ContainsFunc(mayImport[folder], func(f string) bool { return below(to, f) })
}

// TestPurePackages reads the pure packages' own files, without their tests.
func TestPurePackages(t *testing.T) {
	for _, p := range ours(t) {
		if !isPure(p.path()) {
			continue
		}
		if slices.Contains(notYetPure, p.path()) {
			t.Logf("%s is not divided yet", p.path())
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			checkPure(t, p.path()+"/"+name, file)
		}
	}
}

// checkPure looks at the imports of a file and at what it uses of packages time and unix.
func checkPure(t *testing.T, name string, file *ast.File) {
	t.Helper()
	local := map[string]string{} // name in this file -> import path
	for _, imp := range file.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(notPure, path) {
			t.Errorf("%s imports %s, but its package is pure", name, path)
		}
		as := path[strings.LastIndex(path, "/")+1:]
		if imp.Name != nil {
			as = imp.Name.Name
		}
		local[as] = path
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch called := selector.Sel.Name; local[pkg.Name] {
		case "time":
			if slices.Contains(clock, called) {
				t.Errorf("%s calls time.%s: a pure package is given the time", name, called)
			}
		case "golang.org/x/sys/unix":
			// A conversion to one of unix's types looks like a call; those have names like SockaddrNetlink or Errno.
			if !slices.Contains(systemCalls, called) && !strings.HasPrefix(called, "Sockaddr") && called != "Errno" {
				t.Errorf("%s calls unix.%s: a pure package makes no system call", name, called)
			}
		}
		return true
	})
}

// notYetPure are packages whose sockets have not moved into a package of their own yet.
var notYetPure = []string{}
