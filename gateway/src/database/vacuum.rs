//! Giving back to the disk what deletions left free in a SQLite file.
//!
//! It is done in small steps between other people's writes, and rests after each as long as that took.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::DatabaseError;
use super::writer::Queue;

/// Most pages, of 4 KiB, that one step gives back.
pub(super) const PAGES_AT_ONCE: u32 = 256;
/// As many free pages, of 4 KiB, may stay: small deletions are not worth a step.
pub(super) const PAGES_KEPT: u64 = 256;
/// The shortest rest after a step.
const REST_MIN: Duration = Duration::from_millis(5);
/// Where the header of a file says whether space is given back: the first of its numbers that is not 0.
/// (<https://sqlite.org/fileformat2.html>, 1.3.12)
const AUTO_VACUUM_AT: usize = 52;

/// Gives back what `freed` tells of, until `stop` fires.
pub(super) async fn give_back(queue: Arc<Queue>, freed: Arc<Notify>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = freed.notified() => {}
            () = stop.cancelled() => return,
        }
        let mut before = u64::MAX;
        loop {
            let start = Instant::now();
            let left = match queue.give_back().await {
                // What does not become less is not given back: an old file that could not be converted.
                Ok(left) if left <= PAGES_KEPT || left >= before => break,
                Ok(left) => left,
                Err(DatabaseError::Closed) => return,
                Err(error) => {
                    tracing::warn!(error = %error, "space of the database could not be given back");
                    break;
                }
            };
            before = left;
            tokio::select! {
                () = tokio::time::sleep(start.elapsed().max(REST_MIN)) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Whether the SQLite file gives back what deletions leave free. None when that can't be told, or there is none.
pub(super) fn is_given_back(file: &Path) -> Option<bool> {
    let mut header = [0; 100];
    File::open(file).ok()?.read_exact(&mut header).ok()?;
    Some(header[AUTO_VACUUM_AT..AUTO_VACUUM_AT + 4] != [0; 4])
}
