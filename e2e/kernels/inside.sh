#!/usr/bin/env bash
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs inside the virtual machine: each test binary in its package's directory, the demo, and the cost of a change at 10 and at
# 10,000 Services. Writes one line per item to /mnt/out/results: NAME PASS|FAIL passed failed skipped.
set -u
top=$1 binaries=$2
out=/mnt/out
# Over 9p a module loads in seconds: all of them before the first test, which would otherwise wait within a request.
for m in nf_tables nf_conntrack nf_conntrack_netlink nft_chain_nat nft_nat nft_masq nft_ct nft_numgen nft_hash nft_fib nft_fib_inet \
	nft_fib_ipv4 nft_fib_ipv6 nft_reject nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 nft_redir nft_log nft_limit nft_counter nft_objref nft_set_pipapo \
	nft_compat xt_comment xt_conntrack xt_MASQUERADE xt_mark xt_nat xt_statistic xt_addrtype xt_recent xt_tcpudp iptable_nat iptable_filter ip6table_nat ip6table_filter \
	ip_tables ip6_tables veth dummy bridge br_netfilter tun sctp ip_vs ip_vs_rr bonding sch_netem; do
	modprobe "$m" 2>/dev/null || true
done
# The host's bound on ICMP errors (1,000 per second, bursts of 50) would count against the namespaces of the lab all together.
sysctl -qw net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=100000 2>/dev/null
sysctl -qw net.netfilter.nf_conntrack_max=1048576 net.core.wmem_max=33554432 net.core.rmem_max=33554432 2>/dev/null
: >$out/results
for bin in "$binaries"/*.test; do
	name=$(basename "$bin" .test)
	dir=$top/${name//+/\/}
	args=(-test.v -test.timeout 25m)
	# Of the scenarios those that need no API server or kube-proxy.
	[ "$name" != e2e ] || args+=(-test.run "${E2E_TESTS:-TestExplain|TestTrace|TestOvertaken|TestUniform|TestChoice|TestDrift|TestPackets|TestSteering|TestHandoff}")
	(cd "$dir" && NFTPROXY_KERNEL=required NFTPROXY_BIN="$binaries/nftproxy" "$bin" "${args[@]}") >"$out/$name.log" 2>&1
	status=$?
	printf '%s %s %s %s %s\n' "$name" "$([ $status = 0 ] && echo PASS || echo FAIL)" \
		"$(grep -c '^--- PASS' "$out/$name.log")" "$(grep -c '^--- FAIL' "$out/$name.log")" "$(grep -c '^--- SKIP' "$out/$name.log")" >>$out/results
done
(cd "$top" && NFTPROXY_BIN="$binaries/nftproxy" "$binaries/demo") >$out/demo.log 2>&1
printf 'demo %s %s %s 0\n' "$([ $? = 0 ] && echo PASS || echo FAIL)" "$(grep -c Everything $out/demo.log)" "$(grep -c WRONG $out/demo.log)" >>$out/results
(cd "$top/nft" && "$binaries/nft.test" -test.run '^$' -test.bench '(ReplaceEndpoint|AddService)/(10|10000)$' -test.benchtime 300x -test.count 3) >$out/bench.log 2>&1
uname -r >$out/release
