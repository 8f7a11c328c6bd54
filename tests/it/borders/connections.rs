//! Connections that send nothing, and a standard error that nobody reads.

mod unread;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine, and shorter than a hang.
const HANGS: Duration = Duration::from_secs(60);

/// A command of the owner's answers in time.
async fn commands_work(data: &std::path::Path) -> Result<()> {
    let mut command = tokio::process::Command::from(tests::gateway::command(data));
    command.args(["session", "list"]).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = timeout(HANGS, command.output()).await.context("`session list` hangs")??;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
