#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# build.sh        packs the images of upstream's test pods into one archive for `ctr images import`, unless it is there;
# build.sh --path only says where it is, or would be.
# The path is the last line of its output. $NFTPROXY_IMAGES names another directory than the cache of the user.
#
# No container engine, no registry: upstream's programs come from its Go module, everything around them from Debian's
# packages, unpacked and not installed (no package's script is run). The names are those of the tests' own list, so that a
# kubelet finds each image without pulling.
set -eu
cd "$(dirname "$0")"
bin=$(../upstream/build.sh --dir)

hash=$(cat go.mod go.sum ./*.go build.sh ../upstream/go.mod ../upstream/build.sh | sha256sum | cut -c1-12)
dir=${NFTPROXY_IMAGES:-${XDG_CACHE_HOME:-$HOME/.cache}/nftproxy/images/$hash}
if [ "${1:-}" = --path ]; then
	echo "$dir/images.tar"
	exit 0
fi

mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9
if [ "$(cat "$dir/built" 2>/dev/null || true)" = "$hash" ]; then
	echo "$dir/images.tar"
	exit 0
fi
bin=$(../upstream/build.sh | tail -1)
echo "packing the test images into $dir" >&2
tmp=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# What the test pods call: sh, date, seq, grep, timeout, which (bash coreutils grep debianutils), curl, nc -u -w -p
# (netcat-openbsd), dig (bind9-dnsutils), ip and ss (iproute2), lsmod and nsenter on the host (kmod util-linux), conntrack,
# iptables (distroless-iptables), iperf, getent (libc-bin), and hostname.
packages="dash bash coreutils util-linux grep sed mawk curl netcat-openbsd bind9-dnsutils iproute2 iperf procps iptables
	conntrack kmod debianutils hostname findutils busybox wget netbase libc-bin"
# Dependencies of the packages' scripts, which are not run.
unneeded='^(perl|perl-base|perl-modules.*|libperl.*|usrmerge|passwd|adduser|libpam.*|libsemanage.*|debconf|dpkg|dbus.*|lib.*-perl)_'

# An empty list of what is installed makes apt name the whole closure, whatever this machine has.
mkdir -p "$tmp/deb/partial"
: >"$tmp/status"
[ -n "$(ls /var/lib/apt/lists/*_Packages* 2>/dev/null)" ] || apt-get update -qq >&2
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends --download-only -o Dir::State::status="$tmp/status" \
	-o Dir::Cache::archives="$tmp/deb" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=1 \
	-o APT::Sandbox::User=root $packages >&2

# One tree with /bin, /sbin and /lib merged into /usr, as Debian's own.
root=$tmp/root
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$root/etc" "$root/tmp" "$root/root" \
	"$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/var" "$root/home"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
chmod 1777 "$root/tmp"
for deb in "$tmp"/deb/*.deb; do
	basename "$deb" | grep -Eq "$unneeded" && continue
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --no-same-owner --keep-directory-symlink \
		--exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*' --exclude='./usr/share/info*' \
		--exclude='./usr/share/bash-completion*' --exclude='./usr/lib/systemd*' --exclude='./lib/systemd*'
done
# What the scripts of the packages would have made.
ln -sf dash "$root/usr/bin/sh"
ln -sf nc.openbsd "$root/usr/bin/nc"
ln -sf mawk "$root/usr/bin/awk"
for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
	ln -sf xtables-nft-multi "$root/usr/sbin/$tool"
done
[ -e "$root/usr/bin/which" ] || ln -sf which.debianutils "$root/usr/bin/which"
# Upstream's agnhost has Alpine around it, so busybox for all that is not a package of its own; and a wget that tries once.
for tool in $("$root/usr/bin/busybox" --list); do
	[ -e "$root/usr/bin/$tool" ] || [ -L "$root/usr/bin/$tool" ] || [ -e "$root/usr/sbin/$tool" ] || ln -s busybox "$root/usr/bin/$tool"
done
echo 'tries = 1' >"$root/etc/wgetrc"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"

agnhost=$tmp/agnhost
mkdir -p "$agnhost/uploads"
cp "$bin/agnhost" "$agnhost/agnhost"
ln -s agnhost "$agnhost/agnhost-2"
porter=$(cd ../upstream && go list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)/porter
install -m 0644 "$porter/localhost.crt" "$porter/localhost.key" "$agnhost/"

boom=$tmp/boom
mkdir "$boom"
cp "$bin/regression-issue-74839" "$boom/"

"$bin/e2e.test" --list-images >"$tmp/list"
named() { grep "/$1:" "$tmp/list" | grep -v '^gcr.io/' || { echo "$1 is not among the images of e2e.test" >&2; exit 1; }; }
set --
for n in $(named e2e-test-images/agnhost); do set -- "$@" "$n=$root+$agnhost,entrypoint=/agnhost,cmd=pause"; done
for n in $(named pause); do set -- "$@" "$n=$root+$agnhost,entrypoint=/agnhost pause"; done
for n in $(named glibc-dns-testing) $(named distroless-iptables); do set -- "$@" "$n=$root"; done
for n in $(named e2e-test-images/busybox); do set -- "$@" "$n=$root,cmd=sh"; done
# No selected test asks nginx for a page: it stands for a container that runs.
for n in $(named e2e-test-images/nginx); do set -- "$@" "$n=$root+$agnhost,entrypoint=/agnhost pause"; done
for n in $(named regression-issue-74839); do set -- "$@" "$n=$boom,entrypoint=/regression-issue-74839"; done
go run . -out "$tmp/images.tar" "$@"
mv "$tmp/images.tar" "$dir/images.tar"
echo "$hash" >"$dir/built"
echo "$dir/images.tar"
