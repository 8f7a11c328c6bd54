//! Child processes: what they have, how they end, and that nothing of them stays.

use std::path::Path;
use std::process::Stdio;

use hands::upstream::Share;
use hands::{Hand, Owner};
use serde_json::{Value, json};

use super::kit::{Era, Rig, Way, call, config, quiet, script, soon, text};
use crate::sandbox_kit::lease;

/// Whether a process runs. One that nobody has collected yet has ended.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

fn exists(pid: &str) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_server_has_the_environment_that_it_was_given_and_a_mark() {
    let rig = Rig::new(Way::Stdio, Era::Modern).await;
    let outcome = rig.call("environment", json!({})).await;
    let environment: serde_json::Map<String, Value> = serde_json::from_str(text(&outcome)).unwrap();
    assert_eq!(environment["CONFIGURED"], "yes");
    assert_eq!(environment["MANYHANDS_INSTANCE"], rig.lease.instance.0);
    // A shell that starts Python may add its own.
    let others: Vec<_> = environment
        .keys()
        .filter(|name| {
            ["CARGO", "NEXTEST", "RUST", "USER", "LD_"].iter().any(|of_ours| name.starts_with(of_ours))
        })
        .collect();
    assert!(others.is_empty(), "{others:?}");
    rig.end().await;
}

#[tokio::test]
async fn a_release_leaves_nothing_not_even_what_called_setsid() {
    for options in [&["modern"][..], &["modern", "stubborn"]] {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::of(config(script(&folder, options)), folder);
        let pid = text(&rig.call("pid", json!({})).await).to_owned();
        let family = text(&rig.call("family", json!({})).await).to_owned();
        assert!(family.split(' ').all(runs), "{family}");
        let begun = std::time::Instant::now();
        rig.hand.release(rig.handle().await).await.unwrap();
        let by_eof = begun.elapsed() < std::time::Duration::from_secs(2);
        assert_eq!(by_eof, options.len() == 1, "{:?}", begun.elapsed());
        assert!(!exists(&pid), "no zombie either");
        assert!(!family.split(' ').any(runs), "{family}");
        rig.end().await;
    }
}

#[tokio::test]
async fn what_a_server_started_goes_with_it_when_it_dies() {
    let rig = Rig::new(Way::Stdio, Era::Legacy).await;
    let handle = rig.handle().await;
    let family = text(&rig.call("family", json!({})).await).to_owned();
    rig.hand.execute(&handle, &call("exit", json!({})), quiet()).await.unwrap_err();
    soon(|| !family.split(' ').any(runs)).await;
    rig.end().await;
}

#[tokio::test]
async fn dropping_the_hand_ends_its_servers() {
    let rig = Rig::new(Way::Stdio, Era::Modern).await;
    let pid = text(&rig.call("pid", json!({})).await).to_owned();
    drop(rig.hand);
    soon(|| !exists(&pid)).await;
}

#[tokio::test]
async fn a_server_is_shared_as_configured_and_ends_with_its_last_handle() {
    for (share, same_owner, other_owner) in
        [(Share::Session, false, false), (Share::Principal, true, false), (Share::All, true, true)]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(script(&folder, &["modern"]));
        config.share = share;
        let rig = Rig::of(config, folder);
        let mut pids = Vec::new();
        let mut handles = Vec::new();
        for owner in ["ada", "ada", "bob"] {
            let mut lease = lease(rig.folder.path(), "shared");
            lease.owner = Owner(owner.to_owned());
            let handle = rig.hand.provision(&lease, &hands::NoProgress).await.unwrap();
            let outcome = rig.hand.execute(&handle, &call("pid", json!({})), quiet()).await.unwrap();
            pids.push(text(&outcome).to_owned());
            handles.push(handle);
        }
        assert_eq!(pids[0] == pids[1], same_owner, "{share:?}");
        assert_eq!(pids[0] == pids[2], other_owner, "{share:?}");
        let [first, second, third] = <[_; 3]>::try_from(handles).unwrap();
        rig.hand.release(first).await.unwrap();
        assert_eq!(exists(&pids[0]), same_owner || other_owner);
        rig.hand.release(second).await.unwrap();
        assert_eq!(exists(&pids[1]), other_owner);
        assert!(exists(&pids[2]));
        rig.hand.release(third).await.unwrap();
        assert!(!exists(&pids[2]));
        rig.end().await;
    }
}

#[tokio::test]
async fn racing_first_calls_start_one_server() {
    let rig = Rig::new(Way::Stdio, Era::Modern).await;
    let calls = (0..10).map(|_| rig.call("pid", json!({})));
    let outcomes = futures_util::future::join_all(calls).await;
    assert!(outcomes.iter().all(|outcome| text(outcome) == text(&outcomes[0])));
    rig.end().await;
}

#[tokio::test]
async fn noise_on_stdout_is_skipped() {
    let rig = Rig::new(Way::Stdio, Era::Legacy).await;
    assert_eq!(text(&rig.call("noise", json!({})).await), "after the noise");
    rig.end().await;
}

/// Plays what a gateway that was killed left behind: its mark names a process that is gone.
#[tokio::test]
async fn orphans_of_dead_gateways_are_reaped_and_no_others() {
    let rig = Rig::new(Way::Stdio, Era::Modern).await;
    let mine = text(&rig.call("pid", json!({})).await).to_owned();
    let environment: serde_json::Map<String, Value> =
        serde_json::from_str(text(&rig.call("environment", json!({})).await)).unwrap();
    let mark = environment["MANYHANDS_SERVER"].as_str().unwrap();
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let gone = dead.id().to_string();
    dead.wait().unwrap();
    let mut parts: Vec<&str> = mark.split('.').collect();
    parts[1] = &gone;
    let mut orphan = std::process::Command::new("sleep")
        .arg("600")
        .env("MANYHANDS_INSTANCE", "long-gone")
        .env("MANYHANDS_SERVER", parts.join("."))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    rig.hand.reap(std::slice::from_ref(&rig.lease.instance)).await.unwrap();
    assert!(!runs(&orphan.id().to_string()));
    assert!(runs(&mine), "its gateway lives: it is ours");
    assert!(runs(&stranger.id().to_string()));
    orphan.wait().unwrap();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    rig.end().await;
}
