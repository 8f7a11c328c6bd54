//! The sandbox: what a call costs above the shell it starts.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use hands::sandbox::{Sandbox, SandboxConfig};
use hands::{Call, CallContext, Ending, Hand, InstanceId, Lease, Owner};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::report::{Bound, Row, percentile};

/// Calls measured, the host's and the hand's in turn.
const ROUNDS: usize = 100;

/// Calls before that, so that everything is warm.
const WARM: usize = 10;

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let hand = Sandbox::new(SandboxConfig::new(tests::gateway::binary()));
    let lease = Lease {
        instance: InstanceId(format!("bench-{}", std::process::id())),
        work: scratch.join("sandbox"),
        owner: Owner("local:owner".to_owned()),
    };
    let handle = hand.provision(&lease, &hands::NoProgress).await?;
    let arguments = json!({"command": "true"}).as_object().cloned().unwrap_or_default();
    let call = Call { tool: "bash".to_owned(), arguments };
    let (mut on_host, mut in_hand) = (Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let start = Instant::now();
        let mut shell = on_the_host(scratch);
        let status = tokio::task::spawn_blocking(move || shell.status());
        ensure!(status.await??.success(), "bash -lc true failed on the host");
        let host = start.elapsed().as_secs_f64();
        let context = CallContext::quiet(CancellationToken::new());
        let start = Instant::now();
        let outcome = hand.execute(&handle, &call, context).await?;
        let inside = start.elapsed().as_secs_f64();
        ensure!(outcome.ending == Ending::Ok, "bash true failed in the sandbox: {outcome:?}");
        if round >= WARM {
            on_host.push(host);
            in_hand.push(inside);
        }
    }
    hand.release(handle).await?;
    let (host, inside) = (percentile(&mut on_host, 0.5), percentile(&mut in_hand, 0.5));
    Ok(vec![Row {
        what: "a warm `bash true` in the sandbox / on the host",
        value: inside / host,
        must: Bound::AtMost(4.0),
        aim: Bound::AtMost(2.0),
        unit: "x",
        detail: format!("p50 {:.2} ms / {:.2} ms", inside * 1e3, host * 1e3),
    }])
}

/// With the sandbox's environment and an empty home: what somebody's own profile does is not the shell's cost.
fn on_the_host(home: &Path) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-lc", "true"]).env_clear().env("HOME", home).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    shell
}
