//! D: what the disk takes for one small durable write, the unit of the log's promises.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::report::percentile;

/// Overwrites measured.
const ROUNDS: usize = 200;

/// Bytes of one overwrite.
const BLOCK: usize = 4096;

/// A file for single overwrites, so that others can measure theirs in between.
#[derive(Debug)]
pub(crate) struct Disk(File);

impl Disk {
    /// Its blocks are allocated once, here.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let file = File::create(folder.join("overwrite"))?;
        file.write_all_at(&[0; BLOCK], 0)?;
        file.sync_all()?;
        Ok(Self(file))
    }

    /// One 4 KiB overwrite and `fdatasync`; in seconds.
    pub(crate) fn overwrite(&self) -> Result<f64> {
        let start = Instant::now();
        self.0.write_all_at(&[1; BLOCK], 0)?;
        self.0.sync_data()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The p50 of an overwrite in this folder, in seconds.
pub(crate) fn d(folder: &Path) -> Result<f64> {
    let disk = Disk::new(folder)?;
    let mut samples = (0..ROUNDS).map(|_| disk.overwrite()).collect::<Result<Vec<_>>>()?;
    Ok(percentile(&mut samples, 0.5))
}
