//! No file of a hand runs as its owner or group on this machine.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hands::container::Workspace;
use hands::sandbox::{Access, Mount, pack};
use hands::{Ending, Hand, Lease};
use serde_json::json;
use tests::dockerd::Dockerd;
use tokio_util::sync::CancellationToken;

use crate::hand::container::ContainerRig;
use crate::hand::rig::Rig as _;
use crate::sandbox_kit::{Rig, call, config, context, seen};

/// The bits by which a program runs as its file's owner or group.
const SET_ID: u32 = 0o6000;

/// A call's number on this kind of machine.
const fn number(x86_64: u32, aarch64: u32) -> u32 {
    if cfg!(target_arch = "x86_64") { x86_64 } else { aarch64 }
}

/// Makes files that run as their owner or group in the folder `$ARGV[0]` by every system call that gives a mode, and
/// prints for each whether it did.
fn script() -> String {
    let old = if cfg!(target_arch = "x86_64") { OLD } else { "" };
    let numbers = [
        ("FCHMOD", number(91, 52)),
        ("FCHMODAT", number(268, 53)),
        ("FCHMODAT2", 452),
        ("MKNODAT", number(259, 33)),
        ("MKDIRAT", number(258, 34)),
        ("OPENAT2", 437),
        ("OPENAT", number(257, 56)),
        ("LINKAT", number(265, 37)),
        ("IO_URING_SETUP", 425),
    ];
    let directory = if cfg!(target_arch = "x86_64") { "0200000" } else { "040000" };
    let script = format!("{NEW}{old}").replace("DIRECTORY", directory);
    numbers
        .iter()
        .fold(script, |script, (name, number)| script.replace(&format!("{name},"), &format!("{number},")))
}

const NEW: &str = r#"
chdir $ARGV[0] or die $!;
my $here = -100;
sub told { my ($name, $done) = @_; print "$name ", ($done ? "done" : $! + 0), "\n" }
sub file { my $name = shift; open my $file, '>', $name or die $!; return ($name, $file) }
for my $mode (04755, 02755, 06777) {
    my $m = sprintf '%o', $mode;
    my ($name, $file) = file("fchmod-$m");
    told $name, syscall(FCHMOD, fileno $file, $mode) == 0;
    ($name, $file) = file("fchmodat-$m");
    told $name, syscall(FCHMODAT, $here, $name, $mode) == 0;
    ($name, $file) = file("fchmodat-high-$m");
    told $name, syscall(FCHMODAT, $here, $name, $mode | 1 << 32) == 0;
    ($name, $file) = file("fchmodat2-$m");
    told $name, syscall(FCHMODAT2, $here, $name, $mode, 0) == 0;
    $name = "mknodat-$m";
    told $name, syscall(MKNODAT, $here, $name, 0100000 | $mode, 0) == 0;
    $name = "openat-$m";
    told $name, syscall(OPENAT, $here, $name, 0102, $mode) >= 0;
    # O_TMPFILE and O_RDWR.
    my $dot = '.';
    my $fd = syscall(OPENAT, $here, $dot, 020000002 | DIRECTORY, $mode);
    my $from = "/proc/self/fd/$fd";
    $name = "tmpfile-$m";
    told $name, $fd >= 0 && syscall(LINKAT, $here, $from, $here, $name, 0x400) == 0;
    my $how = pack 'QQQ', 0102, $mode, 0;
    $name = "openat2-$m";
    told $name, syscall(OPENAT2, $here, $name, $how, 24) >= 0;
    $name = "mkdirat-$m";
    syscall(MKDIRAT, $here, $name, $mode) == 0 or die "mkdirat: $!";
}
my $ring = "\0" x 120;
told 'io_uring', syscall(IO_URING_SETUP, 4, $ring) >= 0;
"#;
/// System calls that only older kinds of machine have.
const OLD: &str = r#"
for my $mode (04755, 02755, 06777) {
    my $m = sprintf '%o', $mode;
    my ($name, $file) = file("chmod-$m");
    told $name, syscall(90, $name, $mode) == 0;
    $name = "creat-$m";
    told $name, syscall(85, $name, $mode) >= 0;
    $name = "open-$m";
    told $name, syscall(2, $name, 0102, $mode) >= 0;
    $name = "mknod-$m";
    told $name, syscall(133, $name, 0100000 | $mode, 0) == 0;
}
"#;

/// What below `folder` runs as its owner or group, or is a folder that has its content do so.
fn set_id(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            found.extend(set_id(&path));
        }
        if !metadata.is_symlink() && metadata.mode() & SET_ID != 0 {
            found.push(path);
        }
    }
    found
}

/// Holds that every line of what the script printed says that it was refused.
fn all_refused(printed: &str) {
    println!("{printed}");
    let expected = if cfg!(target_arch = "x86_64") { 37 } else { 25 };
    assert_eq!(printed.lines().count(), expected, "{printed}");
    for line in printed.lines() {
        // A daemon may be older than the newest call, and then does not know it.
        let refused: &[&str] = match line.split('-').next() {
            Some("openat2") => &[" 38"],
            Some("fchmodat2") => &[" 1", " 38"],
            _ => &[" 1"],
        };
        assert!(refused.iter().any(|refused| line.ends_with(refused)), "{line}");
    }
}

/// A folder of whoever runs this.
fn project() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

#[tokio::test]
async fn no_system_call_makes_a_file_run_as_its_owner() {
    let project = project();
    let mut config = config();
    config.mounts =
        vec![Mount { host: project.path().into(), at: "/project".into(), access: Access::ReadWrite }];
    let rig = Rig::with(config);
    rig.call("write", json!({"path": "/tmp/modes.pl", "content": script()})).await;
    for folder in ["/workspace", "/project", "/tmp"] {
        all_refused(&rig.prints(&format!("perl /tmp/modes.pl {folder}")).await);
    }
    for (folder, bits) in [("/workspace", "u+s"), ("/project", "g+s"), ("/project", "6755")] {
        let seen = rig.bash(&format!("cd {folder} && touch x && chmod {bits} x")).await;
        assert!(seen.text.contains("Operation not permitted"), "{}", seen.text);
    }
    let seen = rig.bash("cd /project && install -m 4755 /usr/bin/true installed").await;
    assert_eq!(seen.ending, Ending::Error, "{}", seen.text);
    assert_eq!(set_id(&rig.lease.work), Vec::<PathBuf>::new());
    assert_eq!(set_id(project.path()), Vec::<PathBuf>::new());
    rig.hand.shutdown().await;
}

/// What asks for no such bit works, be it of a file that has one.
#[tokio::test]
async fn programs_copy_and_unpack_what_runs_as_its_owner_without_that() {
    let project = project();
    let theirs = project.path().join("theirs");
    fs::write(&theirs, "before\n").unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut config = config();
    config.mounts =
        vec![Mount { host: project.path().into(), at: "/project".into(), access: Access::ReadWrite }];
    let rig = Rig::with(config);
    let tar = "echo x > x && tar --mode=4755 -cf x.tar x && rm x && tar -xf x.tar";
    let copies = "mkdir -m 0755 d && cp /project/theirs d && cp -r d e && mkdir deep && chmod 1777 deep && cp -p /usr/bin/su .";
    rig.prints(&format!("{tar} && {copies} && git init -q r && install -m 755 /project/theirs i")).await;
    // A mode that means nothing, since no file is made, is nobody's business.
    let open = format!("perl -e 'my $x = \"x\"; exit(syscall({}, -100, $x, 0, 06755) < 0)'", number(257, 56));
    rig.prints(&open).await;
    // A file that changes loses the bit, as when its owner writes to it.
    let written = rig.call("write", json!({"path": "/project/theirs", "content": "after\n"})).await;
    assert_eq!(written.ending, Ending::Ok, "{}", written.text);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "after\n");
    assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o7777, 0o755);
    // What a person copies in arrives without it.
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o4755)).unwrap();
    let handle = rig.hand.provision(&rig.lease, &hands::NoProgress).await.unwrap();
    let mut archive = Vec::new();
    pack(&theirs, &mut archive).unwrap();
    let archive = Box::new(std::io::Cursor::new(archive));
    rig.hand.files().unwrap().copy_in(&handle, "in", archive, &CancellationToken::new()).await.unwrap();
    assert_eq!(rig.prints("cat in").await, "after");
    assert_eq!(set_id(&rig.lease.work), Vec::<PathBuf>::new());
    rig.hand.shutdown().await;
}

async fn prints(rig: &ContainerRig, lease: &Lease, command: &str) -> String {
    let hand = rig.hand();
    let handle = hand.provision(lease, &hands::NoProgress).await.unwrap();
    let call = call("bash", json!({"command": command}));
    let seen = seen(hand.execute(&handle, &call, context()).await.unwrap());
    assert_eq!(seen.ending, Ending::Ok, "{command}: {}", seen.text);
    seen.text.trim_end().to_owned()
}

#[tokio::test]
async fn a_container_makes_no_file_that_runs_as_its_owner() {
    let rig = ContainerRig::with(|_| ()).await;
    let lease = rig.lease("one");
    let hand = rig.hand();
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let write = call("write", json!({"path": "/tmp/modes.pl", "content": script()}));
    assert_eq!(hand.execute(&handle, &write, context()).await.unwrap().ending, Ending::Ok);
    for folder in ["/workspace", "/tmp"] {
        all_refused(&prints(&rig, &lease, &format!("perl /tmp/modes.pl {folder}")).await);
    }
    // What the daemon, who is root, unpacks for a copy.
    let program = rig.folder.path().join("program");
    fs::write(&program, "x\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    let mut archive = Vec::new();
    pack(&program, &mut archive).unwrap();
    let archive = Box::new(std::io::Cursor::new(archive));
    hand.files().unwrap().copy_in(&handle, "in", archive, &CancellationToken::new()).await.unwrap();
    assert_eq!(prints(&rig, &lease, "cat in; stat -c %a in").await, "x\n755");
    assert_eq!(set_id(&lease.work), Vec::<PathBuf>::new());
    rig.finish().await;
}

/// The container's profile takes the place of the daemon's: what that one refuses is refused as well, and programs run.
#[tokio::test]
async fn a_container_may_make_no_more_system_calls_than_before() {
    let rig = ContainerRig::with(|config| config.workspace = Workspace::Volume).await;
    let lease = rig.lease("one");
    for (name, arguments, refused) in [
        ("unshare", format!("{}, 0x10000000", number(272, 97)), 1),
        ("mount", format!("{}, 0, 0, 0, 0, 0", number(165, 40)), 1),
        ("keyctl", format!("{}, 0, 0", number(250, 219)), 1),
        ("add_key", format!("{}, 0, 0, 0, 0, 0", number(248, 217)), 1),
        ("bpf", format!("{}, 0, 0, 0", number(321, 280)), 1),
        ("perf_event_open", format!("{}, 0, 0, 0, 0, 0", number(298, 241)), 1),
        ("userfaultfd", format!("{}, 0", number(323, 282)), 1),
        ("clone CLONE_NEWUSER", format!("{}, 0x10010000, 0, 0, 0, 0", number(56, 220)), 1),
        ("clone3", "435, 0, 0".into(), 38),
        ("io_setup", format!("{}, 1, 0", number(206, 0)), 38),
        ("personality", format!("{}, 0x40000", number(135, 92)), 1),
        ("socket AF_VSOCK", format!("{}, 40, 1, 0", number(41, 198)), 1),
        ("socket AF_ALG", format!("{}, 38, 5, 0", number(41, 198)), 1),
        ("unknown", "999, 0".into(), 38),
    ] {
        let ask = format!("perl -e 'print syscall({arguments}) < 0 ? $! + 0 : 0'");
        assert_eq!(prints(&rig, &lease, &ask).await, refused.to_string(), "{name}");
    }
    let works = "(sleep 0.1; echo second) & echo first; wait; mkfifo p; (echo through > p &); cat p";
    assert_eq!(prints(&rig, &lease, works).await, "first\nsecond\nthrough");
    let sockets =
        "perl -e 'for (1, 2, 10, 16) { socket(my $s, $_, $_ == 16 ? 3 : 1, 0) or die \"$_ $!\" } print 1'";
    assert_eq!(prints(&rig, &lease, sockets).await, "1");
    rig.finish().await;
}

/// A runtime to which a filter means nothing, as to one with a kernel of its own: without it, it is `runc`.
const UNFILTERED: &str = r#"#!/bin/sh
bundle=.
for argument do
    case $previous in --bundle | -b) bundle=$argument ;; esac
    previous=$argument
done
if [ -f "$bundle/config.json" ]; then
    jq 'del(.linux.seccomp)' "$bundle/config.json" > "$bundle/unfiltered.json" &&
        mv "$bundle/unfiltered.json" "$bundle/config.json"
fi
exec runc "$@"
"#;

#[tokio::test]
async fn what_another_runtime_lets_a_container_make_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path().join("unfiltered");
    fs::write(&runtime, UNFILTERED).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Dockerd::start_with_runtime("unfiltered", &runtime).await.unwrap();
    let rig = ContainerRig::of(daemon, |config| config.runtime = Some("unfiltered".into()));
    let lease = rig.lease("one");
    let make = "mkdir -p a/b; echo x > a/b/program; chmod 6755 a/b/program && echo made; ln -s /etc/passwd l";
    // What it has may be gone before anybody looks.
    assert_eq!(prints(&rig, &lease, make).await, "made");
    let made = [lease.work.join("a/b/program")];
    // Soon after the call …
    crate::sandbox_kit::soon(|| set_id(&lease.work).is_empty()).await;
    assert_eq!(fs::metadata(&made[0]).unwrap().mode() & 0o7777, 0o755);
    // … and at the latest when the container has ended.
    prints(&rig, &lease, "(sleep 3; chmod 4755 a/b/program) > /dev/null 2>&1 < /dev/null &").await;
    crate::sandbox_kit::soon(|| set_id(&lease.work) == made).await;
    let handle = hands::Handle { instance: lease.instance.clone() };
    rig.hand().release(handle).await.unwrap();
    assert_eq!(set_id(&lease.work), Vec::<PathBuf>::new());
    rig.finish().await;
}
