// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// root is the top of the repository, found from the working directory upwards: go test runs in the package's directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "e2e", "peers", "build.sh")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the repository: no e2e/peers/build.sh in or above %s", dir)
		}
	}
}

// Peer is the path of a peer's binary: etcd, kube-apiserver, kube-proxy or kubectl.
func Peer(name string) (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	dir, err := exec.Command(filepath.Join(top, "e2e", "peers", "build.sh"), "--dir").Output()
	if err != nil {
		return "", fmt.Errorf("find the peers: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("peer %s (run 'make peers' first): %w", name, err)
	}
	return path, nil
}

// NftproxyBinary is the path of the binary under test: $NFTPROXY_BIN, or bin/nftproxy of the repository.
func NftproxyBinary() (string, error) {
	path := os.Getenv("NFTPROXY_BIN")
	if path == "" {
		top, err := root()
		if err != nil {
			return "", err
		}
		path = filepath.Join(top, "bin", "nftproxy")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("nftproxy (run 'make build' first): %w", err)
	}
	return path, nil
}
