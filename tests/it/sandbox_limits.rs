//! What runs into a limit ends as a tool error, and harms nobody else.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::time::{Duration, Instant};

use hands::sandbox::SandboxConfig;
use hands::{Ending, Hand, HandError};
use serde_json::json;

use crate::sandbox_kit::{Rig, Seen, call, config, context, impostor, seen};

fn small(change: impl FnOnce(&mut SandboxConfig)) -> Rig {
    let mut config = config();
    change(&mut config);
    Rig::with(config)
}

async fn timed(rig: &Rig, seconds: u64, command: &str) -> Seen {
    rig.call("bash", json!({"command": command, "timeout_s": seconds})).await
}

fn limited_together(rig: &Rig, what: &str) -> bool {
    rig.hand.about()["limited_together"].as_array().unwrap().iter().any(|name| name == what)
}

#[tokio::test]
async fn a_fork_bomb_that_waits_ends_with_its_call() {
    let rig = small(|config| config.limits.processes = 200);
    let seen = timed(&rig, 2, "bomb() { bomb | bomb & bomb | bomb & wait; }; bomb 2>/dev/null").await;
    assert_ne!(seen.ending, Ending::Ok, "{}", seen.text);
    assert_eq!(rig.prints("echo $((6*7))").await, "42");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_fork_bomb_in_the_background_costs_its_instance_only() {
    let rig = small(|config| config.limits.processes = 100);
    let start = Instant::now();
    timed(&rig, 3, "bomb() { bomb | bomb & }; bomb 2> /dev/null; sleep 1").await;
    // It is noticed, ended and said, and a call runs again.
    let mut said = false;
    loop {
        match rig.try_call("bash", json!({"command": "echo alive"}), context()).await {
            Ok(outcome) => {
                let seen = seen(outcome);
                said |= seen.text.contains("background processes were ended for being more than 50");
                if seen.ending == Ending::Ok && said {
                    break;
                }
            }
            Err(HandError::Lost { why, .. }) => said |= why.contains("used up all 100 processes"),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < Duration::from_mins(1));
    }
    rig.hand.shutdown().await;
}

/// Only where a cgroup divides the processors can it be promised.
#[tokio::test]
async fn a_fork_bomb_leaves_others_their_speed() {
    let (bomber, other) = (Rig::new(), Rig::new());
    let quiet = median_of_calls(&other).await;
    let cancel = context();
    let bomb = json!({"command": "bomb() { bomb | bomb & bomb | bomb & wait; }; bomb 2> /dev/null", "timeout_s": 100});
    let (ended, loud) = tokio::join!(bomber.try_call("bash", bomb, cancel.clone()), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let loud = median_of_calls(&other).await;
        cancel.cancel.cancel();
        loud
    });
    assert_eq!(ended.unwrap().ending, Ending::Cancelled);
    println!("p50 of 50 calls: {quiet:?} alone, {loud:?} beside a fork bomb");
    if limited_together(&other, "CPU") && limited_together(&other, "processes") {
        assert!(loud < 4 * quiet, "{loud:?} instead of {quiet:?}");
    }
    tokio::join!(bomber.hand.shutdown(), other.hand.shutdown());
}

async fn median_of_calls(rig: &Rig) -> Duration {
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        assert_eq!(rig.bash("true").await.ending, Ending::Ok);
        times.push(start.elapsed());
    }
    times.sort();
    times[25]
}

#[tokio::test]
async fn used_up_processes_cost_the_background_ones_and_run_nothing_twice() {
    let rig = small(|config| config.limits.processes = 64);
    // Each leaves fewer than half of the limit behind, together they leave no room.
    let hoard =
        "perl -e 'for (1..24) { my $pid = fork // last; $pid or exec qw(sleep 300) }' > /dev/null 2>&1";
    for _ in 0..3 {
        timed(&rig, 60, hoard).await;
    }
    let lost = rig.try_call("bash", json!({"command": "echo x >> ran"}), context()).await;
    let Err(HandError::Lost { may_have_run: false, why }) = lost else { panic!("{lost:?}") };
    assert!(why.contains("used up all 64 processes"), "{why}");
    assert_eq!(rig.prints("ls").await, "");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_memory_hog_is_killed_and_says_why() {
    let rig = small(|config| config.limits.memory = 128 << 20);
    let hog = "perl -e 'my @all; push @all, \"x\" x 1048576 while 1'";
    let seen = timed(&rig, 60, hog).await;
    assert_eq!(seen.ending, Ending::Error, "{}", seen.text);
    if limited_together(&rig, "memory") {
        assert!(seen.text.contains("killed by the memory limit"), "{}", seen.text);
    } else {
        assert!(seen.text.contains("Out of memory"), "{}", seen.text);
    }
    assert_eq!(rig.prints("echo $((6*7))").await, "42");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_filled_tmp_says_so_and_harms_nothing() {
    let rig = small(|config| config.limits.tmp = 8 << 20);
    let seen = timed(&rig, 60, "head -c 16777216 /dev/zero > /tmp/x").await;
    assert!(seen.text.contains("No space left on device"), "{}", seen.text);
    let written = rig.call("write", json!({"path": "/tmp/y", "content": "y".repeat(100_000)})).await;
    assert_eq!(written.ending, Ending::Error);
    assert!(written.text.contains("Nothing was changed"), "{}", written.text);
    assert_eq!(rig.prints("ls -A /tmp").await, "x", "something half-written is left");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_filled_workspace_ends_the_call_and_can_be_emptied() {
    let rig = small(|config| config.limits.workspace = 24 << 20);
    let one = timed(&rig, 60, "head -c 100000000 /dev/zero > x").await;
    assert_eq!(one.ending, Ending::Error, "one file: {}", one.text);
    let many = "i=0; while :; do head -c 2000000 /dev/zero > f$i; i=$((i+1)); sleep 0.01; done";
    let many = timed(&rig, 60, many).await;
    assert_eq!(many.ending, Ending::Error, "many files: {}", many.text);
    assert!(many.text.contains("grew beyond its limit of 24 MiB"), "{}", many.text);
    assert_eq!(rig.prints("rm -f f* x; sleep 1.5; echo emptied").await, "emptied");
    rig.prints("head -c 5000000 /dev/zero > y; sleep 1.5").await;
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_background_process_that_fills_the_workspace_ends() {
    let rig = small(|config| config.limits.workspace = 8 << 20);
    let filler =
        "i=0; while :; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); sleep 0.02; done > /dev/null 2>&1 &";
    rig.prints(filler).await;
    let count = || std::fs::read_dir(&rig.lease.work).unwrap().count();
    let start = Instant::now();
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = count();
        if now == before && now > 0 {
            break;
        }
        before = now;
        assert!(start.elapsed() < Duration::from_mins(1), "it goes on: {now} files");
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn no_call_starts_on_a_full_disk() {
    let rig = small(|config| config.limits.free_disk = u64::MAX);
    let refused = rig.try_call("bash", json!({"command": "echo x > ran"}), context()).await;
    let Err(HandError::Unavailable { why, remedy }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("free on the disk"), "{why}");
    assert!(remedy.contains("free some space"), "{remedy}");
    assert!(!rig.lease.work.join("ran").exists());
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_flood_of_output_keeps_head_and_tail() {
    let rig = small(|config| config.limits.output = 4 << 20);
    let before = resident();
    let seen = timed(&rig, 100, "echo first; yes 0123456789 | head -c 1000000000").await;
    assert_eq!(seen.ending, Ending::Error);
    assert!(seen.text.starts_with("first\n0123456789\n"));
    assert!(seen.text.contains("left out …]"));
    assert!(seen.text.ends_with("[ended: it printed more than 4 MiB; print less, or to a file]"));
    assert!(seen.text.len() < 3 << 20, "{}", seen.text.len());
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "the gateway grew by {grown} bytes");
    assert_eq!(rig.prints("yes | head -c 1000000 | wc -c").await, "1000000");
    rig.hand.shutdown().await;
}

/// Most bytes that this process ever had in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn a_runner_that_is_killed_or_stopped_takes_its_instance_along() {
    let rig = Rig::new();
    let lost = rig.try_call("bash", json!({"command": "kill -9 $PPID; sleep 100"}), context()).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    let seen = timed(&rig, 1, "kill -STOP $PPID; sleep 100").await;
    assert_eq!(seen.ending, Ending::Timeout, "{}", seen.text);
    assert!(seen.text.contains("background processes were ended"), "{}", seen.text);
    assert_eq!(rig.prints("echo new").await, "new");
    rig.hand.shutdown().await;
}

/// The gateway's peer may be anything, once something in the sandbox took the runner's place.
#[tokio::test]
async fn an_impostor_at_the_socket_harms_nobody() {
    let modes = [("kind", 60), ("long", 60), ("end", 60), ("closed", 60), ("silent", 1), ("torrent", 60)];
    futures_util::future::join_all(modes.map(|(mode, timeout)| meet_impostor(mode, timeout))).await;
}

async fn meet_impostor(mode: &str, timeout: u64) {
    let rig = small(|config| {
        config.program = impostor();
        config.limits.output = 1 << 20;
    });
    let mut lease = rig.lease.clone();
    lease.instance.0 = format!("{mode}-{}", lease.instance);
    let handle = rig.hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let call = call("bash", json!({"command": "true", "timeout_s": timeout}));
    let outcome = rig.hand.execute(&handle, &call, context()).await;
    match mode {
        "silent" => assert_eq!(outcome.unwrap().ending, Ending::Timeout),
        "torrent" => assert_eq!(outcome.unwrap().ending, Ending::Error),
        _ => {
            assert!(
                matches!(outcome, Err(HandError::Lost { may_have_run: true, .. })),
                "{mode}: {outcome:?}"
            );
        }
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn more_calls_than_can_run_at_once_wait_their_turn() {
    let rig = Rig::new();
    let calls = (0..80).map(|number| {
        let rig = &rig;
        async move { (number, rig.prints(&format!("sleep 0.05; echo {number}")).await) }
    });
    for (number, printed) in futures_util::future::join_all(calls).await {
        assert_eq!(printed, number.to_string());
    }
    rig.hand.shutdown().await;
}
