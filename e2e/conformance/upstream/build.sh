#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# build.sh        builds e2e.test, ginkgo and agnhost at the versions go.mod pins, unless they are there;
# build.sh --dir  only says where they are, or would be.
# The directory is the last line of its output. $NFTPROXY_UPSTREAM names another one than the cache of the user.
# The name of the directory carries a hash of what the binaries are made from, as e2e/peers does.
set -eu
cd "$(dirname "$0")"

k8s=$(sed -n 's|^[[:space:]]*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' go.mod)
hash=$(cat go.mod go.sum build.sh | sha256sum | cut -c1-12)
dir=${NFTPROXY_UPSTREAM:-${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/upstream/$k8s-$hash}

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

# e2e.test compares its version with the API server's, agnhost answers with it.
major=$(echo "$k8s" | cut -d. -f1 | tr -d v)
minor=$(echo "$k8s" | cut -d. -f2)
ld='-s -w'
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	ld="$ld -X $p.gitVersion=$k8s -X $p.gitMajor=$major -X $p.gitMinor=$minor"
	ld="$ld -X $p.gitTreeState=archive -X $p.buildDate=1970-01-01T00:00:00Z"
done

echo "building upstream's e2e.test, ginkgo and agnhost $k8s into $dir (some minutes, once)" >&2
tmp=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
# Without cgo the binaries are static: agnhost runs in images of any C library.
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
go build -trimpath -ldflags "$ld" -o "$tmp/" k8s.io/kubernetes/test/images/agnhost \
	k8s.io/kubernetes/test/images/regression-issue-74839 github.com/onsi/ginkgo/v2/ginkgo
go test -c -trimpath -ldflags "$ld" -o "$tmp/e2e.test" k8s.io/kubernetes/test/e2e
mv "$tmp"/* "$dir/"
echo "$hash" >"$dir/built"
echo "$dir"
