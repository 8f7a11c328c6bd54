//! Each kind of hand: how long an instance takes to be there, and a call to it once it is. Told, not promised.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use hands::android::Android;
use hands::container::{Container, ContainerConfig, Image};
use hands::emulator::{Emulator, EmulatorConfig};
use hands::sandbox::{Sandbox, SandboxConfig};
use hands::ssh::Ssh;
use hands::vm::{Accel, Vm, VmConfig};
use hands::{Call, CallContext, Ending, Hand, Handle, InstanceId, Lease, Owner};
use serde_json::json;
use tests::device::Bench;
use tests::dockerd::{Dockerd, rootfs};
use tests::game;
use tests::gateway::binary;
use tests::guest::guest;
use tests::sshd::Sshd;
use tokio_util::sync::CancellationToken;

use crate::report::{Bound, Row, percentile};

/// Instances measured of each kind.
const ROUNDS: usize = 10;
/// Warm calls in each.
const CALLS: usize = 10;
/// Instances before that: the first imports the image and boots the machine that others begin as.
const WARM: usize = 2;

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let folder = scratch.join("kinds");
    std::fs::create_dir_all(&folder)?;
    let (daemon, sshd, phone) = tokio::try_join!(Dockerd::start(), Sshd::start(), Bench::start())?;
    let rom = folder.join("game.gb");
    std::fs::write(&rom, game::game())?;
    let guest = guest()?;
    let sandbox = Sandbox::new(SandboxConfig::new(binary()));
    let mut config = ContainerConfig::new("bench", Image::Rootfs(rootfs()?));
    config.host = daemon.host();
    let machine =
        VmConfig { accel: Accel::Tcg, ..VmConfig::new(binary(), guest.kernel, guest.initrd, guest.cache) };
    let kinds: [(&str, &str, Arc<dyn Hand>); 6] = [
        ("a sandbox", "a warm `bash true` in a sandbox", Arc::new(sandbox)),
        ("a container", "a warm `bash true` in a container", Arc::new(Container::new(config))),
        ("a place on an SSH host", "a warm `bash true` over SSH", Arc::new(Ssh::new(sshd.config()?))),
        ("a place on a device", "a warm `bash true` through adb", Arc::new(Android::new(phone.config()))),
        (
            "a console",
            "a warm `read_memory` of a console",
            Arc::new(Emulator::new(EmulatorConfig::new(binary(), rom))),
        ),
        (
            "a machine, emulated, from its snapshot",
            "a warm `bash true` in a machine",
            Arc::new(Vm::new(machine)),
        ),
    ];
    let mut rows = Vec::new();
    for (what, warm, hand) in kinds {
        rows.extend(of_kind(&*hand, &folder, what, warm).await?);
        hand.shutdown().await;
    }
    Ok(rows)
}

async fn of_kind(hand: &dyn Hand, folder: &Path, what: &'static str, warm: &'static str) -> Result<[Row; 2]> {
    let (mut provisions, mut calls) = (Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let name = format!("bench-{}-{round}", std::process::id());
        let lease = Lease {
            work: folder.join(what).join(&name),
            instance: InstanceId(name),
            owner: Owner("local:owner".to_owned()),
        };
        let start = Instant::now();
        let handle = hand.provision(&lease, &hands::NoProgress).await?;
        call(hand, &handle).await?;
        let provision = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..CALLS {
            call(hand, &handle).await?;
        }
        #[expect(clippy::cast_precision_loss, reason = "ten")]
        let each = start.elapsed().as_secs_f64() / CALLS as f64;
        hand.release(handle).await?;
        if round >= WARM {
            provisions.push(provision);
            calls.push(each);
        }
    }
    let row = |what, times: &mut Vec<f64>, of: &str| Row {
        what,
        value: percentile(times, 0.5) * 1e3,
        must: Bound::None,
        aim: Bound::None,
        unit: "ms",
        detail: format!("p50 of {}{of}; p95 {:.1} ms", times.len(), percentile(times, 0.95) * 1e3),
    };
    Ok([row(what, &mut provisions, ", with its first call"), row(warm, &mut calls, " means of 10 calls")])
}

async fn call(hand: &dyn Hand, handle: &Handle) -> Result<()> {
    let posix = hand.tools().await?.iter().any(|tool| tool.name == "bash");
    let (tool, arguments) = if posix {
        ("bash", json!({"command": "true"}))
    } else {
        ("read_memory", json!({"address": "0x9800"}))
    };
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let call = Call { tool: tool.to_owned(), arguments };
    let outcome = hand.execute(handle, &call, CallContext::quiet(CancellationToken::new())).await?;
    ensure!(outcome.ending == Ending::Ok, "{tool} failed: {outcome:?}");
    Ok(())
}
