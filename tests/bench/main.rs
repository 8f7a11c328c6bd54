//! The speed promises, as ratios of what is measured side by side in one run: `make bench`.
//!
//! Each room's file gives rows; this one prints them, and fails when a *must* is missed.

mod disk;
mod process;
mod report;

use anyhow::{Result, bail};

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = scratch()?;
    let mut rows = Vec::new();
    report::heading();
    for row in process::rows(scratch.path()).await? {
        row.print();
        rows.push(row);
    }
    println!("D = one 4 KiB overwrite and fdatasync, here {:.2} ms at p50", disk::d(scratch.path())? * 1e3);
    match rows.iter().filter(|row| !row.must_holds()).count() {
        0 => Ok(()),
        missed => bail!("{missed} of {} promises missed", rows.len()),
    }
}

/// Beside the binary: on a disk, where /tmp may be memory.
fn scratch() -> Result<tempfile::TempDir> {
    let binary = tests::gateway::binary();
    let folder = binary.parent().unwrap_or(std::path::Path::new("."));
    Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(folder)?)
}
