//! Opening files and folders of this machine that settings name.
//!
//! **Invariant:** a path was made canonical when it was read, and from then on no link on its way is followed: one that is
//! there now came later, perhaps by a brain that may write to one of the folders.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Why a path that has a link on its way is not opened.
pub(crate) const LINK: &str = "it has become a link, or lies behind one, since its path was read";

/// Opens what lies at a canonical path. A link anywhere on the way is an error that says so.
pub fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let opened = openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    opened.map_err(|error| match error {
        Errno::LOOP => io::Error::other(LINK),
        error => error.into(),
    })
}

/// Opens a file at a canonical path for reading.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDONLY).map(File::from)
}

/// Reads a file at a canonical path.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
