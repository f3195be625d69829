#!/usr/bin/env bash
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# get.sh SERIES: downloads the newest Debian kernel of a series (5.10, 6.1, 6.12, 6.18, 7.3) and unpacks it into the cache.
# Prints its directory and its release. $NFTPROXY_KERNELS names another directory than the user's cache.
#
# Packages come from the mirror that the machine's own APT sources name. Nothing is installed.
set -euo pipefail
series=$1
arch=${ARCH:-amd64}
cache=${NFTPROXY_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/kernels}
mkdir -p "$cache"
cd "$cache"
exec 9>lock
flock 9

# The release of a series that is in the cache is good enough: delete the directory for a newer one.
if [ -s "$series-$arch/release" ]; then
	echo "$cache/$series-$arch $(cat "$series-$arch/release")"
	exit 0
fi

mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -1 | tr -d ' ' || true)
mirror=${mirror%/}
mirror=${mirror%/debian}
# Where each series is newest: the security suite of its Debian release, the release, backports, unstable.
case $series in
5.10) suites="debian-security/bullseye-security debian/bullseye" ;;
6.1) suites="debian-security/bookworm-security debian/bookworm" ;;
6.12) suites="debian-security/trixie-security debian/trixie" ;;
*) suites="debian/trixie-backports debian/sid" ;;
esac

package='' file='' repo='' list=''
for suite in $suites; do
	repo=${suite%%/*}
	list=Packages.${suite#*/}.$arch
	if [ ! -s "$list" ]; then
		curl -sf -m 300 "$mirror/$repo/dists/${suite#*/}/main/binary-$arch/Packages.xz" | xz -dc >"$list.part" || continue
		mv "$list.part" "$list"
	fi
	# Debian's plain kernel: no -rt, no -cloud (which lacks modules), no debug symbols.
	read -r package file < <(awk '/^Package: /{p=$2} /^Filename: /{print p, $2}' "$list" |
		grep -E "^linux-image-${series//./[.]}[.-][^ ]*-($arch|s390x) " | grep -vE -e '-rt-|dbg|unsigned|cloud' | sort -V | tail -1) || true
	[ -z "$package" ] || break
done
[ -n "$package" ] || { echo "no kernel of series $series for $arch in: $suites" >&2; exit 1; }

release=${package#linux-image-}
dir=$series-$arch
rm -rf "$dir"
mkdir "$dir"
# Since 7.x the image and the modules are packages of their own.
more=$(awk -v a="linux-binary-$release" -v b="linux-modules-$release" \
	'/^Package: /{p=$2} /^Filename: /{if (p==a || p==b) print $2}' "$list")
for f in $file $more; do
	curl -sf -m 900 -o "$dir.deb" "$mirror/$repo/$f"
	dpkg-deb -x "$dir.deb" "$dir"
	rm "$dir.deb"
done
[ -d "$dir/lib/modules" ] || { mkdir -p "$dir/lib" && ln -s ../usr/lib/modules "$dir/lib/modules"; }
find "$dir/" -name '*.ko.xz' -exec xz -d {} + # busybox's insmod wants them plain
depmod -b "$dir" "$release" 2>/dev/null || true
echo "$release" >"$dir/release"
echo "$cache/$dir $release"
