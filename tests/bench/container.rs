//! Containers: what a fresh one with its first call costs beside `docker` by hand.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use hands::container::{Container, ContainerConfig, Image};
use hands::{Call, CallContext, Ending, Hand, InstanceId, Lease, Owner};
use serde_json::json;
use tests::dockerd::{Dockerd, rootfs};
use tokio_util::sync::CancellationToken;

use crate::report::{Bound, Row, percentile};

/// Containers measured, by hand and by the hand in turn; warm calls in each.
const ROUNDS: usize = 10;

/// Containers before that: the first imports the image.
const WARM: usize = 2;

/// The hardening of the hand, by hand; the image follows.
const HARDENED: [&str; 17] = [
    "run",
    "-d",
    "--rm",
    "--init",
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=none",
    "--memory=2g",
    "--memory-swap=2g",
    "--pids-limit=512",
    "--cpus=1.5",
    "--user=1000:1000",
    "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size=512m",
    "--ipc=private",
    "--log-driver=none",
    "--name=by-hand",
];

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let daemon = Dockerd::start().await?;
    let mut config = ContainerConfig::new("bench", Image::Rootfs(rootfs()?));
    config.host = daemon.host();
    let hand = Container::new(config);
    let work = scratch.join("container");
    std::fs::create_dir_all(scratch.join("by-hand"))?;
    let volume = format!("--volume={}:/workspace", scratch.join("by-hand").display());
    let (mut by_hand, mut by_us, mut exec, mut warm) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let lease = Lease {
            instance: InstanceId(format!("bench-{}-{round}", std::process::id())),
            work: work.clone(),
            owner: Owner("local:owner".to_owned()),
        };
        let start = Instant::now();
        let handle = hand.provision(&lease, &hands::NoProgress).await?;
        call(&hand, &handle).await?;
        let ours = start.elapsed().as_secs_f64();
        let start = Instant::now();
        call(&hand, &handle).await?;
        let call = start.elapsed().as_secs_f64();
        let image = daemon.docker(&["images", "--quiet", "manyhands-rootfs"]);
        let start = Instant::now();
        daemon.docker(&[&HARDENED[..], &[&volume, image.trim(), "sleep", "100"]].concat());
        daemon.docker(&["exec", "by-hand", "bash", "-lc", "true"]);
        let theirs = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let said = daemon.docker(&["exec", "by-hand", "bash", "-lc", "echo it runs"]);
        ensure!(said == "it runs\n", "docker exec says {said}");
        let again = start.elapsed().as_secs_f64();
        hand.release(handle).await?;
        daemon.docker(&["rm", "--force", "by-hand"]);
        if round >= WARM {
            by_us.push(ours);
            by_hand.push(theirs);
            exec.push(again);
            warm.push(call);
        }
    }
    hand.shutdown().await;
    let p50 = |times: &mut Vec<f64>| percentile(times, 0.5);
    let (ours, theirs, call, exec) = (p50(&mut by_us), p50(&mut by_hand), p50(&mut warm), p50(&mut exec));
    let row = |what, ours: f64, theirs: f64| Row {
        what,
        value: ours / theirs,
        must: Bound::AtMost(1.2),
        aim: Bound::AtMost(1.0),
        unit: "x",
        detail: format!("p50 {:.0} ms / {:.0} ms", ours * 1e3, theirs * 1e3),
    };
    Ok(vec![
        row("a fresh container and its first call / docker run and exec by hand", ours, theirs),
        row("a warm `bash true` in a container / docker exec by hand", call, exec),
    ])
}

async fn call(hand: &Container, handle: &hands::Handle) -> Result<()> {
    let arguments = json!({"command": "true"}).as_object().cloned().unwrap_or_default();
    let call = Call { tool: "bash".to_owned(), arguments };
    let outcome = hand.execute(handle, &call, CallContext::quiet(CancellationToken::new())).await?;
    ensure!(outcome.ending == Ending::Ok, "bash true failed in the container: {outcome:?}");
    Ok(())
}
