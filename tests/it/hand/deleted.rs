//! What a deleted session's hands kept elsewhere goes with it, at once or as soon as its host answers.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hands::ssh::HostKey;
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

fn delete(gateway: &Gateway, session: &str) -> Result<()> {
    let deleted = gateway.cli(&["session", "delete", session])?;
    ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    Ok(())
}

#[tokio::test]
async fn a_deleted_session_leaves_nothing_on_a_host_even_if_that_was_away() -> Result<()> {
    let mut server = Sshd::start().await?;
    let config = server.config()?;
    let HostKey::Accepted(keys) = &config.host_key else { anyhow::bail!("another kind of key") };
    let text = format!(
        "[hands.build]\nkind = \"ssh\"\nhost = \"{}\"\nport = {}\nuser = \"{}\"\nkey = \"{}\"\nhost_keys = [\"{}\"]\n",
        config.host,
        config.port,
        config.user,
        server.path("user").display(),
        keys.first().context("a key")?,
    );
    let data = tempfile::tempdir()?;
    let options = Options::default().config(&text).data(data.path());
    let mut gateway = Gateway::start(options.clone()).await?;
    let (one, other, away) =
        (worked(&gateway, "one")?, worked(&gateway, "other")?, worked(&gateway, "away")?);
    delete(&gateway, "one")?;
    ensure!(!one.exists() && !one.parent().context("a parent")?.exists(), "{} is still there", one.display());
    ensure!(other.join("file").exists(), "another session's work went");
    server.stop();
    delete(&gateway, "away")?;
    ensure!(away.join("file").exists(), "the host was not away");
    gateway.stop()?;
    server.serve().await?;
    let mut gateway = Gateway::start(options).await?;
    for _ in 0..600 {
        if !away.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(!away.exists(), "not tried again: {}", gateway.stderr());
    ensure!(other.join("file").exists(), "another session's work went");
    gateway.stop()
}
