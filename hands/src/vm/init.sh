#!/bin/sh
# The first process of a guest that is a hand: what every guest needs, then what this one's own
# /etc/manyhands-boot does (modules, for example), then the agent.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mkdir -p /proc /sys /dev /run /tmp /workspace /root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs -o mode=755,size=64m run /run
mount -t tmpfs -o mode=1777,size=64m tmp /tmp
mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup /sys/fs/cgroup
hostname vm
ifconfig lo up 2>/dev/null || ip link set lo up 2>/dev/null
[ -x /etc/manyhands-boot ] && /etc/manyhands-boot
# Without these the agent would wait for ever. With the first process the machine ends.
lacks=
for program in setsid chroot mkfifo dd head tr stat grep mount mke2fs; do
  command -v "$program" > /dev/null 2>&1 || lacks="$lacks $program"
done
rounds=0
until [ -d /sys/class/virtio-ports ]; do
  rounds=$((rounds + 1))
  if [ $rounds -gt 10 ]; then
    lacks="$lacks virtio (load virtio_pci, virtio_blk and virtio_console in /etc/manyhands-boot)"
    break
  fi
  sleep 1
done
if [ "$lacks" ]; then
  echo "manyhands: the guest lacks:$lacks" > /dev/console
  exit 1
fi
exec sh /manyhands/agent
