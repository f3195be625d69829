#!/bin/sh
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what tests and demo call beside Go: nft (the oracle of what we write, and kube-proxy's tool), iptables and
# conntrack (for what other software leaves behind), ip, what bash completes with, and a C compiler. The product itself runs none
# of them.
set -eu
missing=
for pair in nft:nftables iptables-nft:iptables conntrack:conntrack ip:iproute2 curl:curl; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -f /usr/share/bash-completion/bash_completion ] || missing="$missing bash-completion"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev" # for the race detector
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "missing:$missing (install them with your package manager)" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
