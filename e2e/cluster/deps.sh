#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what e2e/cluster calls beside what e2e/deps.sh installs: runc (Debian's is built with seccomp, which the default
# profile needs), the CNI plugins bridge, ptp, host-local, portmap and loopback, and tools for namespaces and settings.
set -eu
missing=
for pair in runc:runc nsenter:util-linux sysctl:procps mount:mount; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -x /usr/lib/cni/ptp ] || missing="$missing containernetworking-plugins"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "missing:$missing (install them with your package manager)" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
