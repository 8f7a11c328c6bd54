//! The smallest program that a sandbox can be made with, and the smallest gateway that can be killed:
//! `hold INSTANCE WORK` makes a sandbox, starts something in its background and stays.

use std::process::ExitCode;

use hands::sandbox::{Sandbox, SandboxConfig};
use hands::{Call, CallContext, Hand, InstanceId, Lease};
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = hands::sandbox::dispatch(arguments.clone()) {
        return Ok(code);
    }
    let [hold, instance, work] = arguments.as_slice() else { return Ok(ExitCode::FAILURE) };
    anyhow::ensure!(hold == "hold");
    let lease = Lease {
        instance: InstanceId(instance.to_string_lossy().into_owned()),
        work: work.into(),
        owner: hands::Owner("local:owner".into()),
    };
    tokio::runtime::Runtime::new()?.block_on(run(lease))
}

async fn run(lease: Lease) -> anyhow::Result<ExitCode> {
    let hand = Sandbox::new(SandboxConfig::new(std::env::current_exe()?));
    let handle = hand.provision(&lease, &hands::NoProgress).await?;
    let command = "setsid sh -c 'while :; do echo x >> beats; sleep 0.05; done' > /dev/null 2>&1 &";
    let call = Call { tool: "bash".into(), arguments: Map::from_iter([("command".into(), json!(command))]) };
    let context = CallContext::quiet(CancellationToken::new());
    hand.execute(&handle, &call, context).await?;
    println!("started");
    std::future::pending().await
}
