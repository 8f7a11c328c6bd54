//! What runs into a limit of its container ends as a tool error or with its container, and harms nobody else.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::time::{Duration, Instant};

use hands::container::ContainerConfig;
use hands::{CallContext, Ending, HandError, Lease};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::container::ContainerRig;
use super::rig::{Rig, bash, call, context, meanwhile, run, seen};
use crate::sandbox_kit::Seen;

async fn small(change: impl FnOnce(&mut ContainerConfig)) -> ContainerRig {
    ContainerRig::with(change).await
}

/// A command in the lease's container, provisioned first.
async fn try_bash(rig: &ContainerRig, lease: &Lease, command: &str, seconds: u64) -> Result<Seen, HandError> {
    let hand = rig.hand();
    let handle = hand.provision(lease, &hands::NoProgress).await?;
    let call = call("bash", json!({"command": command, "timeout_s": seconds}));
    hand.execute(&handle, &call, context()).await.map(seen)
}

async fn prints(rig: &ContainerRig, lease: &Lease, command: &str) -> String {
    let seen = try_bash(rig, lease, command, 100).await.unwrap();
    assert_eq!(seen.ending, Ending::Ok, "{command}: {}", seen.text);
    seen.text.trim_end().to_owned()
}

const BOMB: &str = "bomb() { bomb | bomb & bomb | bomb & wait; }; bomb 2> /dev/null";

#[tokio::test]
async fn a_fork_bomb_ends_with_its_call_and_others_go_on() {
    let rig = small(|config| config.limits.processes = 200).await;
    let (one, other) = (rig.lease("one"), rig.lease("other"));
    assert_eq!(prints(&rig, &other, "echo ready").await, "ready");
    let (bombed, ()) = tokio::join!(try_bash(&rig, &one, BOMB, 3), async {
        for _ in 0..5 {
            assert_eq!(prints(&rig, &other, "echo $((6*7))").await, "42");
        }
    });
    assert_ne!(bombed.unwrap().ending, Ending::Ok);
    assert_eq!(prints(&rig, &one, "echo $((6*7))").await, "42");
    rig.finish().await;
}

#[tokio::test]
async fn a_fork_bomb_in_the_background_costs_its_container_only() {
    let rig = small(|config| config.limits.processes = 100).await;
    let (one, other) = (rig.lease("one"), rig.lease("other"));
    assert_eq!(prints(&rig, &other, "echo ready").await, "ready");
    // Not by bash, which would wait and try again.
    let bomb = "sh -c 'for i in $(seq 200); do sleep 1000 > /dev/null 2>&1 < /dev/null & done'";
    let start = Instant::now();
    // While a few are left, calls may still do something.
    loop {
        match try_bash(&rig, &one, bomb, 20).await {
            Ok(_) => {}
            Err(HandError::Lost { why, may_have_run: false }) => {
                assert!(why.contains("used up all 100 processes"), "{why}");
                break;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < Duration::from_mins(2));
    }
    assert_eq!(prints(&rig, &one, "echo alive").await, "alive");
    assert_eq!(prints(&rig, &other, "echo still here").await, "still here");
    rig.finish().await;
}

#[tokio::test]
async fn a_memory_hog_is_killed_and_says_why() {
    let rig = small(|config| config.limits.memory = 64 << 20).await;
    let lease = rig.lease("one");
    let hog = try_bash(&rig, &lease, "tail /dev/zero", 100).await.unwrap();
    assert_eq!(hog.ending, Ending::Error, "{}", hog.text);
    assert!(hog.text.contains("killed by the memory limit"), "{}", hog.text);
    assert_eq!(prints(&rig, &lease, "echo $((6*7))").await, "42");
    rig.finish().await;
}

#[tokio::test]
async fn a_full_workspace_ends_the_call_and_says_why() {
    let rig = small(|config| config.limits.workspace = 32 << 20).await;
    let lease = rig.lease("one");
    let fill =
        try_bash(&rig, &lease, "while :; do head -c 8388608 /dev/zero >> full; sleep 0.05; done", 100).await;
    let fill = fill.unwrap();
    assert_eq!(fill.ending, Ending::Error);
    assert!(fill.text.contains("/workspace grew beyond its limit of 32 MiB"), "{}", fill.text);
    // In the background as well.
    assert_eq!(prints(&rig, &lease, "rm full; echo gone").await, "gone");
    let fill =
        "nohup sh -c 'while :; do head -c 8388608 /dev/zero >> full; sleep 0.2; done' > /dev/null 2>&1 &";
    try_bash(&rig, &lease, fill, 100).await.unwrap();
    let start = Instant::now();
    while !try_bash(&rig, &lease, "sleep 0.2", 100)
        .await
        .unwrap()
        .text
        .contains("background processes were ended")
    {
        assert!(start.elapsed() < Duration::from_mins(2));
    }
    assert_eq!(prints(&rig, &lease, "rm full; echo gone").await, "gone");
    rig.finish().await;
}

#[tokio::test]
async fn nothing_but_workspace_and_a_small_tmp_can_be_written_and_no_right_is_left() {
    let rig = small(|config| config.limits.tmp = 8 << 20).await;
    let lease = rig.lease("one");
    let full = try_bash(&rig, &lease, "head -c 16777216 /dev/zero > /tmp/full", 100).await.unwrap();
    assert!(full.text.contains("No space left"), "{}", full.text);
    let (ending, text) = {
        let hand = rig.hand();
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        bash(&*hand, &handle, "touch /usr/x /etc/x").await
    };
    assert_eq!((ending, text.matches("Read-only file system").count()), (Ending::Error, 2), "{text}");
    let status =
        prints(&rig, &lease, "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; id -u").await;
    let fields: Vec<_> = status.split_whitespace().collect();
    assert_eq!(
        fields[..8],
        ["CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    );
    assert_ne!(fields[8], "0", "runs as root");
    assert_eq!(prints(&rig, &lease, "ls /sys/class/net").await, "lo");
    rig.finish().await;
}

#[tokio::test]
async fn what_hides_from_its_call_is_ended_with_it() {
    let rig = small(|_| ()).await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let hidden = "env -i /usr/bin/setsid /bin/sh -c 'while :; do echo x >> beats; sleep 0.05; done' \
                  > /dev/null 2>&1 < /dev/null & \
                  while [ ! -s beats ]; do sleep 0.05; done; echo started; sleep 1000";
    let call = call("bash", json!({"command": hidden}));
    let ended = meanwhile(&*hand, &handle, &(call, "started"), async |cancel| cancel.cancel()).await;
    assert_eq!(ended.unwrap().ending, Ending::Cancelled);
    let sizes = prints(&rig, &lease, "wc -c < beats; sleep 0.5; wc -c < beats").await;
    let sizes: Vec<_> = sizes.split_whitespace().collect();
    assert_eq!(sizes[0], sizes[1]);
    rig.finish().await;
}

#[tokio::test]
async fn a_call_that_kills_all_it_can_loses_its_container_and_no_other() {
    let rig = small(|_| ()).await;
    let (one, other) = (rig.lease("one"), rig.lease("other"));
    assert_eq!(prints(&rig, &other, "echo ready").await, "ready");
    let lost = try_bash(&rig, &one, "sleep 0.5; kill -9 -1; sleep 1000", 100).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    assert_eq!(prints(&rig, &one, "echo again").await, "again");
    // What kills the wrapper of its own call ends that call only.
    let ended = try_bash(&rig, &one, "kill -9 $PPID; sleep 0.2", 100).await.unwrap();
    assert_eq!(ended.ending, Ending::Error, "{}", ended.text);
    assert_eq!(prints(&rig, &other, "echo ready").await, "ready");
    rig.finish().await;
}

/// Both while it prints nothing, and while nobody takes what it prints.
#[tokio::test]
async fn a_silent_call_and_a_call_that_says_our_words_are_ordinary_ones() {
    let rig = small(|_| ()).await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let silent = call("bash", json!({"command": "sleep 5; echo late"}));
    assert_eq!(run(&*hand, &handle, &silent).await, (Ending::Ok, "late\n".into()));
    let words = "echo cwd; echo run 1; printf '\\002'; printf '\\002%s 0\\n' 00000000000000000000000000000000; exit 3";
    let (ending, text) = bash(&*hand, &handle, words).await;
    assert_eq!(ending, Ending::Error);
    assert!(text.starts_with("cwd\nrun 1\n\u{2}\u{2}000") && text.ends_with("[exit code 3]"), "{text:?}");
    // One that has said how it ended can't be cancelled any more.
    let quiet = CallContext::quiet(CancellationToken::new());
    let (ending, _) = bash(&*hand, &handle, "sleep 1000 &").await;
    assert_eq!(ending, Ending::Ok);
    quiet.cancel.cancel();
    assert_eq!(prints(&rig, &lease, "ps -e -o comm= | grep -c sleep").await, "1");
    rig.finish().await;
}
