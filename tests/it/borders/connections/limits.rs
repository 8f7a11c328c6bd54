//! More connections than there are descriptors, and what the programs have that the gateway starts.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use serde_json::json;
use tests::fixture::{self, offered};
use tests::gateway::{Options, binary};
use tokio::time::timeout;

use super::{HANGS, commands_work, is_healthy, silent, to_the_end, usual};
use crate::mcp::client::{Client, Era, soon, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_silent_connections_stop_nothing() -> Result<()> {
    let gateway = usual(Options::default()).await?;
    let mut silent = silent(&gateway, 2_000).await?;
    is_healthy(&gateway).await?;
    let client = Client::owner(&gateway, Era::Modern, "demo").await?;
    // The first call has a sandbox provisioned.
    let call = client.call("sandbox__bash", json!({"command": "ulimit -Sn"}));
    let said = timeout(HANGS, call).await.context("a call hangs")??;
    ensure!(text(&said).trim() == "1024", "the soft limit in the sandbox: {said}");
    commands_work(gateway.data()).await?;
    // They have sent nothing in the time that headers may take.
    for ended in join_all(silent.iter_mut().map(to_the_end)).await {
        ensure!(ended?.is_empty());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_cap_the_silent_make_room_and_a_running_call_stays() -> Result<()> {
    let gateway = usual(Options::default().env("MANYHANDS_LIMITS_CONNECTIONS", "20")).await?;
    let client = Client::owner(&gateway, Era::Modern, "demo").await?;
    client.call("sandbox__bash", json!({"command": "true"})).await?;
    let running = client.call("sandbox__bash", json!({"command": "touch begun; sleep 4; echo done"}));
    let flood = async {
        // A client's connection between two requests makes room as well.
        soon(async || {
            let events = gateway.cli(&["session", "events", "demo"])?;
            Ok(String::from_utf8_lossy(&events.stdout).matches("hand.call_started").count() == 2)
        })
        .await?;
        let mut first = silent(&gateway, 1).await?;
        let mut more = Vec::new();
        for _ in 0..6 {
            more.extend(silent(&gateway, 20).await?);
            is_healthy(&gateway).await?;
        }
        ensure!(to_the_end(&mut first[0]).await?.is_empty());
        anyhow::Ok(more)
    };
    let (said, flooded) = tokio::join!(timeout(HANGS, running), flood);
    ensure!(text(&said??) == "done\n");
    flooded?;
    Ok(())
}

/// The sandbox's limit is looked at above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_get_the_limit_that_the_gateway_was_started_with() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let seen = folder.path().join("seen");
    let script = format!("ulimit -Sn > {}; exec {} --stdio", seen.display(), fixture::binary().display());
    let config = format!("[hands.server]\nkind = \"mcp\"\ncommand = [\"sh\", \"-c\", {script:?}]\n");
    let gateway = usual(Options::default().config(&config)).await?;
    offered(&gateway, "server").await?;
    ensure!(std::fs::read_to_string(&seen)?.trim() == "1024");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid()))?;
    let files = limits.lines().find(|line| line.starts_with("Max open files")).context("no limit")?;
    let soft: u64 = files.split_whitespace().nth(3).context("no soft limit")?.parse()?;
    ensure!(soft > 1_024, "the gateway's own was not raised: {files}");
    // One that can't be started says so.
    let missing = gateway.cli(&["hand", "add", "missing", "--", "/no/such/program"])?;
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    ensure!(!missing.status.success() && said.contains("/no/such/program could not be started"), "{said}");
    Ok(())
}

/// QEMU is started by a keeper of our own program.
#[test]
fn a_machine_gets_that_limit_too() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("machine");
    std::fs::write(&program, "#!/bin/sh\nulimit -Sn >&2\n")?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let mut keeper = Command::new(binary());
    keeper.args(["vm-keep", "inst_limits", "777"]).arg(&program).current_dir(&folder);
    let mut keeper = keeper.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // It ends the machine with its standard input.
    let held = keeper.stdin.take();
    let output = keeper.wait_with_output()?;
    drop(held);
    ensure!(output.stderr == b"777\n", "{output:?}");
    Ok(())
}
