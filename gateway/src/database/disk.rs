//! The disk under a SQLite file: what of it is kept free, and a reserve for when it is full all the same.
//!
//! Below [`Disk::keep_free`] nothing new is written, so that what ends, releases and deletes still can be. Should the
//! disk be full nevertheless (others fill it, too), the reserve, a file of nothing, is removed, and what failed is tried
//! again in the room that it had.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hands::disk::{Space, shown, space};
use rustix::fs::{FallocateFlags, fallocate};

use super::DatabaseError;

/// The file of the reserve, in the data directory.
const RESERVE_FILE: &str = "reserve";
/// Bytes of the reserve: some transactions of a deletion.
const RESERVE_BYTES: u64 = 16 << 20;
/// The part of a small disk that the reserve takes: one in so many.
const RESERVE_PART: u64 = 16;
/// How long it holds what the disk was seen to have.
const SEEN_HOLDS: Duration = Duration::from_millis(200);

/// The disk of a data directory.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    /// Bytes that are kept free.
    floor: AtomicU64,
    seen: Mutex<Option<Seen>>,
}

/// What was seen of the disk, and when.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    free: u64,
    /// What must be free for something new to be written.
    needed: u64,
}

impl Disk {
    /// Of the data directory `folder`. The reserve is made when there is room for it.
    pub(super) fn new(folder: &Path) -> Self {
        let disk = Self { folder: folder.to_owned(), floor: AtomicU64::new(0), seen: Mutex::default() };
        // Who writes hears of a disk that can't be looked at.
        let _ = disk.look();
        disk
    }

    /// Refuses new things from now on while less is free, in bytes.
    pub(super) fn keep_free(&self, bytes: u64) {
        self.floor.store(bytes, Ordering::Relaxed);
        *self.seen() = None;
    }

    /// Refuses what begins something new, when that would take what is kept free. Looks at the disk now and then.
    pub(super) fn check(&self) -> Result<(), DatabaseError> {
        let mut seen = self.seen();
        let Seen { free, needed, .. } = match *seen {
            // There may be room again: whoever is refused is refused by what is true now.
            Some(known) if known.at.elapsed() < SEEN_HOLDS && known.free >= known.needed => known,
            // A disk that says nothing of itself is written to until it is full.
            _ => *seen.insert(self.look().unwrap_or(Seen { at: Instant::now(), free: 0, needed: 0 })),
        };
        if free < needed {
            return Err(DatabaseError::Low { free: shown(free), kept: shown(needed) });
        }
        Ok(())
    }

    /// Gives the reserve up, for what must be written. Whether there was any.
    pub(super) fn give_up_reserve(&self) -> bool {
        let given = fs::remove_file(self.reserve()).is_ok();
        if given {
            *self.seen() = None;
            tracing::warn!(
                "the disk of the database is full: its reserve is used to end what runs and to delete"
            );
        }
        given
    }

    /// The size of the disk, in bytes.
    pub(super) fn total(&self) -> io::Result<u64> {
        Ok(space(&self.folder)?.total)
    }

    /// Looks at the disk, and makes the reserve again if it is gone and there is room for it beside what is kept free.
    fn look(&self) -> io::Result<Seen> {
        let Space { free, total } = space(&self.folder)?;
        let floor = self.floor.load(Ordering::Relaxed);
        let at = Instant::now();
        if self.reserve().exists() {
            return Ok(Seen { at, free, needed: floor });
        }
        let bytes = RESERVE_BYTES.min(total / RESERVE_PART);
        let needed = floor.saturating_add(bytes);
        if free >= needed {
            match make(&self.reserve(), bytes) {
                Ok(()) => return Ok(Seen { at, free: free - bytes, needed: floor }),
                Err(error) => {
                    let _ = fs::remove_file(self.reserve());
                    tracing::warn!(error = %error, "the reserve of the database could not be made");
                }
            }
        }
        Ok(Seen { at, free, needed })
    }

    fn reserve(&self) -> PathBuf {
        self.folder.join(RESERVE_FILE)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a file that takes `bytes` of the disk.
fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => zeros(&mut file, bytes),
        done => Ok(done?),
    }
}

fn zeros(file: &mut File, bytes: u64) -> io::Result<()> {
    let chunk = vec![0; 64 << 10];
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        let some = left.min(chunk.len());
        file.write_all(&chunk[..some])?;
        left -= some;
    }
    Ok(())
}
