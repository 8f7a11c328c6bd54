//! How much memory calls take that print much, as many at once as one principal may have.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};
use tokio::task::JoinSet;

use crate::process::{Caller, MEGABYTE, resident};
use crate::report::{Bound, Row};

/// Sessions, each with a sandbox of its own.
const SESSIONS: usize = 4;
/// Calls of each at once.
const CALLS: usize = 8;
/// What each of them prints: more than the 64 MiB that a call may.
const PRINTS: &str = "head -c 200000000 /dev/zero | tr '\\0' x";
/// How often the memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let gateway = Gateway::start(Options::default().data(&scratch.join("memory"))).await?;
    let http = reqwest::Client::new();
    let mut callers = Vec::new();
    for n in 0..SESSIONS {
        let caller = Caller::of(&gateway, http.clone(), &format!("memory-{n}"))?;
        bash(&caller, "true").await?;
        callers.push(caller);
    }
    let idle = resident(gateway.pid())?;
    let mut running = JoinSet::new();
    for caller in &callers {
        for _ in 0..CALLS {
            let caller = caller.clone();
            running.spawn(async move { bash(&caller, PRINTS).await });
        }
    }
    let mut highest = idle;
    while !running.is_empty() {
        tokio::select! {
            Some(done) = running.join_next() => {
                let said = done??.to_string();
                ensure!(said.contains("it printed more than 64 MiB"), "{}", &said[said.len().saturating_sub(400)..]);
            }
            () = tokio::time::sleep(LOOK_EVERY) => highest = highest.max(resident(gateway.pid())?),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "32 calls")]
    let calls = (SESSIONS * CALLS) as f64;
    Ok(vec![Row {
        what: "memory a call, 32 with 64 MiB of output each",
        value: (highest - idle) / MEGABYTE / calls,
        must: Bound::AtMost(4.0),
        aim: Bound::AtMost(2.0),
        unit: "MB",
        detail: format!("resident {:.0} MB idle, {:.0} MB at most", idle / MEGABYTE, highest / MEGABYTE),
    }])
}

async fn bash(caller: &Caller, command: &str) -> Result<Value> {
    let arguments = json!({"command": command, "timeout_s": 600});
    caller.ask("tools/call", json!({"name": "sandbox__bash", "arguments": arguments})).await
}
