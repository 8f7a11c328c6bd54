//! Connections that send nothing, and a standard error that nobody reads.

mod slow;
mod unread;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::gateway::Gateway;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine, and shorter than a hang.
const HANGS: Duration = Duration::from_secs(60);
fn address(gateway: &Gateway) -> Result<&str> {
    gateway.url().strip_prefix("http://").context("an address")
}

/// Connections that send nothing.
async fn silent(gateway: &Gateway, count: usize) -> Result<Vec<TcpStream>> {
    let mut all = Vec::new();
    for n in 0..count {
        let connected = timeout(HANGS, TcpStream::connect(address(gateway)?)).await;
        all.push(connected.with_context(|| format!("connection {n} hangs"))??);
    }
    Ok(all)
}

async fn is_healthy(gateway: &Gateway) -> Result<()> {
    let answer = timeout(HANGS, reqwest::get(format!("{}/healthz", gateway.url()))).await;
    let answer = answer.context("/healthz hangs")??.text().await?;
    ensure!(answer == "ok\n", "{answer}");
    Ok(())
}

/// A command of the owner's answers in time.
async fn commands_work(data: &std::path::Path) -> Result<()> {
    let mut command = tokio::process::Command::from(tests::gateway::command(data));
    command.args(["session", "list"]).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = timeout(HANGS, command.output()).await.context("`session list` hangs")??;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
