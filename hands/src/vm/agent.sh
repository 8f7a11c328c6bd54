# Runs commands for the gateway. Over each of the ports work0, work1, … it answers one request at a time, over the port
# control it is told what to kill. All bytes pass as they are; their number is said before them.
box=/run/manyhands groups=/sys/fs/cgroup image=/image
mkdir -p $box

# Runs the call $1; behind all that it printed come $3 and its exit code.
start() {
  exec 5> "$box/$1/out"
  (
    # The process that writes is the one that is moved.
    echo 0 > "$groups/manyhands-$1/cgroup.procs"
    if [ "$2" = merged ]; then exec 2>&5; else exec 2> "$box/$1/err"; fi
    exec >&5 5>&-
    root=/
    [ -e $box/image ] && root=$image
    exec setsid chroot $root sh "$box/$1/script"
  )
  code=$?
  [ -e "$box/$1/nowhere" ] && code=nowhere
  printf '%s%s\n' "$3" "$code" >&5
}

# The disk that outlives the machine. One that was never written to is made ready.
use_disk() {
  [ -b /dev/vda ] || return 1
  blockdev --flushbufs /dev/vda
  if [ -z "$(dd if=/dev/vda bs=65536 count=1 2> /dev/null | tr -d '\0' | head -c 1)" ]; then
    mke2fs /dev/vda > /dev/null 2>&1 || return 1
  elif command -v e2fsck > /dev/null; then
    e2fsck -p /dev/vda > /dev/null 2>&1
  fi
  mount -t ext2 /dev/vda /workspace
}

# The disk with a system of its own, in which commands run from now on.
use_image() {
  mkdir -p $image
  for disk in /dev/vda /dev/vda[0-9]*; do
    [ -b "$disk" ] || continue
    blockdev --flushbufs "$disk"
    mount "$disk" $image 2> /dev/null || continue
    [ -e $image/bin/sh ] && break
    umount $image
  done
  [ -e $image/bin/sh ] || return 1
  for folder in proc sys dev run tmp; do
    mkdir -p "$image/$folder"
    mount --bind "/$folder" "$image/$folder"
  done
  mkdir -p $image/workspace
  : > $box/image
}

# What background processes of earlier calls have left.
sweep() {
  for group in "$groups"/manyhands-*; do
    [ -e "$box/${group##*/manyhands-}" ] || rmdir "$group" 2> /dev/null
  done
}

answer() {
  stat -c %s "$1" >&3
  cat "$1" >&3
}

request() {
  case $1 in
    # Time has passed since the machine's state was kept.
    clock)
      hwclock -s -u 2> /dev/null
      echo ok >&3
      ;;
    # Others began with the same state.
    seed)
      head -c "$2" <&3 > $box/seed
      if /manyhands/reseed < $box/seed > /dev/random; then echo ok >&3; else echo no >&3; fi
      rm $box/seed
      ;;
    disk)
      if use_disk; then echo ok >&3; else echo no >&3; fi
      ;;
    image)
      if use_image; then echo ok >&3; else echo no >&3; fi
      ;;
    new)
      sweep
      mkdir -p "$box/$2" "$groups/manyhands-$2"
      mkfifo "$box/$2/out"
      : > "$box/$2/in"
      : > "$box/$2/script"
      : > "$box/$2/err"
      echo ok >&3
      ;;
    put)
      head -c "$4" <&3 >> "$box/$2/$3"
      echo ok >&3
      ;;
    run)
      exec 7< "$box/$2/in"
      # With `exec`: a redirection of a command of the shell's own keeps what it closes open elsewhere.
      (
        exec 3>&- 6>&- <&7 7<&-
        start "$2" "$3" "$4"
      ) &
      exec 7<&- 4< "$box/$2/out"
      echo ok >&3
      ;;
    # Its input will come over another port while it runs. Until that is there, this end keeps it open.
    pipe)
      rm "$box/$2/in"
      mkfifo "$box/$2/in"
      exec 6<> "$box/$2/in"
      echo ok >&3
      ;;
    piped)
      exec 6>&-
      echo ok >&3
      ;;
    feed)
      exec 6> "$box/$2/in"
      echo ok >&3
      ;;
    # What nobody reads any more is dropped.
    give)
      head -c "$2" <&3 2> /dev/null | { cat >&6; cat > /dev/null; } 2> /dev/null
      echo ok >&3
      ;;
    more)
      dd bs=65536 count=1 <&4 > "$box/$2/chunk" 2> /dev/null
      answer "$box/$2/chunk"
      ;;
    end)
      # What still prints into it goes on, and nobody reads it.
      cat <&4 > /dev/null 3>&- &
      exec 4<&-
      sync
      head -c 65536 "$box/$2/err" > "$box/$2/chunk"
      answer "$box/$2/chunk"
      rm -rf "${box:?}/$2"
      rmdir "$groups/manyhands-$2" 2> /dev/null
      ;;
  esac
}

# A port reads as ended while nobody is at its other end.
serve() {
  exec 3<> "$1"
  echo ready >&3
  while :; do
    while read -r verb id one two <&3; do
      request "$verb" "$id" "$one" "$two"
    done
    sleep 1
  done
}

obey() {
  exec 3<> "$1"
  while :; do
    while read -r verb id <&3; do
      [ "$verb" = kill ] && echo 1 > "$groups/manyhands-$id/cgroup.kill"
    done
    sleep 1
  done
}

# Ports come one after the other, this one last.
until grep -qx control /sys/class/virtio-ports/*/name 2> /dev/null; do
  sleep 0.1
done
for port in /sys/class/virtio-ports/*; do
  case $(cat "$port/name") in
    control) obey "/dev/${port##*/}" & ;;
    work*) serve "/dev/${port##*/}" & ;;
  esac
done
while :; do
  wait
  sleep 60
done
