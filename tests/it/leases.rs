//! When hands come and go: not before they are needed, once however many ask, and with their work.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use gateway::session::Event;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::gateway::{Gateway, Options};

use crate::crash::client::Client;
use crate::crash::truth::{self, Reader, field, of, outcomes, processes};

/// A gateway with a configuration file of its own.
async fn configured(toml: &str) -> Result<(Gateway, Client, Reader, tempfile::TempDir)> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("manyhands.toml");
    std::fs::write(&file, toml)?;
    let data = scratch.path().join("data");
    let mut options = Options::default().data(&data);
    options.args = vec!["--config".into(), file.display().to_string()];
    let gateway = Gateway::start(options).await?;
    let (client, reader) = (Client::of(&gateway)?, Reader::directory(&data).await?);
    Ok((gateway, client, reader, scratch))
}

fn instance(events: &[Event]) -> Result<String> {
    let last = of(events, "hand.provisioned").last().map(|event| field(event, "instance").to_owned());
    last.context("nothing was provisioned")
}

/// Kills the sandbox behind an instance, and waits until it is gone.
fn kill(instance: &str) -> Result<()> {
    let mark = [format!("sandbox-init\0{instance}")];
    let start = Instant::now();
    let found = processes(&mark)?;
    // A call that PID 1 has just forked looks like it for a moment.
    ensure!(found.len() >= 2, "bwrap and PID 1: {found:?}");
    for (pid, _) in found {
        let _ = kill_process(Pid::from_raw(i32::try_from(pid)?).context("no process id")?, Signal::KILL);
    }
    while !processes(&mark)?.is_empty() {
        ensure!(start.elapsed() < Duration::from_secs(20), "{instance} does not die");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_first_calls_provision_once() -> Result<()> {
    let (mut gateway, client, reader, _scratch) = configured("").await?;
    let marks = [gateway.data().join("work").display().to_string()];
    client.emit("ten", "a session that calls no tool").await?;
    client.tool("ten", "hand_list", json!({}), None).await?;
    ensure!(processes(&marks)?.is_empty(), "something runs for a session that called no tool");
    ensure!(!gateway.data().join("work").exists(), "and it has a folder");
    let calls = (0..10).map(|n| {
        let client = client.clone();
        async move { client.bash("ten", &format!("echo {n}; echo {n} >> /workspace/log")).await }
    });
    for (n, given) in try_join_all(calls).await?.into_iter().enumerate() {
        ensure!(given.outcome == "ok" && given.text == format!("{n}\n"), "{given:?}");
    }
    gateway.stop()?;
    let events = reader.events("ten").await?;
    truth::check_ended(&events)?;
    ensure!(of(&events, "hand.provisioned").len() == 1 && of(&events, "hand.released").len() == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_hand_is_released_and_its_work_kept() -> Result<()> {
    let config = "[hands.sandbox]\nkind = \"sandbox\"\nidle_s = 1\n";
    let (mut gateway, client, reader, _scratch) = configured(config).await?;
    ensure!(client.bash("idle", "echo kept > /workspace/file").await?.text.is_empty());
    // A call that takes longer than the time is not idle.
    ensure!(client.bash("idle", "sleep 3; cat file").await?.text == "kept\n");
    let first = instance(&reader.events("idle").await?)?;
    let events = reader.until("idle", |events| !of(events, "hand.released").is_empty()).await?;
    ensure!(of(&events, "hand.provisioned").len() == 1, "it was released while a call ran");
    truth::check_no_orphans(&events, gateway.data())?;
    let given = client.bash("idle", "cat file").await?;
    ensure!(given.text.contains("had been released") && given.text.contains("kept"), "{given:?}");
    ensure!(!client.bash("idle", "true").await?.text.contains("released"), "it is said once");
    gateway.stop()?;
    let events = reader.events("idle").await?;
    truth::check_ended(&events)?;
    ensure!(instance(&events)? != first);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_said_and_the_work_is_there() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let options = Options::default().data(&scratch.path().join("data"));
    let mut gateway = Gateway::start(options.clone()).await?;
    ensure!(Client::of(&gateway)?.bash("again", "echo kept > file").await?.text.is_empty());
    gateway.stop()?;
    let mut gateway = Gateway::start(options.clone()).await?;
    let given = Client::of(&gateway)?.bash("again", "cat file").await?;
    ensure!(given.text.contains("had been released") && given.text.contains("kept"), "{given:?}");
    gateway.kill()?;
    let mut gateway = Gateway::start(options).await?;
    let given = Client::of(&gateway)?.bash("again", "cat file").await?;
    ensure!(given.text.contains("had died") && given.text.contains("kept"), "{given:?}");
    gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_that_dies_between_calls_is_replaced() -> Result<()> {
    let (mut gateway, client, reader, _scratch) = configured("").await?;
    client.bash("dies", "echo kept > /workspace/file; touch /tmp/gone").await?;
    kill(&instance(&reader.events("dies").await?)?)?;
    let mut given = client.bash("dies", "cat file; ls /tmp").await?;
    if given.outcome == "lost" {
        // It was not known yet: then this call is what finds out. What is killed loses its name before its sockets: when
        // the call still went into one of them, nobody can say that it did not run.
        let said = ["The call did not run.", "may or may not have had its effect"];
        ensure!(said.iter().any(|said| given.text.contains(said)), "{given:?}");
        given = client.bash("dies", "cat file; ls /tmp").await?;
    }
    ensure!(given.outcome == "ok", "{given:?}");
    ensure!(given.text.contains("had died") && given.text.contains("kept"), "{given:?}");
    ensure!(!given.text.contains("gone\n"), "{given:?}");
    gateway.stop()?;
    let events = reader.events("dies").await?;
    truth::check_ended(&events)?;
    ensure!(of(&events, "hand.lost").len() == 1 && of(&events, "hand.provisioned").len() == 2);
    ensure!(field(of(&events, "hand.lost")[0], "work") == "kept");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_that_dies_under_calls_is_lost_once() -> Result<()> {
    let (mut gateway, client, reader, _scratch) = configured("").await?;
    client.bash("under", "echo kept > /workspace/file").await?;
    let seconds = format!("100.{}", std::process::id());
    let calls: Vec<_> = (0..4).map(|_| client.begin("under", &format!("sleep {seconds}"))).collect();
    // One that is only said to have started did certainly not run.
    let start = Instant::now();
    while processes(&[format!("sleep\0{seconds}\0")])?.len() < 4 {
        ensure!(start.elapsed() < Duration::from_mins(1), "they do not run");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill(&instance(&reader.events("under").await?)?)?;
    for call in calls {
        let given = call.await??;
        ensure!(given.outcome == "lost" && given.text.contains("may or may not"), "{given:?}");
    }
    let given = client.bash("under", "cat file").await?;
    ensure!(given.outcome == "ok" && given.text.contains("kept"), "{given:?}");
    gateway.stop()?;
    let events = reader.events("under").await?;
    truth::check_ended(&events)?;
    ensure!(of(&events, "hand.lost").len() == 1, "{:?}", truth::types(&events));
    ensure!(outcomes(&events) == [("lost".to_owned(), 4), ("ok".to_owned(), 2)].into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_principal_may_store_limits_its_calls() -> Result<()> {
    let (_gateway, client, reader, _scratch) = configured("[limits]\nstored_bytes = 3000\n").await?;
    let start = Instant::now();
    let refused = loop {
        match client.bash("full", "echo x").await {
            Ok(given) => ensure!(given.outcome == "ok", "{given:?}"),
            Err(refused) => break refused.to_string(),
        }
        ensure!(start.elapsed() < Duration::from_mins(1), "nothing was ever refused");
    };
    ensure!(refused.contains("limits.stored_bytes") && refused.contains("did not run"), "{refused}");
    truth::check(&reader.events("full").await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_work_goes_when_its_session_is_archived_for_long_enough() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let mut gateway = Gateway::start(Options::default().data(&data)).await?;
    let client = Client::of(&gateway)?;
    for session in ["active", "archived"] {
        client.bash(session, "echo kept > /workspace/file; mkdir d; echo x > d/x; chmod 500 d").await?;
    }
    ensure!(gateway.cli(&["session", "archive", "archived"])?.status.success());
    gateway.stop()?;
    let unknown = data.join("work").join("sesn_00000000000070008000000000000000").join("sandbox");
    std::fs::create_dir_all(&unknown)?;
    let of_session = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("sesn_");
    let folders =
        || std::fs::read_dir(data.join("work")).map_or(0, |all| all.flatten().filter(of_session).count());
    let mut gateway = Gateway::start(Options::default().data(&data)).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    gateway.stop()?;
    ensure!(folders() == 3, "thirty days have not passed");
    let at_once = Options::default().data(&data).env("MANYHANDS_WORK_RETENTION_DAYS", "0");
    let gateway = Gateway::start(at_once).await?;
    let start = Instant::now();
    while folders() > 1 {
        ensure!(start.elapsed() < Duration::from_secs(20), "{} folders are kept", folders());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let given = Client::of(&gateway)?.bash("active", "cat file").await?;
    ensure!(given.text.contains("kept"), "{given:?}");
    Ok(())
}
