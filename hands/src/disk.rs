//! How much room a disk has.

use std::io;
use std::path::Path;

use rustix::fs::statvfs;

/// What must be free on the disk of the data directory for anything new to begin, in bytes, unless a setting says
/// otherwise.
pub const FREE_DISK: u64 = 1 << 30;

/// A disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What an ordinary user may still write.
    pub free: u64,
    /// Its size.
    pub total: u64,
}

/// The disk that `path` lies on.
pub fn space(path: &Path) -> io::Result<Space> {
    let disk = statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok(Space { free: bytes(disk.f_bavail), total: bytes(disk.f_blocks) })
}

/// A number of bytes for people.
pub fn shown(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size {
            let (whole, tenth) = (bytes / size, bytes % size * 10 / size);
            return if tenth == 0 { format!("{whole} {unit}") } else { format!("{whole}.{tenth} {unit}") };
        }
    }
    format!("{bytes} bytes")
}
