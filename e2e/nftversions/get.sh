#!/usr/bin/env bash
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# get.sh SUITE: unpacks the nft of a Debian suite (bullseye 0.9.8, bookworm 1.0.6, trixie 1.1.3, sid) with its libraries into
# the cache, and prints the path of a script that runs it. Nothing is installed. $NFTPROXY_NFT names another directory than the user's cache.
set -euo pipefail
suite=$1
arch=$(dpkg --print-architecture)
cache=${NFTPROXY_NFT:-${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/nft}
mkdir -p "$cache"
cd "$cache"
exec 9>lock
flock 9
if [ -x "$suite/nft" ]; then
	echo "$cache/$suite/nft"
	exit 0
fi
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -1 | tr -d ' ' || true)
mirror=${mirror%/}
curl -sf -m 300 "$mirror/dists/$suite/main/binary-$arch/Packages.xz" | xz -dc >"Packages.$suite"
rm -rf "$suite.part" && mkdir "$suite.part"
# What nft links to, by the names that any of the suites has; the C library too, since a newer nft does not run with an older one.
for package in nftables libnftables1 libnftnl11 libmnl0 libjansson4 libedit2 libxtables12 libgmp10 libbsd0 libmd0 libtinfo6 libc6; do
	file=$(awk -v p="$package" '/^Package: /{at=$2} /^Filename: /{if (at==p) f=$2} END{print f}' "Packages.$suite")
	[ -n "$file" ] || continue
	curl -sf -m 300 -o one.deb "$mirror/$file"
	dpkg-deb -x one.deb "$suite.part"
	rm one.deb
done
loader=$(cd "$suite.part" && find . -name 'ld-linux*.so.*' | head -1)
cat >"$suite.part/nft" <<NFT
#!/bin/sh
d=$cache/$suite
exec "\$d/$loader" --library-path "\$d/usr/lib/x86_64-linux-gnu:\$d/lib/x86_64-linux-gnu:\$d/usr/lib/aarch64-linux-gnu:\$d/lib/aarch64-linux-gnu" "\$d/usr/sbin/nft" "\$@"
NFT
chmod +x "$suite.part/nft"
rm -rf "$suite" && mv "$suite.part" "$suite"
echo "$cache/$suite/nft"
