// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package law holds the rules that the code as a whole keeps. It reads the repository's sources and the go command's package
// lists; it never builds or runs the product.
//
//	imports_test.go  which package may import which, and what pure packages never use
//	lines_test.go    how many lines each package has at most, and what lies at the top of the repository
//	cycles_test.go   the files of the loop's package call each other in one direction only
package law

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/nftproxy/nftproxy"
	// root is the repository, seen from this package.
	root = "../.."
)

// goPackage is what this test needs of the output of `go list -json`.
type goPackage struct {
	ImportPath string
	Dir        string
	Name       string
	Export     string // file with export data
	GoFiles    []string
	Imports    []string
}

// path is the package's path inside the module, "." for the module's own.
func (p goPackage) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// list runs `go list -json` with more arguments in the repository's root.
func list(t *testing.T, args ...string) (out []goPackage) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Name,Export,GoFiles,Imports"}, args...)...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %q: %v\n%s", args, err, &stderr)
	}
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
}

// ours are the packages of the module, listed once.
func ours(t *testing.T) []goPackage {
	t.Helper()
	packages.Do(func() { packages.list = list(t, "./...") })
	if len(packages.list) < 10 {
		t.Fatalf("the module has %d packages only", len(packages.list))
	}
	return packages.list
}

var packages struct {
	sync.Once
	list []goPackage
}
