//! The speed promises, as ratios of what is measured side by side in one run: `make bench`.
//!
//! Each file gives the rows of one room; this one prints them, and fails when a *must* is missed. `make bench
//! ROWS=sandbox` measures one file's alone.

mod calls;
mod connections;
mod container;
mod disk;
mod kinds;
mod log;
mod memory;
mod owner;
mod process;
mod report;
mod sandbox;
mod seed;
mod sleep;

use std::path::Path;

use anyhow::{Result, bail, ensure};

/// The files with rows, in the order of the table.
const ROOMS: [&str; 10] =
    ["log", "process", "connections", "memory", "sleep", "sandbox", "container", "kinds", "seed", "calls"];

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = scratch()?;
    // cargo passes options of its own.
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let rooms = only.as_deref().map_or(ROOMS.to_vec(), |only| vec![only]);
    report::heading();
    let mut missed = 0;
    for room in rooms {
        let rows = rows(room, scratch.path()).await?;
        rows.iter().for_each(report::Row::print);
        missed += rows.iter().filter(|row| !row.must_holds()).count();
    }
    println!("D, one 4 KiB overwrite and fdatasync: {:.2} ms at p50", disk::d(scratch.path())? * 1e3);
    ensure!(missed == 0, "{missed} promises missed");
    Ok(())
}

async fn rows(room: &str, scratch: &Path) -> Result<Vec<report::Row>> {
    match room {
        "log" => log::rows(scratch).await,
        "process" => process::rows(scratch).await,
        "connections" => connections::rows(scratch).await,
        "memory" => memory::rows(scratch).await,
        "sleep" => sleep::rows(scratch).await,
        "sandbox" => sandbox::rows(scratch).await,
        "container" => container::rows(scratch).await,
        "kinds" => kinds::rows(scratch).await,
        "seed" => seed::rows(scratch).await,
        "calls" => calls::rows(scratch).await,
        _ => bail!("no rows called {room}: there are {}", ROOMS.join(", ")),
    }
}

/// Beside the binary: on a disk, where /tmp may be memory.
fn scratch() -> Result<tempfile::TempDir> {
    let binary = tests::gateway::binary();
    let folder = binary.parent().unwrap_or(Path::new("."));
    Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(folder)?)
}
