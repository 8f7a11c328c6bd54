//! Walking a folder whose content is hostile, from outside of the sandbox: without following a link,
//! with two open files, and with a bound on what is kept in memory.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, Statx, StatxFlags, open, openat2, statx};

/// Most bytes of the paths of folders that wait to be looked into.
const MOST_WAITING: usize = 32 * 1024 * 1024;

/// An iterator over everything below a folder.
pub(super) struct Tree {
    root: OwnedFd,
    /// Paths of folders below `root` that are not looked into yet.
    waiting: Vec<CString>,
    /// Bytes of their paths.
    waiting_bytes: usize,
    current: Option<Current>,
}

struct Current {
    path: CString,
    folder: Arc<OwnedFd>,
    entries: Dir,
}

/// Something below the folder.
pub(super) struct Entry {
    /// The folder that it lies in.
    pub(super) parent: Arc<OwnedFd>,
    /// Its name there.
    pub(super) name: CString,
    /// What it is and how large.
    pub(super) stat: Statx,
}

impl Tree {
    /// Starts at `root`, which must be a folder.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, waiting: vec![c".".to_owned()], waiting_bytes: 1, current: None })
    }

    fn descend(&self, path: CString) -> io::Result<Option<Current>> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let safely = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.root, path.as_c_str(), how, Mode::empty(), safely) {
            Ok(folder) => {
                let entries = Dir::read_from(&folder)?;
                Ok(Some(Current { path, folder: Arc::new(folder), entries }))
            }
            // It went away, or is another thing by now, or its owner can't look into it either.
            Err(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::ACCESS,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn entry(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(path) = self.waiting.pop() else { return Ok(None) };
                self.waiting_bytes -= path.count_bytes();
                self.current = self.descend(path)?;
                continue;
            };
            let Some(entry) = current.entries.next() else {
                self.current = None;
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let stat = match statx(&*current.folder, name, flags, StatxFlags::BASIC_STATS) {
                Ok(stat) => stat,
                Err(rustix::io::Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let found = Entry { parent: Arc::clone(&current.folder), name: name.to_owned(), stat };
            if rustix::fs::FileType::from_raw_mode(u32::from(stat.stx_mode)).is_dir() {
                let path = join(&current.path, name);
                self.waiting_bytes += path.count_bytes();
                if self.waiting_bytes > MOST_WAITING {
                    return Err(io::Error::other("too many folders"));
                }
                self.waiting.push(path);
            }
            return Ok(Some(found));
        }
    }
}

impl Iterator for Tree {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry().transpose()
    }
}

fn join(path: &CStr, name: &CStr) -> CString {
    let joined = [path.to_bytes(), b"/", name.to_bytes()].concat();
    // Neither part can contain a NUL.
    CString::new(joined).unwrap_or_default()
}
