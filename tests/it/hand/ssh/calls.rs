//! What only hosts over SSH have: signals told apart, noisy and odd login shells, folders of their own.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hands::ssh::{Ssh, SshConfig};
use hands::{Ending, Hand, HandError};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tests::sshd::Sshd;
use tokio_util::sync::CancellationToken;

use super::connections::connections_of;
use crate::hand::marked::{keepers_of, marked};
use crate::hand::rig::{bash, call, context, lease, meanwhile, run, soon};

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
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
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
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
    let server = Sshd::start().await.unwrap();
    let noise = "echo 'Welcome! * $(id) \"'; echo oops >&2; seq 1 500\n";
    for file in [".bashrc", ".profile", ".zshenv"] {
        fs::write(server.path("home").join(file), noise).unwrap();
    }
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
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
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let (one, other) = (lease(server.folder.path(), "one"), lease(server.folder.path(), "other"));
    let (one, other) = (
        hand.provision(&one, &hands::NoProgress).await.unwrap(),
        hand.provision(&other, &hands::NoProgress).await.unwrap(),
    );
    let (_, folder) = bash(&hand, &one, "echo x > mine; pwd").await;
    assert!(folder.starts_with(&format!("{}/.manyhands/one-", server.path("home").display())), "{folder}");
    assert_eq!(bash(&hand, &other, "ls | wc -l").await.1.trim(), "0");
    hand.shutdown().await;
    let shared = Ssh::new(SshConfig { workspace: Some("~/pro ject's".into()), ..server.config().unwrap() });
    for name in ["one", "other"] {
        let handle = shared.provision(&lease(server.folder.path(), name), &hands::NoProgress).await.unwrap();
        let (_, seen) = bash(&shared, &handle, &format!("touch {name}; pwd; ls")).await;
        assert!(seen.contains("/home/pro ject's\n") && seen.contains("one"), "{seen}");
    }
    shared.shutdown().await;
    let nowhere = Ssh::new(SshConfig { workspace: Some("/proc/none".into()), ..server.config().unwrap() });
    let error = nowhere.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap_err();
    assert!(error.to_string().contains("/proc/none can't be made"), "{error}");
    nowhere.shutdown().await;
}

#[tokio::test]
async fn a_call_outlives_a_host_that_is_busy_but_not_one_that_is_silent() {
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(SshConfig { keepalive: Duration::from_millis(300), ..server.config().unwrap() });
    let lease = lease(server.folder.path(), "silent");
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let (_, text) = bash(&hand, &handle, "sleep 3; echo done").await;
    assert_eq!(text, "done\n");
    // The connection's processes are stopped: nothing answers, nothing is closed.
    let endless = call("bash", json!({"command": "echo running; sleep 1000"}));
    let connections = connections_of(&lease.instance);
    let lost = meanwhile(&hand, &handle, &(endless, "running"), async |_| {
        for pid in &connections {
            kill_process(*pid, Signal::STOP).unwrap();
        }
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
    let server = Sshd::start().await.unwrap();
    let hand = Arc::new(Ssh::new(server.config().unwrap()));
    let lease = lease(server.folder.path(), "cut");
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    bash(&*hand, &handle, "setsid sh -c 'while :; do sleep 0.1; done' < /dev/null > /dev/null 2>&1 &").await;
    // A process that is just becoming another program has no environment to be known by.
    soon(|| marked(&lease.instance).len() > 1).await;
    let connections = connections_of(&lease.instance);
    assert!(!connections.is_empty());
    for pid in connections {
        kill_process(pid, Signal::KILL).unwrap();
    }
    soon(|| marked(&lease.instance).is_empty()).await;
    // The host may be done before we notice.
    soon(|| !hand.alive(&handle)).await;
    // So does a call whose keeper is killed with all that it could do.
    let handle = { hand.provision(&lease, &hands::NoProgress).await.unwrap() };
    let keepers = keepers_of(&lease.instance);
    let endless = call("bash", json!({"command": "echo running; sleep 1000"}));
    let lost = meanwhile(&*hand, &handle, &(endless, "running"), async |_| {
        for pid in &keepers {
            kill_process(*pid, Signal::KILL).unwrap();
        }
    })
    .await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    assert!(hand.execute(&handle, &call("bash", json!({"command": "true"})), context()).await.is_err());
    // The next instance of the same work ends what that left.
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    soon(|| marked(&lease.instance).len() == 1).await;
    hand.release(handle).await.unwrap();
    assert_eq!(marked(&lease.instance), Vec::<String>::new());
    hand.shutdown().await;
}

#[tokio::test]
async fn any_command_and_any_input_arrive_as_they_are() {
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
    let odd = r#"a'b"c\d\\e\n$f`g` %s %b !h ~ * ü 二 🦀	tab"#;
    let command = format!("cat <<'END'\n{odd}\n\\\nEND\n");
    assert_eq!(bash(&hand, &handle, &command).await, (Ending::Ok, format!("{odd}\n\\\n")));
    // As long as a command may be, of what is hardest to quote.
    let long = format!("echo '{}' | wc -c", r"\".repeat(120_000));
    assert_eq!(bash(&hand, &handle, &long).await.1.trim(), "120001");
    let input = "zwei 二\n".repeat(500_000);
    let digest = call("bash", json!({"command": "cat > copy; wc -c < copy; cat copy", "stdin": input}));
    let (ending, text) = run(&hand, &handle, &digest).await;
    let (length, echoed) = text.split_once('\n').unwrap();
    assert_eq!((ending, length.trim().parse::<usize>().unwrap()), (Ending::Ok, input.len()));
    assert!(echoed == input, "the bytes changed");
    hand.shutdown().await;
}

#[tokio::test]
async fn a_copy_that_nobody_takes_holds_up_no_call() {
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
    bash(&hand, &handle, "head -c 30000000 /dev/zero > big").await;
    let (mut writer, reader) = tokio::io::duplex(1024);
    let cancel = CancellationToken::new();
    let files = hand.files().unwrap();
    let (copied, ()) = tokio::join!(files.copy_out(&handle, "big", &mut writer, &|_| {}, &cancel), async {
        for _ in 0..5 {
            assert_eq!(bash(&hand, &handle, "echo still here").await.1, "still here\n");
        }
        cancel.cancel();
        drop(reader);
    });
    assert!(copied.unwrap_err().to_string().contains("cancelled"));
    hand.shutdown().await;
}

#[tokio::test]
async fn a_host_that_allows_few_sessions_says_so() {
    let server = Sshd::start_with("MaxSessions 2").await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "one"), &hands::NoProgress).await.unwrap();
    let endless = call("bash", json!({"command": "echo running; sleep 1000"}));
    let ended = meanwhile(&hand, &handle, &(endless, "running"), async |cancel| {
        let (ending, text) = bash(&hand, &handle, "true").await;
        assert_eq!(ending, Ending::Error);
        assert!(text.contains("MaxSessions"), "{text}");
        cancel.cancel();
    })
    .await;
    assert_eq!(ended.unwrap().ending, Ending::Cancelled);
    assert_eq!(bash(&hand, &handle, "echo free").await.1, "free\n");
    hand.shutdown().await;
}

#[test]
fn a_gateway_that_is_gone_takes_its_instances_with_it() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (mine, gateway) = (runtime(), runtime());
    let server = mine.block_on(Sshd::start()).unwrap();
    let lease = lease(server.folder.path(), "gone");
    gateway.block_on(async {
        let hand = Ssh::new(server.config().unwrap());
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        bash(&hand, &handle, "setsid sleep 1000 < /dev/null > /dev/null 2>&1 &").await;
        // Nothing of it is told to end.
        std::mem::forget(hand);
    });
    mine.block_on(soon(|| marked(&lease.instance).len() > 1));
    gateway.shutdown_background();
    mine.block_on(async {
        soon(|| marked(&lease.instance).is_empty()).await;
        Ssh::new(server.config().unwrap()).reap(&[lease.instance]).await.unwrap();
    });
}

#[tokio::test]
async fn calls_that_are_given_up_at_any_moment_leave_no_session_open_and_no_process() {
    let server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let lease = lease(server.folder.path(), "one");
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let endless = call("bash", json!({"command": "sleep 1000"}));
    // More of each than sessions fit into a connection.
    for n in 0..30_u64 {
        let cancel = CancellationToken::new();
        let news = hands::CallContext::quiet(cancel.clone());
        let (ended, ()) = tokio::join!(hand.execute(&handle, &endless, news), async {
            tokio::time::sleep(Duration::from_millis(n)).await;
            cancel.cancel();
        });
        assert_eq!(ended.unwrap().ending, Ending::Cancelled);
        let dropped =
            tokio::time::timeout(Duration::from_millis(n), hand.execute(&handle, &endless, context())).await;
        assert!(dropped.is_err());
    }
    soon(|| marked(&lease.instance).len() == 1).await;
    assert_eq!(bash(&hand, &handle, "echo still here").await, (Ending::Ok, "still here\n".into()));
    hand.shutdown().await;
}
