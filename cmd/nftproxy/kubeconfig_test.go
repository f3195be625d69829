// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

// A kubeconfig that is replaced is used without a restart; one that is invalid changes nothing.
func TestFollowKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(server string) {
		t.Helper()
		text := fmt.Sprintf(`{"kind":"Config","apiVersion":"v1","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a"}}],`+
			`"clusters":[{"name":"a","cluster":{"server":%q}}]}`, server)
		if server == "" {
			text = "{"
		}
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("https://one")
	used := make(chan string, 100)
	load := func() (*rest.Config, error) {
		cfg, err := config.Client{Kubeconfig: path}.REST("test")
		if err != nil {
			used <- "invalid"
		} else {
			used <- cfg.Host
		}
		return cfg, err
	}
	watcher, err := config.NewWatcher(path)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kube.NewAPI(load, "n1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- followKubeconfig(ctx, path, watcher, api) }()
	expect := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case got = <-used:
			case err := <-done:
				t.Fatalf("ended before %q: %v", want, err)
			}
		}
	}
	expect("https://one")
	for _, server := range []string{"https://two", "", "https://three", "https://two"} {
		write(server)
		if server == "" {
			server = "invalid"
		}
		expect(server)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
