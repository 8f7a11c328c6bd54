# Runs commands for the gateway. Two serial ports: on the first it answers one request at a time, on the second it is
# told what to kill. All bytes pass as they are; lengths are said before them.
work=/dev/ttyS1 control=/dev/ttyS2 box=/run/manyhands groups=/sys/fs/cgroup
mkdir -p $box
for port in $work $control; do
  stty raw -echo -ixon -ixoff -hupcl clocal 115200 < $port
done
while read -r verb id; do
  case $verb in
    kill) echo 1 > "$groups/manyhands-$id/cgroup.kill" ;;
  esac
done < $control &

# Runs the call $1, says its end by $3 and its exit code, behind all that it printed.
start() {
  exec 5> "$box/$1/out"
  (
    # The process that writes is the one that is moved.
    echo 0 > "$groups/manyhands-$1/cgroup.procs"
    cd /workspace || exit 126
    if [ "$2" = merged ]; then exec 2>&5; else exec 2> "$box/$1/err"; fi
    exec >&5 5>&- < "$box/$1/in"
    exec setsid sh "$box/$1/script"
  )
  code=$?
  [ -e "$box/$1/nowhere" ] && code=nowhere
  printf '%s%s\n' "$3" "$code" >&5
}

# The disk that outlives the machine. One that was never written to is made ready.
use_disk() {
  [ -b /dev/vda ] || return 0
  blockdev --flushbufs /dev/vda
  if [ -z "$(dd if=/dev/vda bs=65536 count=1 2>/dev/null | tr -d '\0' | head -c 1)" ]; then
    mke2fs /dev/vda > /dev/null 2>&1 || return 1
  elif command -v e2fsck > /dev/null; then
    e2fsck -p /dev/vda > /dev/null 2>&1
  fi
  mount -t ext2 /dev/vda /workspace
}

exec 3<> $work
echo ready >&3
while read -r verb id one two <&3; do
  case $verb in
    disk)
      if use_disk; then echo ok >&3; else echo no >&3; fi
      ;;
    new)
      mkdir -p "$box/$id" "$groups/manyhands-$id"
      mkfifo "$box/$id/out"
      : > "$box/$id/in" > "$box/$id/script" > "$box/$id/err"
      echo ok >&3
      ;;
    put)
      head -c "$two" <&3 >> "$box/$id/$one"
      echo ok >&3
      ;;
    run)
      start "$id" "$one" "$two" 3>&- < /dev/null &
      exec 4< "$box/$id/out"
      echo ok >&3
      ;;
    more)
      dd bs=16384 count=1 <&4 > $box/chunk 2> /dev/null
      stat -c %s $box/chunk >&3
      cat $box/chunk >&3
      ;;
    end)
      # What still prints into it goes on, and nobody reads it.
      cat <&4 > /dev/null 3>&- &
      exec 4<&-
      head -c 65536 "$box/$id/err" > $box/chunk
      rm -rf "${box:?}/$id"
      rmdir "$groups"/manyhands-* 2> /dev/null
      sync
      stat -c %s $box/chunk >&3
      cat $box/chunk >&3
      ;;
  esac
done
