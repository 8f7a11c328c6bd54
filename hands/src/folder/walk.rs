//! Looking at everything below a folder: without following a link, however deep it is, and with a bound on what is kept
//! in memory.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, Stat};
use rustix::io::Errno;

use super::chain::Chain;
use super::{Folder, kind};

/// Most bytes that the folders take in memory that are not looked into yet.
const MOST_WAITING: usize = 64 << 20;
/// Bytes that one such folder takes beside its name.
const OF_ONE: usize = 32;

/// An iterator over everything below a folder. A folder comes before what lies in it.
pub(crate) struct Walk {
    /// Names of folders that are not looked into yet, where they lie.
    chain: Chain<Vec<CString>>,
    waiting: usize,
    entries: Option<Dir>,
    over: bool,
}

/// Something below the folder.
pub(crate) struct Entry {
    /// The folder that it lies in.
    pub(crate) parent: Arc<Folder>,
    /// Its name there.
    pub(crate) name: CString,
    /// What it is and how large.
    pub(crate) stat: Stat,
}

impl Walk {
    /// Of the folder at this path.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Self::below(Folder::open(root)?)
    }

    /// Of an opened folder.
    pub(crate) fn below(root: Folder) -> io::Result<Self> {
        let entries = Some(root.entries()?);
        Ok(Self { chain: Chain::new(Arc::new(root), Vec::new())?, waiting: 0, entries, over: false })
    }

    /// Where the folder lies that the last entry lies in, seen from the first one. `None` when that has more than `most`
    /// bytes.
    pub(crate) fn path(&self, most: usize) -> Option<PathBuf> {
        let mut path = PathBuf::new();
        for name in self.chain.names() {
            path.push(OsStr::from_bytes(name.to_bytes()));
            if path.as_os_str().len() > most {
                return None;
            }
        }
        Some(path)
    }

    fn entry(&mut self) -> io::Result<Option<Entry>> {
        loop {
            if let Some(entries) = &mut self.entries {
                let Some(entry) = entries.next() else {
                    self.entries = None;
                    continue;
                };
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                let parent = self.chain.folder()?;
                let stat = match parent.look(name) {
                    Ok(stat) => stat,
                    // It went away, or its owner can't look at it either.
                    Err(Errno::NOENT | Errno::ACCESS) => continue,
                    Err(error) => return Err(error.into()),
                };
                let name = name.to_owned();
                if kind(&stat).is_dir() {
                    self.later(name.clone())?;
                }
                return Ok(Some(Entry { parent, name, stat }));
            }
            if let Some(name) = self.chain.kept().pop() {
                self.waiting -= name.count_bytes() + OF_ONE;
                self.descend(name)?;
            } else if self.chain.up()?.is_none() {
                return Ok(None);
            }
        }
    }

    fn later(&mut self, folder: CString) -> io::Result<()> {
        self.waiting += folder.count_bytes() + OF_ONE;
        if self.waiting > MOST_WAITING {
            return Err(io::Error::other("too many folders"));
        }
        self.chain.kept().push(folder);
        Ok(())
    }

    fn descend(&mut self, name: CString) -> io::Result<()> {
        let opened = self.chain.folder()?.child(&name).and_then(|folder| Ok((folder.entries()?, folder)));
        match opened {
            Ok((entries, folder)) => {
                self.chain.down(name, folder, Vec::new())?;
                self.entries = Some(entries);
                Ok(())
            }
            // It went away, or is another thing by now, or its owner can't look into it either.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Iterator for Walk {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let entry = self.entry().transpose();
        // What failed once would fail again.
        self.over = !matches!(entry, Some(Ok(_)));
        entry
    }
}
