#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# build-cluster.sh        builds what e2e/cluster runs beside the peers of build.sh: kubelet, kube-controller-manager,
#                         kube-scheduler, containerd with its shim and ctr, CoreDNS; unless they are there;
# build-cluster.sh --dir  only says where they are, or would be.
# The directory is the last line of its output. Tests that need no cluster need none of it. See build.sh.
set -eu
cd "$(dirname "$0")"

version() { sed -n "s|^[[:space:]]*\(require \)\{0,1\}$2 \(v[^ ]*\).*|\2|p" "$1/go.mod"; }
k8s=$(version node k8s.io/kubernetes)
hash=$(cat node/go.mod node/go.sum containerd/go.mod containerd/go.sum coredns/go.mod coredns/go.sum coredns/main.go \
	build-cluster.sh | sha256sum | cut -c1-12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/cluster/$k8s-$hash

if [ "${1:-}" = --dir ]; then
	echo "$dir"
	exit 0
fi

mkdir -p "$dir"
exec 9>"$dir/lock" # two builds at once would only fight for the same cores
flock 9
if [ "$(cat "$dir/built" 2>/dev/null || true)" = "$hash" ]; then
	echo "$dir"
	exit 0
fi

major=$(echo "$k8s" | cut -d. -f1 | tr -d v)
minor=$(echo "$k8s" | cut -d. -f2)
ld='-s -w'
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	ld="$ld -X $p.gitVersion=$k8s -X $p.gitMajor=$major -X $p.gitMinor=$minor"
	ld="$ld -X $p.gitTreeState=archive -X $p.buildDate=1970-01-01T00:00:00Z"
done

echo "building kubelet $k8s, containerd, CoreDNS into $dir (some minutes, once)" >&2
tmp=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false # static: CoreDNS has an image to itself
go build -C containerd -trimpath -tags 'no_btrfs no_devmapper no_zfs' \
	-ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$(version containerd github.com/containerd/containerd/v2)" \
	-o "$tmp/" tool
go build -C coredns -trimpath -ldflags '-s -w' -o "$tmp/" .
go build -C node -trimpath -ldflags "$ld" -o "$tmp/" tool
mv "$tmp"/* "$dir/"
echo "$hash" >"$dir/built"
echo "$dir"
