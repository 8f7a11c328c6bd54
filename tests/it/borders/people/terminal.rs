//! What hands, models, servers and events say steers nobody's terminal, whichever command shows it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gateway::text::{Layout, escaped};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::fixture::offered;
use tests::gateway::{Gateway, Options, command};

use super::pty::{self, Seen, steers};
use crate::mcp::client::{Client, Era, soon};

/// The clipboard (OSC 52), the title, the screen (C1), the direction, and a line over the one before.
const STEERING: &str =
    "\u{1b}]52;c;aGk=\u{7}\u{1b}]0;title\u{7}\u{9b}2J\u{202e}gnp.exe\u{2066}\u{200f}\u{7f}\u{2028}\rforged";

/// How far two runs of a command can be compared.
#[derive(Clone, Copy, PartialEq)]
enum Same {
    /// They print the same.
    All,
    /// They print other ids and times.
    Not,
}

fn at(data: &Path, words: &[&str]) -> Command {
    let mut command = command(data);
    command.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").args(words);
    command
}

fn server() -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/borders/people/server.py");
    let command = json!(["python3", script, STEERING]).to_string();
    format!(
        "[hands.sandbox]\nkind = \"sandbox\"\n[hands.evil]\nkind = \"mcp\"\ncommand = {}\n",
        toml(&command)
    )
}

/// A JSON text as TOML has it, where DEL must be escaped, too.
fn toml(json: &str) -> String {
    json.replace('\u{7f}', "\\u007f")
}

async fn gateway() -> Result<Gateway> {
    let options = Options::default().env("MANYHANDS_BRAIN_MODEL", "scripted/demo");
    let gateway = Gateway::start(options.env("MANYHANDS_LOOP_BACKOFF_MS", "1").config(&server())).await?;
    offered(&gateway, "evil").await?;
    Ok(gateway)
}

/// What a model says and does, in one prompt of the scripted model: whole, in pieces of a stream, and as arguments.
fn script() -> String {
    let pieces = "printf 'a\\033'; sleep 0.4; printf ']0;x\\007'; sleep 0.4; printf '\\302'; sleep 0.4; printf '\\2332J'";
    let calls = [
        ("sandbox__bash", json!({"command": pieces})),
        ("sandbox__bash", json!({"command": format!("# {STEERING}")})),
        ("evil__shout", json!({"x": STEERING})),
    ];
    let calls = calls.map(|(tool, input)| format!("@call {tool} {input}\n@then\n"));
    format!("@say I say {STEERING}\n{}@say It said {{{{result}}}} {STEERING}", calls.concat())
}

/// Every way in which something of others is shown.
fn table(script: &str) -> Vec<(Same, Vec<&str>)> {
    use Same::{All, Not};
    let echo = r#"{"command": "cat evil; printf '\\302'; sleep 0.3; printf '\\2332J\\n'"}"#;
    let path = "sandbox:no\u{1b}]0;x\u{7}\u{202e}";
    vec![
        (Not, vec!["hand", "call", "sandbox", "bash", echo, "--session", "plain"]),
        (Not, vec!["hand", "call", "evil", "shout", "--session", "plain"]),
        (Not, vec!["hand", "call", "evil", "fail", "--session", "plain"]),
        (Not, vec!["run", "--session", "turn", script]),
        (
            Not,
            vec!["run", "--session", "fails", concat!("@fail refused \u{1b}]0;x\u{7}", "\u{202e}x\u{9b}2J")],
        ),
        (Not, vec!["wake", "fails"]),
        (All, vec!["hand", "list"]),
        (All, vec!["hand", "show", "evil"]),
        (All, vec!["hand", "show", "sandbox"]),
        (All, vec!["session", "list"]),
        (All, vec!["session", "show", "turn"]),
        (All, vec!["session", "show", "fails"]),
        (All, vec!["session", "events", "plain"]),
        (All, vec!["session", "events", "turn"]),
        (All, vec!["session", "events", "fails"]),
        (All, vec!["token", "list"]),
        (All, vec!["connect", "json"]),
        (All, vec!["session", "new", "fresh"]),
        (Not, vec!["hand", "checkpoint", "sandbox", "before", "--session", "plain"]),
        (Not, vec!["hand", "release", "sandbox", "--session", "plain"]),
        (All, vec!["hand", "remove", "\u{202e}x"]),
        (All, vec!["interrupt", "plain\u{9b}"]),
        (All, vec!["interrupt", "fails"]),
        (All, vec!["confirm", "turn", "\u{1b}]0;x\u{7}\u{202e}", "allow"]),
        (All, vec!["hand", "show", "\u{202e}x"]),
        (All, vec!["hand", "call", "evil", "no\u{1b}]0;x\u{7}", "--session", "plain"]),
        (All, vec!["hand", "cp", path, "/tmp/manyhands-none", "--session", "plain"]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_lets_others_steer_a_terminal() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "plain").await?;
    client.call("sandbox__write", json!({"path": "evil", "content": format!("{STEERING}\n")})).await?;
    for event in [
        json!({"type": "note.x", "data": {"text": STEERING, "a\u{202e}b": "\u{9b}2J"}}),
        json!({"type": "agent.message", "content": STEERING}),
    ] {
        ensure!(client.call("session_emit", event).await?["isError"] != true);
    }
    let (script, mut raw) = (script(), Vec::new());
    for (same, words) in table(&script) {
        let named = words.join(" ").chars().take(60).collect::<String>();
        let context = || format!("{named:?}");
        let json: Vec<&str> = [&words[..], &["--json"]].concat();
        let seen = pty::run(at(gateway.data(), &words)).with_context(context)?;
        seen.is_harmless().with_context(context)?;
        let piped = at(gateway.data(), &words).output()?;
        ensure!(seen.code == piped.status.code(), "{named:?}: {seen:?}");
        let text = [&piped.stdout[..], &piped.stderr[..]].concat();
        if String::from_utf8_lossy(&text).chars().any(steers) {
            raw.push(named.clone());
        }
        let seen_json = pty::run(at(gateway.data(), &json))?;
        let piped_json = at(gateway.data(), &json).output()?;
        if same == Same::All {
            is_the_same(&seen, &piped.stdout, &piped.stderr).with_context(context)?;
            ensure!(seen_json.text().as_bytes() == piped_json.stdout, "{named:?}: JSON differs");
        }
        // Whatever the command, programs get what they parse.
        for line in seen_json.text().lines() {
            serde_json::from_str::<Value>(line).with_context(context)?;
        }
    }
    // The attack was played: what goes into pipes has it.
    ensure!(raw.len() >= 9, "{raw:#?} printed what steers");
    Ok(())
}

/// A terminal shows line for line what a pipe gets, escaped.
fn is_the_same(seen: &Seen, stdout: &[u8], stderr: &[u8]) -> Result<()> {
    for (seen, piped) in [(seen.text(), stdout), (seen.errors(), stderr)] {
        let piped = std::str::from_utf8(piped)?;
        let lines: Vec<_> = piped.split('\n').map(|line| escaped(line, Layout::Line)).collect();
        ensure!(seen == lines.join("\n"), "{seen:?}\nis not\n{piped:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sees_events_escaped_as_they_come() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "plain").await?;
    client.call("session_emit", json!({"type": "note.first", "data": {"text": STEERING}})).await?;
    let following = pty::start(at(gateway.data(), &["session", "events", "plain", "--follow"]))?;
    client.call("session_emit", json!({"type": "note.second", "data": {"text": STEERING}})).await?;
    // Time to be shown; what is not shown by then fails below.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let pid = i32::try_from(following.child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(pid, Signal::INT)?;
    let seen = following.end()?;
    seen.is_harmless()?;
    ensure!(
        seen.text().contains("note.second") && seen.text().contains(r"\u{202e}gnp.exe"),
        "{}",
        seen.text()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_and_errors_of_the_configuration_are_escaped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("odd.toml");
    let config = file.to_str().context("no path")?;
    let program = toml(&json!(format!("/nowhere/{STEERING}")).to_string());
    for (text, word) in [
        (format!("[hands.odd]\nkind = \"mcp\"\ncommand = [{program}]\n"), "doctor"),
        (format!("[hands.odd]\nkind = \"sandbox\"\npermission = {program}\n"), "doctor"),
        (format!("[hands.{program}]\nkind = \"sandbox\"\n"), "serve"),
        (format!("listen = {program}\n"), "serve"),
    ] {
        std::fs::write(&file, &text)?;
        let words = [word, "--config", config];
        let piped = at(folder.path(), &words).output()?;
        let all = [&piped.stdout[..], &piped.stderr[..]].concat();
        let seen = pty::run(at(folder.path(), &words))?;
        seen.is_harmless().with_context(|| text.clone())?;
        ensure!(seen.code == Some(1) && !all.is_empty(), "{text}: {seen:?}");
        is_the_same(&seen, &piped.stdout, &piped.stderr).with_context(|| text.clone())?;
    }
    Ok(())
}

/// The lines of the log have colours of their own, and nothing of others that would be one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_on_a_terminal_is_escaped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, data) = (folder.path().join("hands.toml"), folder.path().join("data"));
    std::fs::write(&file, server())?;
    let config = file.to_str().context("no path")?;
    let serving = pty::start(at(&data, &["serve", "--listen", "127.0.0.1:0", "--config", config]))?;
    soon(async || Ok(data.join("manyhands.sock").exists())).await?;
    // The server talks on its stderr, and the model's error is a field.
    at(&data, &["hand", "call", "evil", "shout"]).output()?;
    at(&data, &["run", "--session", "log", &format!("@fail refused {STEERING}")]).output()?;
    let pid = i32::try_from(serving.child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(pid, Signal::TERM)?;
    let mut seen = serving.end()?;
    ensure!(seen.errors().contains("\u{1b}[3m"), "there are no colours: {}", seen.errors());
    seen.stderr = without_colours(&seen.errors()).into_bytes();
    seen.is_harmless()?;
    let log = seen.errors();
    ensure!(log.contains("stderr: heard") && log.contains("a model did not answer"), "{log}");
    ensure!(log.matches(r"\u{202e}").count() >= 2, "{log}");
    Ok(())
}

/// Without `ESC [ digits m`.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let behind = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        plain.push_str(behind.strip_prefix('m').unwrap_or("\u{1b}["));
    }
    plain
}
