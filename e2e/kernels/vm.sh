#!/usr/bin/env bash
# Copyright 2026 The nftproxy Authors
# SPDX-License-Identifier: Apache-2.0
#
# vm.sh SERIES COMMAND: runs a shell command as root under a Debian kernel of the series, in a virtual machine of qemu (TCG, no KVM
# needed). The machine sees this host's file system read-only below a tmpfs, so that what COMMAND writes goes with the machine,
# but for /mnt/out, which is $VM_OUT outside. The exit status is COMMAND's; 124 when the machine did not end within $VM_LIMIT seconds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
series=$1 command=$2
read -r dir release < <("$here/get.sh" "$series")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${VM_OUT:-$work/out}
mkdir -p "$out" "$work/root"/{bin,proc,sys,dev,modules,host,rw,new}
cp "$(command -v busybox)" "$work/root/bin/busybox"

# The initial file system loads what it needs to reach the host's by 9p; the rest loads from there.
: >"$work/root/modules/order"
for m in virtio_pci 9pnet_virtio 9p overlay; do
	while read -r _ path _; do
		name=$(basename "$path")
		grep -qx "$name" "$work/root/modules/order" && continue
		cp "$path" "$work/root/modules/$name"
		echo "$name" >>"$work/root/modules/order"
	done < <(modprobe -d "$dir" -S "$release" --show-depends "$m" 2>/dev/null | grep ^insmod || true)
done
printf '%s\n' "$command" >"$out/command.sh"
rm -f "$out/status" "$out/log"

cat >"$work/root/init" <<INIT
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t proc proc /proc; \$b mount -t sysfs sys /sys; \$b mount -t devtmpfs dev /dev
for m in \$(\$b cat /modules/order); do \$b insmod /modules/\$m || echo "insmod \$m failed"; done
nine="trans=virtio,version=9p2000.L,msize=262144"
\$b mount -t 9p -o \$nine,ro,cache=loose host /host || exec \$b sh
\$b mount -t tmpfs -o size=6g tmpfs /rw; \$b mkdir -p /rw/upper /rw/work
\$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || exec \$b sh
\$b mount -t proc proc /new/proc; \$b mount -t sysfs sys /new/sys; \$b mount -t devtmpfs dev /new/dev
\$b mkdir -p /new/dev/pts /new/dev/shm; \$b mount -t devpts devpts /new/dev/pts; \$b mount -t tmpfs shm /new/dev/shm
\$b mount -t tmpfs tmpfs /new/run; \$b mkdir -p /new/run/netns /new/mnt/out /new/lib/modules/$release
\$b mount -t 9p -o \$nine,cache=none out /new/mnt/out
\$b mount -t 9p -o \$nine,ro,cache=loose modules /new/lib/modules/$release
\$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
exec \$b switch_root /new /bin/bash /mnt/out/stage2.sh
INIT
chmod +x "$work/root/init"
cat >"$out/stage2.sh" <<'STAGE2'
export PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ip link set lo up
hostname vm
bash /mnt/out/command.sh >/mnt/out/log 2>&1 </dev/null
echo $? >/mnt/out/status
sync
echo o >/proc/sysrq-trigger
sleep 5
STAGE2
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
image=$(find "$dir/" -name 'vmlinuz*' -type f | sort | head -1)
nine() { echo "-fsdev local,id=$1,path=$2,security_model=none$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"; }
# shellcheck disable=SC2046
timeout "${VM_LIMIT:-1800}" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -cpu max -m "${VM_MEM:-6144}" -smp "${VM_CPUS:-2}" \
	-nographic -no-reboot -nodefaults -serial file:"$out/console" -kernel "$image" -initrd "$work/initrd" \
	-append "console=ttyS0 quiet panic=1 net.ifnames=0 mitigations=off" \
	$(nine host / ,readonly=on,multidevs=remap) $(nine out "$out" '') \
	$(nine modules "$(readlink -f "$dir/lib/modules/$release")" ,readonly=on) || true
[ -e "$out/log" ] || { echo "the machine did not boot:" >&2; tail -30 "$out/console" >&2; exit 125; }
cat "$out/log"
exit "$(cat "$out/status" 2>/dev/null || echo 124)"
