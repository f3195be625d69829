# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0

# Semantic versions only: component-base's metrics parse it.
VERSION ?= v0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
MODULE  := github.com/nftproxy/nftproxy

# kubernetes_build_info, --version and the client's user agent show these.
INFO    := k8s.io/component-base/version
LDFLAGS := -s -w -X $(INFO).gitVersion=$(VERSION) -X $(INFO).gitCommit=$(COMMIT) -X $(INFO).gitTreeState=archive

.PHONY: all build test lint fmt peers clean

all: build

# A static binary: no C library, no paths of the build machine in it.
build:
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/nftproxy ./cmd/nftproxy

# Packages that touch the kernel make their own namespaces and fail without root.
test:
	NFTPROXY_KERNEL=required go test ./...

lint:
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	go vet ./...

fmt:
	git ls-files '*.go' | xargs gofmt -w

# Real Kubernetes components for the lab, from a module of their own.
peers:
	e2e/peers/build.sh

clean:
	rm -rf bin
