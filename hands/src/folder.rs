//! Folders that an agent can change while this machine works in them.
//!
//! A path is resolved anew by every call that is given it, through the links that lie there by then. So a path is
//! resolved once, to a [`Folder`]. From there on everything goes by that descriptor: to a name in it, or to a path beneath
//! it with no link on the way.

mod chain;
mod remove;
mod walk;

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, chmod, chownat,
    fstat, linkat, mkdirat, open, openat, openat2, readlinkat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::canonical;

pub(crate) use self::remove::empty;
pub use self::remove::remove;
pub(crate) use self::walk::{Entry, Walk};

/// What no step of a path may be.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// A folder as a place, which can be reached even if it can't be read.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What has a program run as its owner or group.
const SET_ID: Mode = Mode::SUID.union(Mode::SGID);

/// An opened folder. It stays the same one wherever it is moved, and whatever takes its name.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

/// Tells one file or folder from all others that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    device: u64,
    inode: u64,
}

impl From<&Stat> for Id {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// What kind of file it is.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether it is a file that runs as its owner or group.
pub(crate) fn is_set_id(stat: &Stat) -> bool {
    kind(stat).is_file() && Mode::from_raw_mode(stat.st_mode).intersects(SET_ID)
}

/// A name in a folder. One with a NUL can't exist.
pub(crate) fn name(of: &OsStr) -> io::Result<CString> {
    Ok(CString::new(of.as_bytes())?)
}

/// The folder and the name of a path that a person gave; no name for one like `/` or `..`.
pub(crate) fn split(path: &Path) -> (PathBuf, Option<&OsStr>) {
    let Some(name) = path.file_name() else { return (path.to_owned(), None) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    (folder.unwrap_or(Path::new(".")).to_owned(), Some(name))
}

impl Folder {
    /// Opens a folder by a path that a person or this program chose: links in it are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Opens a folder by a path that was made canonical before: a link on the way came later, and is an error.
    pub(crate) fn open_canonical(path: &Path) -> io::Result<Self> {
        canonical::open(path, OFlags::PATH | OFlags::DIRECTORY).map(Self)
    }

    /// A folder beneath it. Fails with [`Errno::LOOP`] or [`Errno::NOTDIR`] where a link is on the way.
    pub(crate) fn beneath(&self, path: &Path) -> Result<Self, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        openat2(&self.0, path, PLACE, Mode::empty(), BENEATH).map(Self)
    }

    /// A folder in it.
    pub(crate) fn child(&self, name: &CStr) -> Result<Self, Errno> {
        openat2(&self.0, name, PLACE, Mode::empty(), BENEATH).map(Self)
    }

    /// The folder that it lies in now.
    fn parent(&self) -> Result<Self, Errno> {
        openat(&self.0, c"..", PLACE, Mode::empty()).map(Self)
    }

    /// What it is itself.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        fstat(&self.0)
    }

    /// What a name in it is.
    pub(crate) fn look(&self, name: &CStr) -> Result<Stat, Errno> {
        statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What lies in it.
    pub(crate) fn entries(&self) -> Result<Dir, Errno> {
        // Opened anew, since nothing can be read from a place.
        Dir::new(openat(&self.0, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Makes a folder in it that is its owner's alone, and opens that.
    pub(crate) fn make_folder(&self, name: &CStr) -> Result<Self, Errno> {
        mkdirat(&self.0, name, Mode::RWXU)?;
        self.child(name)
    }

    /// Makes a file in it, for writing. Nothing may be there yet.
    pub(crate) fn make_file(&self, name: &CStr, mode: u32) -> Result<File, Errno> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&self.0, name, how, Mode::from_raw_mode(mode), BENEATH).map(File::from)
    }

    /// Opens a file in it for reading, if it is the one that was seen there. Never waits for who writes to a pipe.
    pub(crate) fn read_file(&self, name: &CStr, seen: &Stat) -> io::Result<File> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let changed = || io::Error::other("it changed while it was copied");
        let file = match openat2(&self.0, name, how, Mode::empty(), BENEATH) {
            Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR | Errno::NXIO) => return Err(changed()),
            opened => opened?,
        };
        let found = fstat(&file)?;
        if Id::from(&found) == Id::from(seen) && kind(&found).is_file() {
            Ok(File::from(file))
        } else {
            Err(changed())
        }
    }

    /// Where a link in it leads.
    pub(crate) fn read_link(&self, name: &CStr) -> Result<CString, Errno> {
        readlinkat(&self.0, name, Vec::new())
    }

    /// Makes a link in it.
    pub(crate) fn make_link(&self, name: &CStr, target: &CStr) -> Result<(), Errno> {
        symlinkat(target, &self.0, name)
    }

    /// Makes another name for what has a name in it. One for a link is the link's, not its target's.
    pub(crate) fn link_to(&self, name: &CStr, to: &Self, other: &CStr) -> Result<(), Errno> {
        linkat(&self.0, name, &to.0, other, AtFlags::empty())
    }

    /// Gives what is in it a name in another folder, where nothing has that name yet.
    pub(crate) fn rename_new(&self, name: &CStr, to: &Self, new: &CStr) -> Result<(), Errno> {
        renameat_with(&self.0, name, &to.0, new, RenameFlags::NOREPLACE)
    }

    /// Gives what is in it to a user and their group.
    pub(crate) fn give(&self, name: &CStr, user: u32) -> Result<(), Errno> {
        let (uid, gid) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(user)));
        chownat(&self.0, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Sets its own mode.
    pub(crate) fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        // By the descriptor's name, since `fchmod` takes none that is a place only.
        chmod(format!("/proc/self/fd/{}", self.0.as_raw_fd()), Mode::from_raw_mode(mode))
    }

    /// Has a file in it run as whoever runs it. By descriptor: what has the name may be another thing by now.
    pub(crate) fn take_set_id(&self, name: &CStr) -> Result<(), Errno> {
        let file = openat2(
            &self.0,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            BENEATH,
        )?;
        let stat = fstat(&file)?;
        if !is_set_id(&stat) {
            return Ok(());
        }
        // By the descriptor's name, since `fchmod` takes none that is a place only.
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(stat.st_mode) - SET_ID)
    }

    /// Removes a file or link in it.
    pub(crate) fn unlink(&self, name: &CStr) -> Result<(), Errno> {
        unlinkat(&self.0, name, AtFlags::empty())
    }

    /// Removes an empty folder in it.
    pub(crate) fn remove_folder(&self, name: &CStr) -> Result<(), Errno> {
        unlinkat(&self.0, name, AtFlags::REMOVEDIR)
    }
}

/// Gives a path that this program chose, and not what a link there leads to, to a user and their group.
pub(crate) fn give(path: &Path, user: u32) -> Result<(), Errno> {
    let (uid, gid) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(user)));
    chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}
