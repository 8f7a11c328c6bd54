//! Trees that an agent made so deep, or so closed, that walking them would end this machine's programs.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use hands::Hand as _;
use hands::sandbox::{SandboxConfig, pack};
use serde_json::json;
use tests::gateway::{Gateway, Options, binary};

use super::copies::as_an_ordinary_user;
use crate::cli::Home;
use crate::sandbox_kit::{Rig, config};

/// Makes so many folders, each in the one before, with one that nobody may look into, and a closed one at the end.
const DIG: &str = r#"
use strict;
my ($depth) = @ARGV;
mkdir 'closed'; mkdir 'closed/in'; chmod 0, 'closed/in'; chmod 0, 'closed';
for (1 .. $depth) { mkdir 'd' or die $!; chdir 'd' or die $! }
mkdir 'end'; open my $file, '>', 'end/file'; chmod 0, 'end';
print "dug\n";
"#;
/// As many as overflow any stack that is walked by calls.
const DEPTH: usize = 60_000;
/// More than the longest path of the kernel has names.
const TOO_DEEP: usize = 5_000;
/// How long it may take to remove that, on a machine under load.
const PATIENCE: Duration = Duration::from_mins(4);

fn dig(depth: usize) -> String {
    format!("perl -e '{}' {depth}", DIG.replace('\'', r"'\''"))
}

/// Has the agent of a session dig. Where its work is.
fn dug(home: &Home, depth: usize) -> PathBuf {
    let arguments = json!({ "command": dig(depth), "timeout_s": 300 }).to_string();
    let called = home.run(&["hand", "call", "sandbox", "bash", &arguments, "--session", "deep"]);
    assert!(called.code == Some(0) && called.out.contains("dug"), "{called:?}");
    let sessions = fs::read_dir(home.data().join("work")).unwrap().map(|entry| entry.unwrap().path());
    sessions
        .filter(|path| path.join("sandbox/d").exists())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .unwrap()
}

/// Waits until nothing is left of what is being removed: so much of it takes its time.
fn until_removed(home: &Home) {
    let start = Instant::now();
    let left = || fs::read_dir(home.data().join("work/removed")).map_or(1, Iterator::count);
    while left() > 0 {
        assert!(start.elapsed() < PATIENCE, "it is not removed");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn gateway(home: &Home, config: &str) -> Gateway {
    Gateway::start_blocking(&Options::default().data(&home.data()).config(config)).unwrap()
}

#[test]
fn a_session_with_a_deep_tree_is_deleted_and_all_goes_on() {
    let home = Home::new();
    let gateway = gateway(&home, "");
    let work = dug(&home, DEPTH);
    let deleted = home.run(&["session", "delete", "deep"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?} {}", gateway.stderr());
    assert!(!work.exists());
    until_removed(&home);
    let called = home.run(&["hand", "call", "sandbox", "bash", r#"{"command": "echo on"}"#]);
    assert!(called.out.contains("on"), "{called:?}");
    assert!(!gateway.stderr().contains("could not be removed"), "{}", gateway.stderr());
}

#[test]
fn a_gateway_starts_whatever_archived_work_there_is() {
    let home = Home::new();
    let mut first = gateway(&home, "");
    let work = dug(&home, DEPTH);
    assert_eq!(home.run(&["session", "archive", "deep"]).code, Some(0));
    assert!(work.exists());
    first.stop().unwrap();
    let second = gateway(&home, "work_retention_days = 0");
    until_removed(&home);
    assert!(!work.exists());
    let called = home.run(&["hand", "call", "sandbox", "bash", r#"{"command": "echo on"}"#]);
    assert!(called.out.contains("on"), "{called:?}");
    assert!(!second.stderr().contains("could not be removed"), "{}", second.stderr());
}

/// A folder that is in use can't be removed: here something is mounted on it.
#[test]
fn what_cannot_be_removed_is_said_and_tried_again() {
    let home = Home::new();
    let script = r#"
        serve() { $M serve --listen 127.0.0.1:0 > serving 2>> log & serving=$!
            until grep -q listening serving; do sleep 0.1; done; }
        serve
        $M hand call sandbox bash '{"command":"mkdir -p a/used b; touch a/file b/file"}' --session s > /dev/null
        work=data/work
        used=$(echo $work/*/sandbox/a/used)
        mount -t tmpfs tmpfs "$used"
        $M session delete s > /dev/null && echo deleted
        for _ in $(seq 600); do grep -q 'tried again later' log && break; sleep 0.1; done
        grep -q 'tried again later' log && echo said
        find $work/removed -mindepth 2 -printf '%P\n' | sed 's/^[^/]*\///' | sort
        kill $serving; wait $serving
        umount $work/removed/*/sandbox/a/used
        serve
        for _ in $(seq 600); do [ -z "$(ls $work/removed)" ] && break; sleep 0.1; done
        ls $work/removed; echo gone
        kill $serving; wait $serving
    "#;
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let said = command
        .args(["--mount", "bash", "-c", script])
        .current_dir(home.path())
        .env("M", binary())
        .env("MANYHANDS_DATA", home.data())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(out, "deleted\nsaid\nsandbox\nsandbox/a\nsandbox/a/used\ngone\n", "{said:?}");
}

#[test]
fn a_deep_tree_is_copied_nowhere_and_that_is_one_sentence() {
    let home = Home::new();
    let _gateway = gateway(&home, "");
    dug(&home, TOO_DEEP);
    let copied = home.run(&["hand", "cp", "sandbox:d", "out", "--session", "deep"]);
    copied.refuses(1, &["too deeply nested"]);
    let here = home.path().join("here");
    fs::create_dir(&here).unwrap();
    let made =
        Command::new("perl").args(["-e", DIG, &TOO_DEEP.to_string()]).current_dir(&here).status().unwrap();
    assert!(made.success());
    let said = pack(&here.join("d"), std::io::sink()).unwrap_err().to_string();
    assert!(said.contains("is too deeply nested"), "{said}");
    home.run(&["hand", "cp", "here/d", "sandbox:in"]).refuses(1, &["is too deeply nested"]);
    hands::folder::remove(&here).unwrap();
    let mut left: Vec<_> =
        fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["data"]);
    // What is left goes by a way that holds.
    assert_eq!(home.run(&["session", "delete", "deep"]).code, Some(0));
    until_removed(&home);
}

/// However deep it lies, what an agent writes counts.
#[tokio::test]
async fn a_deep_workspace_is_measured() {
    let mut small: SandboxConfig = config();
    small.limits.workspace = 64 << 20;
    let rig = Rig::with(small);
    let script = "perl -e 'for (1 .. 5000) { mkdir \"d\"; chdir \"d\" } \
        for (1, 2) { open my $file, \">\", $_; print $file \"x\" x 1048576 for 1 .. 50; close $file } sleep 100'";
    let seen = rig.call("bash", json!({"command": script, "timeout_s": 90})).await;
    assert!(seen.text.contains("grew beyond its limit of 64 MiB"), "{}", seen.text);
    rig.hand.shutdown().await;
    hands::folder::remove(&rig.lease.work).unwrap();
}

#[test]
fn all_of_it_holds_without_root_too() {
    as_an_ordinary_user(&[
        "borders::walks::a_session_with_a_deep_tree_is_deleted_and_all_goes_on",
        "borders::walks::a_gateway_starts_whatever_archived_work_there_is",
        "borders::walks::a_deep_tree_is_copied_nowhere_and_that_is_one_sentence",
        "borders::walks::a_deep_workspace_is_measured",
    ]);
}
