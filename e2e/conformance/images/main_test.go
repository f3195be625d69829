// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestParse(t *testing.T) {
	s, err := parse("registry.example/a:1=/base+/top,entrypoint=/agnhost,cmd=pause now,user=1000")
	if err != nil {
		t.Fatal(err)
	}
	if s.name != "registry.example/a:1" || !slices.Equal(s.layers, []string{"/base", "/top"}) || s.user != "1000" ||
		!slices.Equal(s.entrypoint, []string{"/agnhost"}) || !slices.Equal(s.cmd, []string{"pause", "now"}) {
		t.Errorf("got %+v", s)
	}
	for _, bad := range []string{"", "a:1", "=x", "a:1=x,colour=red"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestArchive: two images of one base are found in the archive by name, share its layer, and come out the same again.
func TestArchive(t *testing.T) {
	base, top := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(base, "sh"), []byte("shell"), 0o755))
	must(t, os.Symlink("sh", filepath.Join(base, "ash")))
	must(t, os.Mkdir(filepath.Join(top, "etc"), 0o755))
	digests := map[string][]string{}
	for range 2 {
		out := filepath.Join(t.TempDir(), "images.tar")
		must(t, run(out, []string{"registry.example/a:1=" + base, "registry.example/b:2=" + base + "+" + top + ",cmd=pause"}))
		for ref, layers := range map[string]int{"registry.example/a:1": 1, "registry.example/b:2": 2} {
			tag, err := name.NewTag(ref)
			must(t, err)
			image, err := tarball.ImageFromPath(out, &tag)
			must(t, err)
			got, err := image.Layers()
			must(t, err)
			if len(got) != layers {
				t.Errorf("%s has %d layers, not %d", ref, len(got), layers)
			}
			id, err := got[0].DiffID()
			must(t, err)
			digests["base"] = append(digests["base"], id.String())
			config, err := image.ConfigName()
			must(t, err)
			digests[ref] = append(digests[ref], config.String())
		}
	}
	for what, list := range digests {
		if len(slices.Compact(list)) != 1 {
			t.Errorf("%s differs: %v", what, list)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
