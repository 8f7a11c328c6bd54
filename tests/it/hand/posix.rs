//! What every kind of hand with the six tools promises.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hands::sandbox::pack;
use hands::{CallContext, Ending, Hand, Handle};
use serde_json::json;
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::rig::{Rig, bash, call, context, is_gone, meanwhile, run, seen};
use crate::sandbox_kit::unpack;

pub(super) async fn nothing_but_files_survives_a_call(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let (_, folder) = bash(&*hand, &handle, "pwd").await;
    bash(&*hand, &handle, "x=1; export x; echo kept > file; cd /").await;
    let (_, later) = bash(&*hand, &handle, "pwd; echo ${x:-no} $(cat file)").await;
    assert_eq!(later, format!("{folder}no kept\n"));
    rig.finish().await;
}

pub(super) async fn output_streams_while_a_call_runs(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let command = call("bash", json!({"command": "echo early; sleep 1000; echo late"}));
    let ended = meanwhile(&*hand, &handle, &(command, "early"), async |cancel| cancel.cancel()).await;
    let ended = seen(ended.unwrap());
    assert_eq!(ended.ending, Ending::Cancelled);
    assert!(ended.text.starts_with("early\n") && !ended.text.contains("late"), "{}", ended.text);
    rig.finish().await;
}

/// Writes its name to a file as long as it lives.
const BEAT: &str = r#"cat > beat <<'END'
while :; do echo "$1" >> "${2:-beats}"; sleep 0.05; done
END
"#;

/// Everything a call can start to get away.
const ESCAPEES: &str = r#"
sh beat plain &
(sh beat orphan &) &
setsid sh beat session &
setsid sh -c '(sh beat daemon &) ; exit' < /dev/null > /dev/null 2>&1 &
sh -c "trap '' TERM HUP INT; sh beat stubborn" &
while [ "$(sort -u beats 2>/dev/null | wc -l)" -lt 5 ]; do sleep 0.1; done
echo all started
sleep 1000
"#;

pub(super) async fn a_cancelled_call_takes_everything_with_it_and_nothing_else(rig: impl Rig) {
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let other = format!("{BEAT} setsid sh beat x other < /dev/null > /dev/null 2>&1 &");
    bash(&*hand, &handle, &other).await;
    let escapees = call("bash", json!({"command": ESCAPEES}));
    let ended = meanwhile(&*hand, &handle, &(escapees, "all started"), async |cancel| cancel.cancel()).await;
    let ended = seen(ended.unwrap());
    assert_eq!(ended.ending, Ending::Cancelled);
    assert!(ended.text.ends_with("[cancelled; everything it started was ended]"), "{}", ended.text);
    assert!(is_quiet(&*hand, &handle, "beats").await, "something of the call lives");
    assert!(!is_quiet(&*hand, &handle, "other").await, "another call's background process was ended");
    rig.finish().await;
}

/// They end as soon as they begin: what they print and how they ended may come in either order.
pub(super) async fn quick_calls_say_all_and_end_as_asked(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    for _ in 0..15 {
        let four = std::array::from_fn::<_, 4, _>(|_| bash(&*hand, &handle, "echo all"));
        for ended in futures_util::future::join_all(four).await {
            assert_eq!(ended, (Ending::Ok, "all\n".to_owned()));
        }
    }
    rig.finish().await;
}

/// It is cancelled at moments all over its life: one that ended as asked has said all.
pub(super) async fn a_call_that_is_cancelled_late_loses_nothing_in_silence(rig: impl Rig) {
    let hand = rig.hand();
    let lease = rig.lease("one");
    let mut handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let says = call("bash", json!({"command": "echo all"}));
    let all = (Ending::Ok, "all\n".to_owned());
    assert_eq!(run(&*hand, &handle, &says).await, all);
    let start = Instant::now();
    assert_eq!(run(&*hand, &handle, &says).await, all);
    let moment = start.elapsed() / 20;
    for number in 0..24 {
        let cancel = CancellationToken::new();
        let (outcome, ()) =
            tokio::join!(hand.execute(&handle, &says, CallContext::quiet(cancel.clone())), async {
                tokio::time::sleep(moment * number).await;
                cancel.cancel();
            });
        let seen = seen(outcome.unwrap());
        let whole = seen.ending == Ending::Ok && seen.text == all.1;
        assert!(whole || seen.ending == Ending::Cancelled, "{number}: {:?} {}", seen.ending, seen.text);
        // One that a slow machine did not even start in time is ended with all of its instance, and says so.
        if !hand.alive(&handle) {
            assert!(
                seen.text.contains("ended with it") || seen.text.contains("the whole instance"),
                "{}",
                seen.text
            );
            handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        }
    }
    assert_eq!(run(&*hand, &handle, &says).await, all);
    rig.finish().await;
}

/// Whether a file that living processes write to does not grow.
async fn is_quiet(hand: &dyn Hand, handle: &Handle, file: &str) -> bool {
    let command = format!("cat {file} 2> /dev/null | wc -c; sleep 0.5; cat {file} 2> /dev/null | wc -c");
    let (ending, sizes) = bash(hand, handle, &command).await;
    assert_eq!(ending, Ending::Ok, "{sizes}");
    let sizes: Vec<_> = sizes.split_whitespace().collect();
    sizes[0] == sizes[1]
}

pub(super) async fn a_call_that_takes_too_long_ends_even_if_it_ignores_every_signal(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let command = "trap '' TERM INT HUP; while :; do sleep 0.1; done";
    let call = call("bash", json!({"command": command, "timeout_s": 1}));
    let start = Instant::now();
    let (ending, text) = run(&*hand, &handle, &call).await;
    assert_eq!(ending, Ending::Timeout);
    assert!(text.ends_with("[timed out after 1 s; everything it started was ended]"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(bash(&*hand, &handle, "echo still here").await.1, "still here\n");
    rig.finish().await;
}

pub(super) async fn background_processes_live_until_release(rig: impl Rig) {
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let command = format!("{BEAT} sh beat x & echo started");
    assert!(bash(&*hand, &handle, &command).await.1.contains("started"));
    assert!(!is_quiet(&*hand, &handle, "beats").await);
    hand.release(handle).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    bash(&*hand, &handle, "touch beats").await;
    assert!(is_quiet(&*hand, &handle, "beats").await, "it outlived its instance");
    rig.finish().await;
}

pub(super) async fn a_wrong_argument_is_answered_with_what_is_right(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    bash(&*hand, &handle, "echo something > to-search").await;
    for (tool, arguments, hint) in [
        ("bash", json!({}), "missing field `command`"),
        ("bash", json!({"command": "true", "timeout": 5}), "unknown field `timeout`"),
        ("bash", json!({"command": "true", "timeout_s": 0}), "between 1 and 3600"),
        ("bash", json!({"command": "true", "timeout_s": 3601}), "between 1 and 3600"),
        ("bash", json!({"command": 5}), "invalid type: integer"),
        ("bash", json!({"command": "true", "cwd": "/nowhere"}), "can't use /nowhere as working folder"),
        ("read", json!({"path": ""}), "must not be empty"),
        ("read", json!({"path": "x", "offset": 0}), "from 1"),
        ("read", json!({"path": "x"}), "does not exist"),
        ("edit", json!({"path": "x", "old": "", "new": "y"}), "use write"),
        ("glob", json!({"pattern": "[z"}), "pattern is wrong"),
        ("grep", json!({"pattern": "(", "output": "lines"}), "Can't search"),
        ("write", json!({"path": "/proc/version", "content": "x"}), "can't be written: only files below"),
    ] {
        let (ending, text) = run(&*hand, &handle, &call(tool, arguments.clone())).await;
        assert_eq!(ending, Ending::Error, "{tool} {arguments}");
        assert!(text.contains(hint), "{tool} {arguments}: {text}");
    }
    rig.finish().await;
}

pub(super) async fn files_are_written_edited_read_and_found(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let text = "eins\nzwei 二 🦀 $HOME `id` \\ \"quoted\" 'single'\nthree";
    for (tool, arguments, says) in [
        ("write", json!({"path": "a folder/one.txt", "content": text}), "Wrote "),
        ("read", json!({"path": "a folder/one.txt"}), text),
        ("read", json!({"path": "./a folder/one.txt", "offset": 2, "limit": 1}), "zwei 二 🦀"),
        ("edit", json!({"path": "a folder/one.txt", "old": "`id`", "new": "$(id)"}), "Replaced it once"),
        ("read", json!({"path": "a folder/one.txt"}), "$(id)"),
        ("glob", json!({"pattern": "**/*.txt"}), "a folder/one.txt"),
        ("grep", json!({"pattern": "^zw.i"}), "one.txt:2:zwei"),
        ("grep", json!({"pattern": "THREE", "ignore_case": true, "output": "files"}), "one.txt"),
        ("grep", json!({"pattern": "e", "output": "count", "glob": "*.txt"}), "one.txt:3"),
    ] {
        let (ending, shown) = run(&*hand, &handle, &call(tool, arguments.clone())).await;
        assert_eq!(ending, Ending::Ok, "{tool} {arguments}: {shown}");
        assert!(shown.contains(says), "{tool} {arguments}: {shown}");
    }
    rig.finish().await;
}

pub(super) async fn calls_run_side_by_side(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    // Each waits for the other's file.
    let meet = |mine: &str, other: &str| {
        let command = format!("touch {mine}; while [ ! -e {other} ]; do sleep 0.05; done; echo met");
        call("bash", json!({"command": command, "timeout_s": 100}))
    };
    let (one, other) = (meet("one", "other"), meet("other", "one"));
    let (one, other) = tokio::join!(run(&*hand, &handle, &one), run(&*hand, &handle, &other));
    assert_eq!((one.1.as_str(), other.1.as_str()), ("met\n", "met\n"));
    rig.finish().await;
}

/// More than any hand shows of one call.
pub(super) async fn a_flood_is_cut_and_said(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let call =
        call("bash", json!({"command": "yes 0123456789abcdef | head -c 1000000000", "timeout_s": 200}));
    let (ending, text) = run(&*hand, &handle, &call).await;
    assert_eq!(ending, Ending::Error);
    let end = &text[text.len().saturating_sub(200)..];
    assert!(end.contains("[ended: it printed more than") && text.contains("left out"), "{end}");
    assert_eq!(bash(&*hand, &handle, "echo still here").await.1, "still here\n");
    rig.finish().await;
}

/// For kinds that can.
pub(super) async fn files_go_in_and_out_byte_for_byte(rig: impl Rig) {
    let hand = rig.hand();
    if let Some(files) = hand.files() {
        let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        std::fs::create_dir_all(source.join("deep/er")).unwrap();
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3_000_001).collect();
        std::fs::write(source.join("deep/er/every byte"), &bytes).unwrap();
        std::fs::write(source.join("empty"), "").unwrap();
        std::os::unix::fs::symlink("deep/er", source.join("link")).unwrap();
        let mut archive = Vec::new();
        pack(&source, &mut archive).unwrap();
        let cancel = CancellationToken::new();
        files.copy_in(&handle, "into/copy", Box::new(std::io::Cursor::new(archive)), &cancel).await.unwrap();
        let (_, listed) =
            bash(&*hand, &handle, "cd into/copy; wc -c < 'deep/er/every byte'; readlink link").await;
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["3000001", "deep/er"]);
        let mut out = Vec::new();
        files.copy_out(&handle, "into/copy", &mut out, &|_| {}, &cancel).await.unwrap();
        let target = folder.path().join("target");
        unpack(&out, &target).unwrap();
        assert!(std::fs::read(target.join("deep/er/every byte")).unwrap() == bytes, "the bytes changed");
        assert_eq!(std::fs::read(target.join("empty")).unwrap(), b"");
        assert_eq!(std::fs::read_link(target.join("link")).unwrap().to_str(), Some("deep/er"));
        let missing = files.copy_out(&handle, "nonesuch", &mut Vec::new(), &|_| {}, &cancel).await;
        let mut said = String::new();
        write!(said, "{}", missing.unwrap_err()).unwrap();
        assert!(said.contains("nonesuch"), "{said}");
        let _ = hand.execute(&handle, &call("bash", json!({"command": "true"})), context()).await.unwrap();
    }
    rig.finish().await;
}

/// For kinds that can: by whoever may do no more than their owner.
pub(super) async fn folders_that_may_not_be_written_to_are_copied(rig: impl Rig) {
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    if let Some(files) = hand.files() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        std::fs::create_dir_all(source.join("deep")).unwrap();
        std::fs::write(source.join("deep/file"), "text").unwrap();
        for closed in [source.join("deep"), source.clone()] {
            std::fs::set_permissions(closed, std::fs::Permissions::from_mode(0o555)).unwrap();
        }
        let mut archive = Vec::new();
        pack(&source, &mut archive).unwrap();
        let cancel = CancellationToken::new();
        files.copy_in(&handle, "into/copy", Box::new(std::io::Cursor::new(archive)), &cancel).await.unwrap();
        let show = "cd into/copy; stat -c %a . deep; cat deep/file";
        assert_eq!(bash(&*hand, &handle, show).await, (Ending::Ok, "555\n555\ntext".into()));
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(source.join("deep"), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    rig.finish().await;
}

/// For kinds that can. What breaks off is not at its end, not even where all of it might have come.
pub(super) async fn a_copy_that_breaks_off_fails_and_leaves_nothing(rig: impl Rig) {
    let hand = rig.hand();
    if let Some(files) = hand.files() {
        let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("file"), vec![7; 300_000]).unwrap();
        let mut archive = Vec::new();
        pack(&source, &mut archive).unwrap();
        for length in [100, archive.len() / 2, archive.len() - 1024] {
            let gone = std::io::Error::other("the client is gone");
            let pieces = [Ok(Bytes::copy_from_slice(&archive[..length])), Err(gone)];
            let breaking = StreamReader::new(futures_util::stream::iter(pieces));
            let never = CancellationToken::new();
            let copy = files.copy_in(&handle, "into/copy", Box::new(breaking), &never);
            let copied = tokio::time::timeout(Duration::from_secs(100), copy).await;
            let said = copied.expect("it goes on for ever").unwrap_err().to_string();
            assert!(said.contains("broke off: the client is gone"), "{said}");
            let left = bash(&*hand, &handle, "find . -name '*copy*'").await;
            assert_eq!(left, (Ending::Ok, String::new()), "after {length} bytes");
        }
    }
    rig.finish().await;
}
