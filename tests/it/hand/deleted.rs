//! What a deleted session's hands kept elsewhere goes with it, at once or as soon as its host answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hands::ssh::HostKey;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use tests::sshd::Sshd;

/// The folder of a session's work on the host, which is this machine, after a call that made it.
fn worked(gateway: &Gateway, session: &str) -> Result<PathBuf> {
    let arguments = r#"{"command": "echo kept > file; pwd"}"#;
    let called = gateway.cli(&["hand", "call", "build", "bash", arguments, "--session", session])?;
    let folder = PathBuf::from(String::from_utf8(called.stdout)?.trim());
    ensure!(folder.join("file").exists(), "{}", String::from_utf8_lossy(&called.stderr));
    Ok(folder)
}

/// Deletes a session: what is said.
fn delete(gateway: &Gateway, session: &str) -> Result<Value> {
    let deleted = gateway.cli(&["session", "delete", session, "--json"])?;
    ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    Ok(serde_json::from_slice(&deleted.stdout)?)
}

/// What a gateway needs to have this host as a hand.
fn hand(server: &Sshd) -> Result<String> {
    let config = server.config()?;
    let HostKey::Accepted(keys) = &config.host_key else { anyhow::bail!("another kind of key") };
    Ok(format!(
        "[hands.build]\nkind = \"ssh\"\nhost = \"{}\"\nport = {}\nuser = \"{}\"\nkey = \"{}\"\nhost_keys = [\"{}\"]\n",
        config.host,
        config.port,
        config.user,
        server.path("user").display(),
        keys.first().context("a key")?,
    ))
}

async fn gone(folder: &Path) -> bool {
    for _ in 0..600 {
        if !folder.exists() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Nobody waits at the terminal for a host that says nothing, and its work goes as soon as it speaks again.
#[tokio::test]
async fn a_silent_host_holds_nobody_up_who_deletes_a_session() -> Result<()> {
    let server = Sshd::start().await?;
    let data = tempfile::tempdir()?;
    let mut gateway = Gateway::start(Options::default().config(&hand(&server)?).data(data.path())).await?;
    let (one, other) = (worked(&gateway, "one")?, worked(&gateway, "other")?);
    server.signal(Signal::STOP)?;
    let said = delete(&gateway, "one")?;
    ensure!(said["deleted"] == true && said["left_elsewhere"] == json!(["build"]), "{said}");
    let text = gateway.cli(&["session", "delete", "other"])?;
    let text = String::from_utf8(text.stdout)?;
    let sentence = "what build kept could not be removed yet; it is tried again until it can";
    ensure!(text.contains(sentence), "{text}");
    ensure!(one.join("file").exists() && other.join("file").exists(), "the host was not silent");
    let left = |folder: &str| data.path().join("work").join(folder).exists();
    ensure!(!left(said["id"].as_str().context("an id")?), "its work here is still there");
    // Both are still being removed.
    server.signal(Signal::CONT)?;
    ensure!(gone(&one).await && gone(&other).await, "given up: {}", gateway.stderr());
    gateway.stop()
}

#[tokio::test]
async fn a_deleted_session_leaves_nothing_on_a_host_even_if_that_was_away() -> Result<()> {
    let mut server = Sshd::start().await?;
    let text = hand(&server)?;
    let data = tempfile::tempdir()?;
    let options = Options::default().config(&text).data(data.path());
    let mut gateway = Gateway::start(options.clone()).await?;
    let (one, other, away) =
        (worked(&gateway, "one")?, worked(&gateway, "other")?, worked(&gateway, "away")?);
    let said = delete(&gateway, "one")?;
    ensure!(said["left_elsewhere"].is_null(), "{said}");
    ensure!(!one.exists() && !one.parent().context("a parent")?.exists(), "{} is still there", one.display());
    ensure!(other.join("file").exists(), "another session's work went");
    server.stop();
    let said = delete(&gateway, "away")?;
    ensure!(said["left_elsewhere"] == json!(["build"]), "{said}");
    ensure!(away.join("file").exists(), "the host was not away");
    gateway.stop()?;
    server.serve().await?;
    let mut gateway = Gateway::start(options).await?;
    ensure!(gone(&away).await, "not tried again: {}", gateway.stderr());
    ensure!(other.join("file").exists(), "another session's work went");
    gateway.stop()
}
