# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0

# Semantic versions only: component-base's metrics parse it.
VERSION ?= v0.1.0
# From the tarball that git archive made, else from the clone.
COMMIT  := $(shell (grep -E '^[0-9a-f]{40}$$' .ci/commit || git rev-parse HEAD 2>/dev/null || echo unknown) | cut -c1-12)
MODULE  := github.com/nftproxy/nftproxy

# kubernetes_build_info, --version and the client's user agent show these.
INFO    := k8s.io/component-base/version
LDFLAGS := -s -w -X $(INFO).gitVersion=$(VERSION) -X $(INFO).gitCommit=$(COMMIT) -X $(INFO).gitTreeState=archive

.PHONY: all build image deps test simulate kernels alerts demo oracle bench bench-quick cluster cluster-down e2e-life lint fmt peers clean e2e-smoke e2e-upstream e2e-kind version

all: build

# A static binary: no C library, and nothing of the machine that builds it: neither paths nor what git thinks of its checkout.
BUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

build:
	$(BUILD) -o bin/nftproxy ./cmd/nftproxy

# An OCI image for both architectures, without a container engine: bin/image/nftproxy-$(VERSION).oci.tar.
image:
	@set -e; for arch in amd64 arm64; do \
		GOOS=linux GOARCH=$$arch $(BUILD) -o bin/linux-$$arch/nftproxy ./cmd/nftproxy; \
	done
	go run -C e2e/image . -version $(VERSION) -revision $(COMMIT) -license $(CURDIR)/LICENSE -out $(CURDIR)/bin/image \
		amd64=$(CURDIR)/bin/linux-amd64/nftproxy arm64=$(CURDIR)/bin/linux-arm64/nftproxy

# What the tests and the demo need beside Go; on a Debian-like machine it is installed when it is missing.
deps:
	@e2e/deps.sh

# The whole ladder: law, kernel, packets, real kube-apiserver and kube-proxy. Needs root; nothing is skipped. One package
# at a time, because the packages of e2e load the machine. The product's packages are tested with the race detector, but for
# tests that count what something costs: they have Cost or Alloc in their names.
PRODUCT := ./cmd/... ./ctsync/... ./internal/... ./nft/... ./proxier/... ./routing/...

test: deps lint build peers
	NFTPROXY_KERNEL=required go test -p 1 -timeout 40m -race -skip 'Cost|Alloc' $(PRODUCT)
	NFTPROXY_KERNEL=required go test -p 1 -timeout 40m -run 'Cost|Alloc' $(PRODUCT)
	NFTPROXY_KERNEL=required go test -p 1 -timeout 40m ./e2e/...
	go test -C e2e/kind .
	go test -C e2e/conformance/images .

# The alert rules, by promtool's own rule tests. Not part of test: promtool takes 5 minutes of processor time to build, once.
alerts:
	go test -C e2e/promtool -count=1 .

# The loop on a model of nf_tables with faults: SEEDS random histories from seed SEED on. 1,000,000 take some hours on two cores; make test
# runs 300 of another seed each time.
simulate:
	NFTPROXY_SEED=$(or $(SEED),1) go test ./proxier -run TestSimulation -count=1 -v -timeout 24h -simulate.seeds $(or $(SEEDS),100000)

# The tests that touch the kernel, scenarios with real packets and the demo under Debian's kernels of other series, by qemu: the table
# of docs/kernels.md. KERNELS names them; half an hour each. Not part of make test.
kernels: deps
	e2e/kernels/run.sh $(KERNELS)

# A two-node cluster of namespaces, examples/, real packets, endpoints scaled under load.
demo: deps build
	go run ./e2e/demo

# Every scenario through nftproxy and through real kube-proxy, side by side.
oracle: deps build peers
	go run ./e2e/oracle

# Against real kube-proxy, one machine, one run, taking turns: a table, and report.json and plots in e2e/bench/out. Three quarters
# of an hour; bench-quick is one size within 5 minutes.
bench: deps build peers
	go test -C e2e/bench ./...
	go run -C e2e/bench .

bench-quick: deps build peers
	go run -C e2e/bench . -rows 1x3,1000x3 -large "" -peers nftables -changes 25 -phase 15s -rounds 1 -churn 10s -rates 100

# Upstream's own tests of Services on a cluster of real kubelets, not part of make test. e2e-smoke: the Conformance tests of
# Services, with PROXY=kube-proxy for comparison. e2e-upstream: all that is about Services and their proxy, with both
# proxies in turn or PROXY alone, and the table in docs/conformance.md.
e2e-smoke: deps image peers
	e2e/conformance/suite.sh smoke $(or $(PROXY),nftproxy)

e2e-upstream: deps image peers
	@status=0; for proxy in $(or $(PROXY),nftproxy kube-proxy); do \
		e2e/conformance/suite.sh full $$proxy || status=1; \
	done; go run ./e2e/conformance table && exit $$status

# The same in a cluster made by kind, for machines with Docker. CONFIG is ipv4, dual-stack or zones.
e2e-kind: deps image peers
	go test -C e2e/kind .
	e2e/kind/run.sh $(or $(CONFIG),dual-stack) smoke

version:
	@echo $(VERSION)

# A cluster of four real kubelets in namespaces, with nftproxy from its image and manifests, or with kube-proxy
# (PROXY=kube-proxy): docs/cluster.md. It stays until make cluster-down.
cluster: deps peers image
	e2e/cluster/deps.sh
	e2e/peers/build-cluster.sh
	go run ./e2e/cluster up -proxy $(or $(PROXY),nftproxy)

cluster-down:
	go run ./e2e/cluster down

# Life in such a cluster under load: from kube-proxy to nftproxy and back, rolling updates, a drained node. Ten minutes, not
# part of make test.
e2e-life: deps peers image
	e2e/cluster/deps.sh
	e2e/peers/build-cluster.sh
	@trap 'go run ./e2e/cluster -dir /tmp/nftproxy-life down' EXIT; \
	go run ./e2e/cluster -dir /tmp/nftproxy-life -proxy kube-proxy up && go run ./e2e/cluster -dir /tmp/nftproxy-life life

# Formatting, go.mod files as the go command writes them, vet in all modules with code of ours, and golangci-lint by .golangci.yaml. golangci-lint is built
# from e2e/tools, once, which takes some minutes.
lint:
	@unformatted=$$(git ls-files '*.go' | xargs ls 2>/dev/null | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	@for module in . e2e/bench e2e/image e2e/kind e2e/conformance/images; do \
		go -C $$module mod tidy -diff && go vet -C $$module ./... || exit 1; done
	@tools=$$(e2e/tools/build.sh) && $$tools/golangci-lint run ./...

fmt:
	git ls-files '*.go' | xargs gofmt -w

# Real Kubernetes components for the lab, from a module of their own.
peers:
	e2e/peers/build.sh

clean:
	rm -rf bin
