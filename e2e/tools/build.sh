#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds golangci-lint at the version that go.mod pins, unless the cache has it. The last line of the output is the directory.
# The name of the directory carries a hash of what the binary is made from, so that two checkouts do not rebuild each other's.
set -eu
cd "$(dirname "$0")"

hash=$(cat go.mod go.sum build.sh | sha256sum | cut -c1-12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/tools/$hash
mkdir -p "$dir"
exec 9>"$dir/lock" # one build at a time
flock 9
if [ ! -x "$dir/golangci-lint" ]; then
	echo "building golangci-lint into $dir (some minutes, once)" >&2
	CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath -ldflags '-s -w' -o "$dir/golangci-lint.new" \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	mv "$dir/golangci-lint.new" "$dir/golangci-lint"
fi
echo "$dir"
