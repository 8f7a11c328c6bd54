//! What only hosts over SSH have: signals told apart, noisy and odd login shells, folders of their own.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hands::ssh::{Ssh, SshConfig};
use hands::{Ending, Hand, HandError};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use super::server::{Server, connections_of};
use crate::hand::marked::{keepers_of, marked};
use crate::hand::rig::{bash, call, context, lease, meanwhile, run, soon};

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let server = Server::start().await;
    let hand = Ssh::new(server.config());
    let handle = hand.provision(&lease(server.folder.path(), "one")).await.unwrap();
    for (command, says) in [
        ("exit 137", "[exit code 137]"),
        ("kill -KILL $$", "[ended by signal 9]"),
        ("kill -SEGV $$", "[ended by signal 11]"),
        ("kill -TERM $$", "[ended by signal 15]"),
        ("exec 1>&- 2>&-; sleep 0.3; exit 4", "[exit code 4]"),
    ] {
        let (ending, text) = bash(&hand, &handle, command).await;
        assert_eq!((ending, text.as_str()), (Ending::Error, says), "{command}");
    }
    hand.shutdown().await;
}

#[tokio::test]
async fn all_that_was_printed_before_the_end_is_there_even_with_a_noisy_background() {
    let server = Server::start().await;
    let hand = Ssh::new(server.config());
    let handle = hand.provision(&lease(server.folder.path(), "one")).await.unwrap();
    let command = "(while :; do echo noise; echo beat >> beats; sleep 0.02; done) & seq 1 20000; echo last";
    for _ in 0..5 {
        let (_, text) = bash(&hand, &handle, command).await;
        // The noise may come within a line of the others.
        let text = text.replace("noise\n", "");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines.last().copied()), (20001, Some("last")));
    }
    // More of them than channels are kept for: the others' calls go on.
    let (_, text) = bash(&hand, &handle, "echo still here").await;
    assert_eq!(text, "still here\n");
    hand.shutdown().await;
}

#[tokio::test]
async fn a_login_that_prints_and_an_odd_shell_do_not_matter() {
    let server = Server::start().await;
    let noise = "echo 'Welcome! * $(id) \"'; echo oops >&2; seq 1 500\n";
    for file in [".bashrc", ".profile", ".zshenv"] {
        fs::write(server.path("home").join(file), noise).unwrap();
    }
    let hand = Ssh::new(server.config());
    let handle = hand.provision(&lease(server.folder.path(), "one")).await.unwrap();
    let write = call("write", json!({"path": "/workspace/a/file", "content": "words\n"}));
    assert_eq!(run(&hand, &handle, &write).await.0, Ending::Ok);
    let read = call("read", json!({"path": "a/file"}));
    assert_eq!(run(&hand, &handle, &read).await, (Ending::Ok, "words\n".into()));
    let (_, text) = bash(&hand, &handle, "cat \"$WORKSPACE/a/file\"").await;
    assert!(text.ends_with("words\n"), "{text}");
    hand.shutdown().await;
}

#[tokio::test]
async fn each_session_has_its_own_folder_unless_one_is_named() {
    let server = Server::start().await;
    let hand = Ssh::new(server.config());
    let (one, other) = (lease(server.folder.path(), "one"), lease(server.folder.path(), "other"));
    let (one, other) = (hand.provision(&one).await.unwrap(), hand.provision(&other).await.unwrap());
    let (_, folder) = bash(&hand, &one, "echo x > mine; pwd").await;
    assert!(folder.starts_with(&format!("{}/.manyhands/one-", server.path("home").display())), "{folder}");
    assert_eq!(bash(&hand, &other, "ls | wc -l").await.1.trim(), "0");
    hand.shutdown().await;
    let shared = Ssh::new(SshConfig { workspace: Some("~/pro ject's".into()), ..server.config() });
    for name in ["one", "other"] {
        let handle = shared.provision(&lease(server.folder.path(), name)).await.unwrap();
        let (_, seen) = bash(&shared, &handle, &format!("touch {name}; pwd; ls")).await;
        assert!(seen.contains("/home/pro ject's\n") && seen.contains("one"), "{seen}");
    }
    shared.shutdown().await;
    let nowhere = Ssh::new(SshConfig { workspace: Some("/proc/none".into()), ..server.config() });
    let error = nowhere.provision(&lease(server.folder.path(), "one")).await.unwrap_err();
    assert!(error.to_string().contains("/proc/none can't be made"), "{error}");
    nowhere.shutdown().await;
}

#[tokio::test]
async fn a_call_outlives_a_host_that_is_busy_but_not_one_that_is_silent() {
    let server = Server::start().await;
    let hand = Ssh::new(SshConfig { keepalive: Duration::from_millis(300), ..server.config() });
    let lease = lease(server.folder.path(), "silent");
    let handle = hand.provision(&lease).await.unwrap();
    let (_, text) = bash(&hand, &handle, "sleep 3; echo done").await;
    assert_eq!(text, "done\n");
    // The connection's processes are stopped: nothing answers, nothing is closed.
    let endless = call("bash", json!({"command": "echo running; sleep 1000"}));
    let connections = connections_of(&lease.instance);
    let lost = meanwhile(&hand, &handle, &(endless, "running"), async |_| {
        connections.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    })
    .await;
    for pid in &connections {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    assert!(
        matches!(&lost, Err(HandError::Lost { may_have_run: true, why }) if why.contains("does not answer")),
        "{lost:?}"
    );
    // Awake again, it finds the line cut and ends what hung on it.
    soon(|| marked(&lease.instance).is_empty()).await;
    hand.shutdown().await;
}

#[tokio::test]
async fn what_a_cut_line_leaves_ends_by_itself() {
    let server = Server::start().await;
    let hand = Arc::new(Ssh::new(server.config()));
    let lease = lease(server.folder.path(), "cut");
    let handle = hand.provision(&lease).await.unwrap();
    bash(&*hand, &handle, "setsid sh -c 'while :; do sleep 0.1; done' < /dev/null > /dev/null 2>&1 &").await;
    assert!(marked(&lease.instance).len() > 1);
    for pid in connections_of(&lease.instance) {
        kill_process(pid, Signal::KILL).unwrap();
    }
    soon(|| marked(&lease.instance).is_empty()).await;
    // So does a call whose keeper is killed with all that it could do.
    let handle = { hand.provision(&lease).await.unwrap() };
    let keepers = keepers_of(&lease.instance);
    let endless = call("bash", json!({"command": "echo running; sleep 1000"}));
    let lost = meanwhile(&*hand, &handle, &(endless, "running"), async |_| {
        keepers.iter().for_each(|pid| kill_process(*pid, Signal::KILL).unwrap());
    })
    .await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    assert!(hand.execute(&handle, &call("bash", json!({"command": "true"})), context()).await.is_err());
    // The next instance of the same work ends what that left.
    let handle = hand.provision(&lease).await.unwrap();
    assert_eq!(marked(&lease.instance).len(), 1, "the keeper alone");
    hand.release(handle).await.unwrap();
    assert_eq!(marked(&lease.instance), Vec::<String>::new());
    hand.shutdown().await;
}
