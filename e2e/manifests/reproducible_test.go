// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReproducible: a clone and the tarball of git archive, in different directories, make the same binary.
func TestReproducible(t *testing.T) {
	run := func(dir string, argv ...string) {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, text)
		}
	}
	clone, archive := filepath.Join(t.TempDir(), "clone"), t.TempDir()
	run(top, "git", "clone", "-q", "--no-hardlinks", ".", clone)
	run(top, "sh", "-c", "git archive HEAD | tar -x -C "+archive)
	var sums [2][sha256.Size]byte
	for i, dir := range []string{clone, archive} {
		run(dir, "make", "build")
		binary, err := os.ReadFile(filepath.Join(dir, "bin", "nftproxy"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(binary)
	}
	if sums[0] != sums[1] {
		t.Errorf("clone %x, archive %x", sums[0], sums[1])
	}
}
