//! The contract of every kind of hand: what the gateway may rely on, whatever executes.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod emulator;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hands::sandbox::Sandbox;
use hands::{CallContext, Ending, Hand, HandError, Handle, InstanceId, Lease};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::sandbox_kit::{News, Rig, call, config, context, lease, processes_of, seen, soon};

/// Every kind of hand there is, with what its POSIX tools need nothing of.
fn every_kind() -> Vec<Arc<dyn Hand>> {
    vec![Arc::new(Sandbox::new(config()))]
}

async fn bash(hand: &dyn Hand, handle: &Handle, command: &str) -> (Ending, String) {
    let call = call("bash", json!({"command": command, "timeout_s": 100}));
    let seen = seen(hand.execute(handle, &call, context()).await.unwrap());
    (seen.ending, seen.text)
}

fn fresh() -> (tempfile::TempDir, Lease) {
    let folder = tempfile::tempdir().unwrap();
    let lease = lease(folder.path(), "contract");
    (folder, lease)
}

#[tokio::test]
async fn listing_tools_provisions_nothing() {
    for hand in every_kind() {
        let tools = hand.tools().await.unwrap();
        assert!(tools.iter().any(|tool| tool.name == "bash"));
        for tool in tools {
            assert!(tool.description.len() < 2048, "{}", tool.name);
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        }
        assert!(hand.about().is_object());
    }
}

#[tokio::test]
async fn an_instance_is_made_once_however_many_ask_for_it() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        assert!(!lease.work.exists(), "provisioned before it was asked for");
        let first: Vec<_> = (0..10)
            .map(|_| {
                let (hand, lease) = (Arc::clone(&hand), lease.clone());
                async move { hand.provision(&lease).await.unwrap() }
            })
            .collect();
        let handles = futures_util::future::join_all(first).await;
        assert!(handles.iter().all(|handle| handle.instance == lease.instance));
        assert_eq!(processes_of(&lease.instance).len(), 2, "bwrap and PID 1, of one sandbox");
        hand.release(handles[0].clone()).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_succeeds_fails_and_keeps_files_only() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        let hand = &*hand;
        assert_eq!(bash(hand, &handle, "echo $((6*7))").await, (Ending::Ok, "42\n".into()));
        let (ending, text) =
            bash(hand, &handle, "echo before; x=1; cd /tmp; echo kept > /workspace/file; exit 3").await;
        assert_eq!((ending, text.as_str()), (Ending::Error, "before\n[exit code 3]"));
        assert_eq!(bash(hand, &handle, "echo ${x:-no} $PWD $(cat file)").await.1, "no /workspace kept\n");
        let unknown = hand.execute(&handle, &call("nonesuch", json!({})), context()).await;
        assert!(matches!(unknown, Err(HandError::UnknownTool(name)) if name == "nonesuch"));
        hand.release(handle).await.unwrap();
    }
}

#[tokio::test]
async fn output_streams_while_a_call_runs() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        let news = Arc::new(News::default());
        let context =
            CallContext { progress: Arc::clone(&news) as _, ..CallContext::quiet(CancellationToken::new()) };
        let cancel = context.cancel.clone();
        let call = call("bash", json!({"command": "echo early; sleep 60; echo late"}));
        let running = hand.execute(&handle, &call, context);
        let watching = async {
            soon(|| news.0.lock().unwrap().contains("early")).await;
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(running, watching);
        assert_eq!(outcome.unwrap().ending, Ending::Cancelled);
        hand.release(handle).await.unwrap();
    }
}

/// Everything a call can start to get away, each printing its name to a file as long as it lives.
const ESCAPEES: &str = r#"
beat() { while :; do echo "$1" >> beats; sleep 0.05; done; }
beat plain &
(beat orphan &) &
setsid bash -c "$(declare -f beat); beat session" &
setsid bash -c "$(declare -f beat); (beat daemon &) ; exit" < /dev/null > /dev/null 2>&1 &
bash -c "trap '' TERM HUP INT; $(declare -f beat); beat stubborn" &
while [ "$(sort -u beats 2>/dev/null | wc -l)" -lt 5 ]; do sleep 0.02; done
echo all started
"#;

#[tokio::test]
async fn a_cancelled_call_takes_everything_with_it_and_nothing_else() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        bash(&*hand, &handle, "nohup sh -c 'while :; do echo x >> other; sleep 0.05; done' > /dev/null &")
            .await;
        let news = Arc::new(News::default());
        let context =
            CallContext { progress: Arc::clone(&news) as _, ..CallContext::quiet(CancellationToken::new()) };
        let cancel = context.cancel.clone();
        let call = call("bash", json!({"command": format!("{ESCAPEES} sleep 1000")}));
        let (outcome, ()) = tokio::join!(hand.execute(&handle, &call, context), async {
            soon(|| news.0.lock().unwrap().contains("all started")).await;
            cancel.cancel();
        });
        let outcome = seen(outcome.unwrap());
        assert_eq!(outcome.ending, Ending::Cancelled);
        assert!(outcome.text.ends_with("[cancelled; everything it started was ended]"), "{}", outcome.text);
        assert!(is_quiet(&lease.work.join("beats")).await, "something of the call lives");
        assert!(!is_quiet(&lease.work.join("other")).await, "another call's background process was ended");
        hand.release(handle).await.unwrap();
        assert!(is_quiet(&lease.work.join("other")).await, "it outlived its instance");
    }
}

/// Whether a file that living processes write to does not grow.
async fn is_quiet(file: &Path) -> bool {
    let size = || std::fs::metadata(file).map(|file| file.len()).unwrap_or_default();
    let before = size();
    tokio::time::sleep(Duration::from_millis(400)).await;
    size() == before
}

#[tokio::test]
async fn a_call_that_takes_too_long_ends_even_if_it_ignores_every_signal() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        let command = "trap '' TERM INT HUP; echo $$; while :; do sleep 0.1; done";
        let call = call("bash", json!({"command": command, "timeout_s": 1}));
        let start = Instant::now();
        let outcome = seen(hand.execute(&handle, &call, context()).await.unwrap());
        assert_eq!(outcome.ending, Ending::Timeout);
        assert!(
            outcome.text.ends_with("[timed out after 1 s; everything it started was ended]"),
            "{}",
            outcome.text
        );
        assert!(start.elapsed() < Duration::from_secs(11));
        assert_eq!(bash(&*hand, &handle, "echo still here").await.1, "still here\n");
        hand.release(handle).await.unwrap();
    }
}

#[tokio::test]
async fn background_processes_live_until_release() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        let command = "while :; do echo x; echo x >> beats; sleep 0.05; done & echo started";
        assert!(bash(&*hand, &handle, command).await.1.contains("started"));
        assert!(!is_quiet(&lease.work.join("beats")).await);
        hand.release(handle.clone()).await.unwrap();
        assert!(is_quiet(&lease.work.join("beats")).await);
        assert!(processes_of(&lease.instance).is_empty());
        // Idempotent, and a released handle is of no use.
        hand.release(handle.clone()).await.unwrap();
        let late = hand.execute(&handle, &call("bash", json!({"command": "true"})), context()).await;
        assert!(matches!(late, Err(HandError::Lost { may_have_run: false, .. })));
    }
}

#[tokio::test]
async fn a_killed_instance_is_lost_and_the_next_has_the_same_work() {
    for hand in every_kind() {
        let (_folder, lease) = fresh();
        let handle = hand.provision(&lease).await.unwrap();
        bash(&*hand, &handle, "echo kept > file").await;
        let news = Arc::new(News::default());
        let context =
            CallContext { progress: Arc::clone(&news) as _, ..CallContext::quiet(CancellationToken::new()) };
        let call = call("bash", json!({"command": "echo running; sleep 1000"}));
        let (lost, ()) = tokio::join!(hand.execute(&handle, &call, context), async {
            soon(|| news.0.lock().unwrap().contains("running")).await;
            for pid in processes_of(&lease.instance) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
        let late = hand.execute(&handle, &call_true(), self::context()).await;
        assert!(matches!(late, Err(HandError::Lost { may_have_run: false, .. })), "{late:?}");
        let handle = hand.provision(&lease).await.unwrap();
        assert_eq!(bash(&*hand, &handle, "cat file").await.1, "kept\n");
        hand.release(handle).await.unwrap();
    }
}

fn call_true() -> hands::Call {
    call("bash", json!({"command": "true"}))
}

#[tokio::test]
async fn reaping_ends_what_a_dead_gateway_left_and_nothing_else() {
    let (folder, lease) = fresh();
    // Another gateway's, as far as `reap` knows: it is made by another object, which is then forgotten.
    let other = Sandbox::new(config());
    let mine = other.provision(&lease).await.unwrap();
    bash(&other, &mine, "setsid sleep 1000 > /dev/null 2>&1 &").await;
    let living = crate::sandbox_kit::lease(folder.path(), "living");
    let handle = other.provision(&living).await.unwrap();
    for hand in every_kind() {
        hand.reap(&[InstanceId("never-existed".into()), lease.instance.clone()]).await.unwrap();
        assert!(processes_of(&lease.instance).is_empty());
        assert!(cgroups_of(&lease.instance).is_empty());
        assert_eq!(bash(&other, &handle, "echo alive").await.1, "alive\n");
    }
    other.shutdown().await;
    assert!(processes_of(&living.instance).is_empty());
    assert!(cgroups_of(&living.instance).is_empty());
}

#[tokio::test]
async fn a_killed_gateway_takes_its_sandboxes_with_it() {
    let (_folder, lease) = fresh();
    let mut gateway = tokio::process::Command::new(crate::sandbox_kit::program())
        .args(["hold", &lease.instance.0])
        .arg(&lease.work)
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    assert!(!is_quiet(&lease.work.join("beats")).await);
    gateway.kill().await.unwrap();
    soon(|| processes_of(&lease.instance).is_empty()).await;
    assert!(is_quiet(&lease.work.join("beats")).await);
    for hand in every_kind() {
        hand.reap(std::slice::from_ref(&lease.instance)).await.unwrap();
        assert!(cgroups_of(&lease.instance).is_empty());
    }
}

fn cgroups_of(instance: &InstanceId) -> Vec<std::path::PathBuf> {
    let output = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &format!("*{instance}*")])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}

#[tokio::test]
async fn a_wrong_argument_is_answered_with_what_is_right() {
    let rig = Rig::new();
    for (tool, arguments, hint) in [
        ("bash", json!({}), "missing field `command`"),
        ("bash", json!({"command": "true", "timeout": 5}), "unknown field `timeout`"),
        ("bash", json!({"command": "true", "timeout_s": 0}), "between 1 and 3600"),
        ("bash", json!({"command": "true", "timeout_s": 3601}), "between 1 and 3600"),
        ("bash", json!({"command": 5}), "invalid type: integer"),
        ("bash", json!({"command": "true", "cwd": "/nowhere"}), "can't use /nowhere as working folder"),
        ("read", json!({"path": ""}), "must not be empty"),
        ("read", json!({"path": "x", "offset": 0}), "from 1"),
        ("edit", json!({"path": "x", "old": "", "new": "y"}), "use write"),
        ("glob", json!({"pattern": "[z"}), "pattern is wrong"),
        ("grep", json!({"pattern": "(", "output": "lines"}), "Can't search"),
    ] {
        let seen = rig.call(tool, arguments.clone()).await;
        assert_eq!(seen.ending, Ending::Error, "{tool} {arguments}");
        assert!(seen.text.contains(hint), "{tool} {arguments}: {}", seen.text);
    }
    rig.hand.shutdown().await;
}
