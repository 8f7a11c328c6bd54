//! The smallest program that hands with processes of ours can be made with, and the smallest gateway that can be
//! killed: `hold emulator INSTANCE WORK ROM` or `hold vm INSTANCE WORK KERNEL INITRD CACHE` makes one and stays.

use std::ffi::OsString;
use std::process::ExitCode;

use hands::emulator::{Emulator, EmulatorConfig};
use hands::vm::{Accel, Vm, VmConfig};
use hands::{Hand, InstanceId, Lease, Owner};

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = hands::emulator::worker_main(arguments.clone()) {
        return Ok(code);
    }
    if let Some(code) = hands::vm::dispatch(arguments.clone()) {
        return Ok(code);
    }
    tokio::runtime::Runtime::new()?.block_on(hold(&arguments))
}

async fn hold(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let [hold, kind, instance, work, what @ ..] = arguments else { return Ok(ExitCode::FAILURE) };
    anyhow::ensure!(hold == "hold");
    let program = std::env::current_exe()?;
    let hand: Box<dyn Hand> = match (kind.to_str(), what) {
        (Some("emulator"), [rom]) => Box::new(Emulator::new(EmulatorConfig::new(program, rom.into()))),
        (Some("vm"), [kernel, initrd, cache]) => {
            let config = VmConfig::new(program, kernel.into(), initrd.into(), cache.into());
            Box::new(Vm::new(VmConfig { accel: Accel::Tcg, ..config }))
        }
        _ => anyhow::bail!("no such kind"),
    };
    let lease = Lease {
        instance: InstanceId(instance.to_string_lossy().into_owned()),
        work: work.into(),
        owner: Owner("local:owner".into()),
    };
    hand.provision(&lease, &hands::NoProgress).await?;
    println!("started");
    std::future::pending().await
}
