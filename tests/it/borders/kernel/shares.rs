//! One sandbox takes nothing of what the kernel counts for a user so that the user has no more of it.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::process::Command;

use hands::Hand;
use hands::sandbox::{State, inspect};
use serde_json::json;

use crate::hand::container::ContainerRig;
use crate::hand::rig::Rig as _;
use crate::sandbox_kit::{Rig, call, config, context, seen};

/// Takes as much of `$ARGV[0]` as it gets, at most `$ARGV[1]`, prints how much that was, and keeps it for as long as
/// `$ARGV[2]` says, in seconds.
const TAKE: &str = r#"
my ($what, $most, $seconds) = @ARGV;
my ($taken, @kept) = (0);
my ($inotify_init1, $timer_create, $mq_open, $mq_unlink, $sendmsg, $add_key) = NUMBERS;
my $fds = 253;
my %take = (
    inotify => sub { my $fd = syscall($inotify_init1, 0); $fd >= 0 and push @kept, $fd },
    timers => sub { my $timer = "\0" x 8; syscall($timer_create, 1, 0, $timer) == 0 },
    queues => sub { my $name = "manyhands-$$-$taken"; push @kept, $name; syscall($mq_open, $name, 0102, 0600, 0) >= 0 },
    # As many descriptors as one message can have, which nobody receives.
    descriptors => sub {
        if ($taken % 50 == 0) { socketpair(my $one, my $other, 1, 1, 0) or return; push @kept, [$one, $other] }
        my $byte = 'x';
        my $bytes = pack 'PQ', $byte, 1;
        my $rights = pack 'Qii', 16 + 4 * $fds, 1, 1;
        $rights .= pack 'i*', (fileno $kept[-1][0]) x $fds;
        my $message = pack 'QQPQPQQ', 0, 0, $bytes, 1, $rights, length $rights, 0;
        syscall($sendmsg, fileno $kept[-1][0], $message, 0) == 1
    },
    keys => sub { my ($type, $name, $key) = ('user', "manyhands-$$-$taken", 'x');
        syscall($add_key, $type, $name, $key, 1, -3) >= 0 },
);
$taken++ while $taken < $most && $take{$what}->();
my $why = $! + 0;
$| = 1;
print $taken < $most ? "$taken $why\n" : "$taken\n";
close STDOUT;
sleep $seconds;
if ($what eq 'queues') { syscall($mq_unlink, "$_") for @kept }
"#;

fn take() -> String {
    let numbers = if cfg!(target_arch = "x86_64") {
        "(294, 222, 240, 241, 46, 248)"
    } else {
        "(26, 107, 180, 181, 211, 217)"
    };
    TAKE.replace("NUMBERS", numbers)
}

/// Has a background process of a sandbox take all that it can get, and gives how much that was.
async fn taken(rig: &Rig, what: &str) -> u64 {
    rig.call("write", json!({"path": "take.pl", "content": take()})).await;
    let command = format!(
        "ulimit -n $(ulimit -Hn); perl take.pl {what} 100000 600 > {what} 2> /dev/null < /dev/null & \
         until [ -s {what} ]; do sleep 0.05; done; cat {what}"
    );
    let printed = rig.prints(&command).await;
    println!("{what}: {printed}");
    printed.split(' ').next().unwrap().parse().unwrap()
}

/// Whether this user still gets one, outside.
fn gets_one(what: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("take.pl");
    fs::write(&script, take()).unwrap();
    let command = "ulimit -n $(ulimit -Hn); exec perl \"$0\" \"$1\" 1 0";
    let output = Command::new("sh").args(["-c", command]).arg(&script).arg(what).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("outside: {what}: {printed}");
    printed == "1\n"
}

fn setting(name: &str) -> u64 {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn what_one_takes_of_all_that_is_counted_leaves_its_user_enough() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let messages = (16 * 1024).min(files / 2) / 253 + 2;
    for (what, range) in [
        ("inotify", 1..=setting("fs/inotify/max_user_instances") / 8),
        ("timers", 1..=1024),
        ("queues", 1..=3),
        ("descriptors", 1..=messages),
        ("keys", 0..=0),
    ] {
        let rig = Rig::new();
        let taken = taken(&rig, what).await;
        assert!(range.contains(&taken), "{what}: {taken}, not {range:?}");
        assert!(gets_one(what), "this user gets none of {what} any more");
        rig.hand.shutdown().await;
    }
}

#[tokio::test]
async fn what_bounds_one_can_not_be_undone_inside() {
    let rig = Rig::new();
    let watches = setting("fs/inotify/max_user_watches") / 8;
    let instances = setting("fs/inotify/max_user_instances") / 8;
    for (command, expected) in [
        ("cat /proc/sys/user/max_inotify_watches", watches.to_string()),
        ("cat /proc/sys/user/max_inotify_instances", instances.to_string()),
        ("echo 100000 > /proc/sys/user/max_inotify_instances; echo $?", "1".into()),
        ("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/1/status | grep -vc 0000000000000000", "0".into()),
        ("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/$PPID/status | grep -vc 0000000000000000", "0".into()),
        ("ulimit -Hi; ulimit -Hq; ulimit -Hl", "1024 262144 64".into()),
        ("ulimit -i 1025 2>&1 | grep -c 'not permitted'", "1".into()),
    ] {
        let text = rig.bash(command).await.text;
        let text = text.split("\n[").next().unwrap();
        let seen: Vec<&str> = text.lines().filter(|line| !line.starts_with("bash:")).collect();
        assert_eq!(seen.join(" "), expected, "{command}: {text}");
    }
    rig.hand.shutdown().await;
}

/// The store of asynchronous input and output is the machine's: nobody has a part of it.
#[tokio::test]
async fn nothing_is_taken_of_what_is_counted_for_the_whole_machine() {
    let rig = Rig::new();
    let io_setup = if cfg!(target_arch = "x86_64") { 206 } else { 0 };
    let ask = format!(
        "perl -e 'my $context = \"\\0\" x 8; print syscall({io_setup}, 1, $context) < 0 ? $! + 0 : 0'"
    );
    assert_eq!(rig.prints(&ask).await, "38");
    rig.hand.shutdown().await;
}

#[test]
fn doctor_says_whether_sandboxes_share_a_user() {
    let findings = inspect(&config(), std::path::Path::new("/"));
    let users = findings.iter().find(|finding| finding.subject == "users").unwrap();
    if rustix::process::geteuid().is_root() {
        assert_eq!((users.state, users.found.as_str()), (State::Fine, "each sandbox has a user of its own"));
    } else {
        assert_eq!(users.state, State::Weaker);
        for taken in ["epoll watches", "large pipes", "descriptors", "a container inotify"] {
            assert!(users.found.contains(taken), "{}", users.found);
        }
    }
}

#[tokio::test]
async fn a_container_has_the_same_limits_of_each_process() {
    let rig = ContainerRig::with(|_| ()).await;
    let lease = rig.lease("one");
    let hand = rig.hand();
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let limits =
        call("bash", json!({"command": "ulimit -Hi; ulimit -Hq; ulimit -Hl; [ $(ulimit -Hn) -le 16384 ]"}));
    let seen = seen(hand.execute(&handle, &limits, context()).await.unwrap());
    assert_eq!(seen.text, "1024\n262144\n64\n");
    rig.finish().await;
}
