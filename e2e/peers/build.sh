#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# build.sh        builds etcd, kube-apiserver, kube-proxy and kubectl at the versions go.mod pins, unless they are there;
# build.sh --dir  only says where they are, or would be.
# The directory is the last line of its output. $NFTPROXY_PEERS names another one than the cache of the user.
#
# The name of the directory carries a hash of what the binaries are made from, so that an old checkout and a new one do
# not rebuild each other's; the file "built" in it carries the hash too, since a directory of choice can hold anything.
set -eu
cd "$(dirname "$0")"

k8s=$(sed -n 's|^[[:space:]]*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' go.mod)
hash=$(cat go.mod go.sum build.sh | sha256sum | cut -c1-12)
dir=${NFTPROXY_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/peers/$k8s-$hash}

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

# kube-apiserver refuses to start without a version that parses: it derives feature and storage compatibility from it.
major=$(echo "$k8s" | cut -d. -f1 | tr -d v)
minor=$(echo "$k8s" | cut -d. -f2)
ld='-s -w'
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	ld="$ld -X $p.gitVersion=$k8s -X $p.gitMajor=$major -X $p.gitMinor=$minor"
	ld="$ld -X $p.gitTreeState=archive -X $p.buildDate=1970-01-01T00:00:00Z"
done

echo "building etcd and Kubernetes $k8s into $dir (some minutes, once)" >&2
tmp=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
# Without cgo the binaries are static: they run wherever the lab does, whatever that machine's C library is.
CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath -ldflags "$ld" -o "$tmp/" \
	go.etcd.io/etcd/server/v3 \
	k8s.io/kubernetes/cmd/kube-apiserver \
	k8s.io/kubernetes/cmd/kube-proxy \
	k8s.io/kubernetes/cmd/kubectl
mv "$tmp/server" "$tmp/etcd" # go names a binary after the last part of its import path
mv "$tmp"/* "$dir/"
echo "$hash" >"$dir/built"
echo "$dir"
