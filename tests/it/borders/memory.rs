//! Outputs that are large, many at once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};
use tokio::time::timeout;

use crate::mcp::client::{Client, Era, Stream, text};

/// Sessions, each with a sandbox of its own.
const SESSIONS: usize = 4;
/// Calls of each at once: 32 of one principal, as many as it may have.
const CALLS: usize = 8;
/// Bytes of each output.
const OUTPUT: usize = 8 << 20;
/// The most memory that the gateway may take for them, in KiB: 4 MB a call.
const MEMORY_MAX_KIB: u64 = 32 * 4_000_000 / 1024;
/// Ten times what all of it takes on two busy cores.
const PATIENCE: Duration = Duration::from_mins(10);

/// The most memory that a process ever had, in KiB.
fn highest(gateway: &Gateway) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The result of a call, however long it takes.
async fn ended(mut stream: Stream) -> Result<Value> {
    let answer = timeout(PATIENCE, async {
        while let Some(message) = stream.patient().await? {
            if message.get("method").is_none() {
                return Ok(message);
            }
        }
        anyhow::bail!("no answer")
    });
    let mut answer = answer.await??;
    ensure!(answer["result"].is_object(), "{answer}");
    Ok(answer["result"].take())
}

async fn call(client: &Client, tool: &str, arguments: Value) -> Result<Value> {
    ended(client.open("tools/call", json!({ "name": tool, "arguments": arguments })).await?).await
}

/// All print it at once; then one in each session reads it from a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_outputs_at_once_take_little_memory() -> Result<()> {
    let gateway = Gateway::start(Options::default()).await?;
    let mut clients = Vec::new();
    for n in 0..SESSIONS {
        clients.push(Client::owner(&gateway, Era::Modern, &format!("large-{n}")).await?);
    }
    let line = format!("yes 0123456789abcde | head -c {OUTPUT}");
    for client in &clients {
        let made = call(client, "sandbox__bash", json!({ "command": format!("{line} > large") })).await?;
        ensure!(made["isError"] != true, "{made}");
    }
    let before = highest(&gateway)?;
    let print = json!({ "command": line, "timeout_s": 600 });
    let prints = (0..SESSIONS * CALLS).map(|n| shows_all(&clients[n % SESSIONS], "sandbox__bash", &print));
    try_join_all(prints).await?;
    let read = json!({ "path": "large", "limit": 10_000_000 });
    try_join_all(clients.iter().map(|client| shows_all(client, "sandbox__read", &read))).await?;
    let taken = highest(&gateway)? - before;
    ensure!(taken < MEMORY_MAX_KIB, "the gateway took {taken} KiB, more than {MEMORY_MAX_KIB}");
    Ok(())
}

/// Makes a call whose answer shows both ends of the output, and whose output is whole.
async fn shows_all(client: &Client, tool: &str, arguments: &Value) -> Result<()> {
    let result = call(client, tool, arguments.clone()).await?;
    let shown = text(&result);
    ensure!(shown.contains(&format!("of {OUTPUT} characters left out")), "{tool}: {result}");
    ensure!(shown.starts_with("0123456789abcde\n") && shown.ends_with("0123456789abcde\n"), "{result}");
    let link = result["content"][1]["text"].as_str().with_context(|| format!("no link: {result}"))?;
    let uri = link.split_whitespace().last().unwrap_or_default().trim_end_matches(']');
    let last = client.read(&format!("{uri}?offset={}", OUTPUT - 32)).await?;
    ensure!(last["text"] == "0123456789abcde\n".repeat(2), "{last}");
    Ok(())
}

/// What is kept free of the disk stays free: the call ends, and what it showed until then is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_the_disk_has_no_room_for_ends_its_call() -> Result<()> {
    use hands::{CallContext, Content, Ending, Hand as _, Spool};

    use crate::sandbox_kit::{Rig, context};

    let rig = Rig::new();
    let spool = Spool::new(std::path::Path::new("/var/tmp"), u64::MAX);
    let context = CallContext { spool, ..context() };
    let outcome =
        rig.try_call("bash", json!({ "command": "echo first; yes | head -c 10000000" }), context).await?;
    ensure!(outcome.ending == Ending::Error, "{outcome:?}");
    let [Content::Text(text)] = &outcome.content[..] else { anyhow::bail!("{outcome:?}") };
    ensure!(text.starts_with("first\n") && text.len() < 1 << 20, "{} bytes", text.len());
    ensure!(
        text.contains("can't be kept (only ") && text.contains("free on the disk"),
        "{}",
        &text[text.len() - 300..]
    );
    rig.hand.shutdown().await;
    Ok(())
}
