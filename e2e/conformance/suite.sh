#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# suite.sh smoke|full [nftproxy|kube-proxy] [FLAG...]
#
# Builds upstream's tests and packs their images (cached), starts the cluster of e2e/cluster with the proxy, runs the suite,
# and takes the cluster down. With $CLUSTER, the directory of a cluster that runs already (make cluster), it uses that one
# and leaves it; with $WORKERS the cluster has more than three workers. Flags go to `conformance run`: -only REGEXP, -procs N, -attempts N.
set -eu
cd "$(dirname "$0")/../.."
suite=${1:?smoke or full}
proxy=${2:-nftproxy}
shift
[ $# -eq 0 ] || shift

bin=$(e2e/conformance/upstream/build.sh | tail -1)
images=$(e2e/conformance/images/build.sh | tail -1)
peers=$(e2e/peers/build.sh | tail -1)
go build -o "$bin/conformance" ./e2e/conformance

dir=${CLUSTER:-}
if [ -z "$dir" ]; then
	e2e/cluster/deps.sh >&2
	e2e/peers/build-cluster.sh >&2
	dir=/tmp/nftproxy-upstream
	trap 'go run ./e2e/cluster -dir "$dir" down' EXIT
	trap 'exit 1' INT TERM
	workers=${WORKERS:-3}
	go run ./e2e/cluster -dir "$dir" -proxy "$proxy" -workers "$workers" up
	# The traffic distribution tests want three zones (some of them with two workers each: WORKERS=6); topology hints want
	# them even, and the control plane left out, as kubeadm does.
	for i in $(seq "$workers"); do
		zone=$(echo a b c | cut -d' ' -f$(((i - 1) * 3 / workers + 1)))
		"$dir/kubectl" label node "worker-$i" "topology.kubernetes.io/zone=$zone" --overwrite
	done
	"$dir/kubectl" taint node control-plane node-role.kubernetes.io/control-plane:NoSchedule
fi
go run ./e2e/cluster -dir "$dir" load "$images"

case $proxy in
nftproxy) version=$(git describe --always --dirty 2>/dev/null || echo unknown) ;;
*) version="$(sed -n 's|^[[:space:]]*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' e2e/peers/go.mod), nftables mode" ;;
esac
"$bin/conformance" run -suite "$suite" -proxy "$proxy" -version "$version" -bin "$bin" -kubectl "$peers/kubectl" \
	-kubeconfig "$dir/admin.kubeconfig" -netns "/run/netns/$(sed -n 's/^CLIENT=//p' "$dir/env")" \
	-machine "$(nproc) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" "$@"
