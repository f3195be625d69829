#!/usr/bin/env bash
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [SERIES ...]: boots each kernel and runs in it the tests of the packages that touch the kernel, scenarios with real packets and the
# demo; prints the table of docs/kernels.md. The exit status is 1 when anything failed. Logs: bin/kernels/SERIES.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
series=("$@")
[ ${#series[@]} -gt 0 ] || series=(5.10 6.1 6.12 6.18 7.3)
for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod curl:curl; do
	command -v "${tool%%:*}" >/dev/null || missing="${missing:-} ${tool#*:}"
done
if [ -n "${missing:-}" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# Everything is built outside: a compiler under emulation takes half an hour.
binaries=$top/bin/kernels/binaries
rm -rf "$binaries"
mkdir -p "$binaries"
for package in nft nft/kernel routing routing/kernel ctsync ctsync/kernel proxier proxier/localhost e2e; do
	[ -d "$package" ] || continue
	CGO_ENABLED=0 go test -c -o "$binaries/${package//\//+}.test" "./$package"
done
CGO_ENABLED=0 go build -trimpath -o "$binaries/nftproxy" ./cmd/nftproxy
CGO_ENABLED=0 go build -o "$binaries/demo" ./e2e/demo

worst=0
for s in "${series[@]}"; do
	export VM_OUT=$top/bin/kernels/$s
	rm -rf "$VM_OUT"
	mkdir -p "$VM_OUT"
	e2e/kernels/vm.sh "$s" "bash $top/e2e/kernels/inside.sh $top $binaries" >"$VM_OUT/run.log" 2>&1 || true
	echo
	echo "### $s: $(cat "$VM_OUT/release" 2>/dev/null || echo 'did not finish'), $(date -u +%F)"
	echo
	echo "| what | result | passed | failed | skipped |"
	echo "| --- | --- | ---: | ---: | ---: |"
	while read -r name result passed failed skipped; do
		echo "| ${name//+/\/} | $result | $passed | $failed | $skipped |"
		[ "$result" = PASS ] || worst=1
		[ "$result" = PASS ] || grep -hE '^\s*--- FAIL' "$VM_OUT/$name.log" | sed 's/^/<!-- /; s/$/ -->/' || true
	done <"$VM_OUT/results"
	grep -q '^demo' "$VM_OUT/results" || worst=1
	# The cost of a change at 10,000 Services over that at 10, medians of three.
	awk '/^Benchmark/{split($1,p,"/"); sub(/-[0-9]+$/,"",p[2]); k=p[1]; v[k,p[2],++n[k,p[2]]]=$3; names[k]=1}
		function med(k,s,  a,b,c){a=v[k,s,1];b=v[k,s,2];c=v[k,s,3]; return (a>b)?((b>c)?b:(a>c?c:a)):((a>c)?a:(b>c?c:b))}
		END{for(k in names) if (med(k,10)>0) printf "| %s at 10,000 / at 10 Services | %.2f | | | |\n", k, med(k,10000)/med(k,10)}' "$VM_OUT/bench.log" 2>/dev/null || true
done
exit $worst
