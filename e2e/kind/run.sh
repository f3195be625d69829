#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [ipv4|dual-stack|zones] [smoke|full]
#
# A kind cluster without kube-proxy, our image and manifests on it, and upstream's tests; the cluster is deleted afterwards.
# Needs Docker, and the node image: $NODE_IMAGE, or the one that kind names, from its registry. For machines without Docker
# there is e2e/cluster.
set -eu
cd "$(dirname "$0")/../.."
config=e2e/kind/${1:-dual-stack}.yaml
suite=${2:-smoke}
[ -f "$config" ] || { echo "$config is not there" >&2; exit 1; }
docker info >/dev/null || { echo "needs a running Docker; make cluster and make e2e-smoke do without" >&2; exit 1; }

work=$(mktemp -d)
CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -C e2e/kind -o "$work/kind" sigs.k8s.io/kind
bin=$(e2e/conformance/upstream/build.sh | tail -1)
images=$(e2e/conformance/images/build.sh | tail -1)
kubectl=$(e2e/peers/build.sh | tail -1)/kubectl
make image
version=$(make -s version)

export KUBECONFIG="$work/kubeconfig"
trap '"$work/kind" delete cluster --name nftproxy; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
# Not --wait: nodes are Ready with their CNI, but CoreDNS only when its Service's clients are served.
"$work/kind" create cluster --config "$config" ${NODE_IMAGE:+--image "$NODE_IMAGE"}
"$work/kind" load image-archive --name nftproxy "bin/image/nftproxy-$version.oci.tar"
"$work/kind" load image-archive --name nftproxy "$images"
"$kubectl" apply -f e2e/kind/kube-proxy.yaml
"$kubectl" apply -k manifests/overlays/kind
"$kubectl" -n kube-system rollout status daemonset/nftproxy --timeout=3m
"$kubectl" -n kube-system rollout status deployment/coredns --timeout=3m

go run ./e2e/conformance run -suite "$suite" -proxy nftproxy -version "$version in kind" -bin "$bin" -kubectl "$kubectl" \
	-kubeconfig "$KUBECONFIG" -out e2e/conformance/out/kind -machine "kind, $(basename "$config" .yaml)"
