//! What becomes of a turn whose command is interrupted, and that no other command goes on with it.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::gateway::{Gateway, Options, command};

use crate::crash::truth::{Reader, of, outcomes};
use crate::harness::rig::{rests, said};

/// Within this a command ends that somebody interrupts: its calls have 1 s, then 10 s to be cancelled, and the machine is
/// busy.
const ENDS_WITHIN: Duration = Duration::from_mins(1);
const SLEEPS: &str = "@call sandbox__bash {\"command\": \"sleep 300\"}\n@then\n@say Slept.";

fn at(data: &Path, words: &[&str]) -> Command {
    let mut command = command(data);
    command.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").env("MANYHANDS_DRAIN_S", "1").args(words);
    command
}

/// Presses Ctrl-C. What the command said on stderr; it must have ended as one that was interrupted.
fn interrupt(mut child: Child) -> Result<String> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    let begun = Instant::now();
    kill_process(pid, Signal::INT)?;
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}");
    ensure!(begun.elapsed() < ENDS_WITHIN, "{:?}", begun.elapsed());
    let mut said = String::new();
    child.stderr.take().context("no stderr")?.read_to_string(&mut said)?;
    Ok(said)
}

/// Begins a turn without a gateway, and interrupts it once the log says so.
async fn begun_and_interrupted(
    reader: &Reader,
    data: &Path,
    words: &[&str],
    is_on: fn(&[Event]) -> bool,
) -> Result<String> {
    let child = at(data, words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    reader.until("mine", is_on).await?;
    interrupt(child)
}

fn models(events: &[Event]) -> Vec<String> {
    let model = |event: &Event| event.fields.get("model").and_then(|model| model.as_str()).map(str::to_owned);
    of(events, "span.model_request_start").into_iter().filter_map(model).collect()
}

/// A database that can be read.
async fn prepared() -> Result<(tempfile::TempDir, Reader)> {
    let folder = tempfile::tempdir()?;
    let made = at(folder.path(), &["session", "new", "mine"]).output()?;
    ensure!(made.status.success(), "{made:?}");
    let reader = Reader::directory(folder.path()).await?;
    Ok((folder, reader))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_says_what_becomes_of_its_turn_and_others_leave_it_alone() -> Result<()> {
    let (folder, reader) = prepared().await?;
    let data = folder.path();
    let words = ["run", "--session", "mine", "--model", "scripted/mine", SLEEPS];
    let said_so =
        begun_and_interrupted(&reader, data, &words, |events| of(events, "hand.call_started").len() == 1);
    let said_so = said_so.await?;
    for part in ["the turn is not over", "`manyhands wake mine`", "`manyhands interrupt mine` ends it"] {
        ensure!(said_so.contains(part), "{said_so}");
    }
    let left = reader.events("mine").await?;
    ensure!(outcomes(&left).len() == 1 && rests(&left).is_empty(), "{:?}", outcomes(&left));

    // Whatever becomes the owner of the data for a while.
    let words = ["run", "--session", "other", "--model", "scripted/other", "@wait 3s\n@say Hello."];
    let other = at(data, &words).output()?;
    ensure!(other.status.success() && String::from_utf8_lossy(&other.stdout) == "Hello.\n", "{other:?}");
    ensure!(at(data, &["wake", "other"]).output()?.status.success());
    let slow = json!({"command": "sleep 3"}).to_string();
    ensure!(
        at(data, &["hand", "call", "sandbox", "bash", &slow, "--session", "third"])
            .output()?
            .status
            .success()
    );
    for words in [&["stdio", "--session", "mine"][..], &["session", "events", "mine", "--follow"]] {
        let mut stays = at(data, words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let pid = i32::try_from(stays.id()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, Signal::INT)?;
        ensure!(stays.wait()?.success(), "{words:?}");
    }
    let now = reader.events("mine").await?;
    ensure!(now.len() == left.len(), "somebody went on: {:?}", &now[left.len()..]);
    ensure!(models(&reader.events("other").await?) == ["scripted/other"]);

    // Who is asked to goes on, with the session's own model.
    let woken = at(data, &["wake", "mine"]).output()?;
    ensure!(woken.status.success() && String::from_utf8_lossy(&woken.stdout).contains("Slept."), "{woken:?}");
    ensure!(models(&reader.events("mine").await?) == ["scripted/mine"; 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_turn_is_ended_by_interrupt_and_gone_on_with_by_a_gateway() -> Result<()> {
    let (folder, reader) = prepared().await?;
    let data = folder.path();
    let asked = |events: &[Event]| of(events, "span.model_request_start").len() == 1;
    let words = ["run", "--session", "mine", "@wait 300s\n@say Late."];
    let said_so = begun_and_interrupted(&reader, data, &words, asked).await?;
    ensure!(said_so.contains("`manyhands interrupt mine` ends it"), "{said_so}");
    let ended = at(data, &["interrupt", "mine"]).output()?;
    ensure!(String::from_utf8_lossy(&ended.stdout) == "stopped\n", "{ended:?}");
    let events = reader.events("mine").await?;
    ensure!(rests(&events) == ["interrupted"] && said(&events).is_empty(), "{:?}", rests(&events));

    // Another turn, and a gateway that starts.
    let again = ["run", "--session", "mine", SLEEPS];
    begun_and_interrupted(&reader, data, &again, |events| of(events, "hand.call_started").len() == 1).await?;
    let options = Options::default().data(data).env("MANYHANDS_BRAIN_MODEL", "scripted/demo");
    let gateway = Gateway::start(options).await?;
    let events = reader.until("mine", |events| rests(events).len() == 2).await?;
    ensure!(said(&events) == ["Slept."], "{:?}", said(&events));

    // With a gateway, the turn goes on without the command.
    let words = ["run", "--session", "mine", "@wait 5s\n@say Without you."];
    let child = at(data, &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    reader.until("mine", |events| of(events, "span.model_request_start").len() == 4).await?;
    let said_so = interrupt(child)?;
    ensure!(said_so.contains("goes on without this command") && said_so.contains("--follow"), "{said_so}");
    let events = reader.until("mine", |events| rests(events).len() == 3).await?;
    ensure!(said(&events).last().map(String::as_str) == Some("Without you."), "{:?}", said(&events));
    drop(gateway);
    Ok(())
}

/// A client of `stdio` may well speak to the built-in brain: that is asking for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_through_stdio_is_answered_there() -> Result<()> {
    let (folder, reader) = prepared().await?;
    let data = folder.path();
    ensure!(at(data, &["run", "--session", "mine", "@say One."]).output()?.status.success());
    let mut stays = at(data, &["stdio", "--session", "mine"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let capabilities = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let said_so =
        json!({"name": "session_emit", "arguments": {"type": "user.message", "content": "@say Two."}});
    let mut stdin = stays.stdin.take().context("no stdin")?;
    for line in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": capabilities}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": said_so}),
    ] {
        writeln!(stdin, "{line}")?;
    }
    let events = reader.until("mine", |events| rests(events).len() == 2).await?;
    ensure!(said(&events) == ["One.", "Two."], "{:?}", said(&events));
    drop(stdin);
    ensure!(stays.wait()?.success());
    Ok(())
}
