//! Where a copy out of a hand comes to.
//!
//! What comes out of a hand is hostile, and the folder that it comes to may be one that an agent can write. So every entry is
//! made beneath an opened folder with no link on the way, and the copy gets its name from that folder, not from a path.

use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use rustix::io::Errno;
use tar::{Entry, EntryType};

use super::CopyError;
use super::archive::{MOST_PATH, each_entry, local};
use crate::folder::{Folder, Id, empty, kind, name, split};

/// Most files, folders and links of one copy out of a hand.
const MOST_ENTRIES: usize = 1_000_000;
/// What is copied, in the hidden folder.
const CONTENT: &CStr = c"content";
/// What an owner needs to make something in a folder.
const OWNER: u32 = 0o700;
/// All of a mode but what has a program run as somebody else.
const PLAIN: u32 = 0o777;

/// A copy on its way to where nothing is yet: in a hidden folder beside that, until it is whole. What has not been kept is
/// removed when this is dropped.
pub struct Landing {
    target: PathBuf,
    parent: Folder,
    last: CString,
    hidden: Arc<Folder>,
    hidden_name: CString,
    /// What was unpacked.
    content: Option<Id>,
}

impl Landing {
    /// Begins one to `target`, which must not exist, in a folder without links on its way.
    pub fn beside(target: &Path) -> Result<Self, CopyError> {
        let (folder, last) = split(target);
        let last = last.ok_or_else(|| CopyError::Refused("The target needs a name.".into()))?;
        let last = name(last).map_err(local(target))?;
        let parent = Folder::open_canonical(&folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                CopyError::Refused(format!("there is no folder {}: make it first.", folder.display()))
            }
            _ => local(&folder)(error),
        })?;
        if parent.look(&last).is_ok() {
            return Err(exists(target));
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| local(target)(io::Error::other(error)))?;
        let hidden_name = name(format!(".manyhands-{:032x}", u128::from_ne_bytes(random)).as_ref())
            .map_err(local(target))?;
        let hidden = parent.make_folder(&hidden_name).map_err(local(&folder))?;
        Ok(Self {
            target: target.to_owned(),
            parent,
            last,
            hidden: Arc::new(hidden),
            hidden_name,
            content: None,
        })
    }

    /// Makes what a stream from [`crate::Files::copy_out`] says, and reads that to its end.
    pub fn unpack(&mut self, archive: impl Read) -> Result<(), CopyError> {
        let mut unpacking =
            Unpacking { top: &self.hidden, entries: 0, last: None, closed: Vec::new(), content: None };
        let rest = each_entry(archive, |entry| unpacking.one(entry).map_err(Stopped));
        let mut rest = rest.map_err(|Stopped(error)| error)?;
        unpacking.close().map_err(local(&self.target))?;
        self.content = unpacking.content;
        // Whoever packs may go on behind the end, and is to be let come to its own.
        io::copy(&mut rest, &mut io::sink()).map_err(local(&self.target))?;
        match self.content {
            Some(_) => Ok(()),
            None => Err(CopyError::Refused("What came is neither a file nor a folder.".into())),
        }
    }

    /// Gives what was unpacked its name.
    pub fn keep(self) -> Result<(), CopyError> {
        let here = |error: Errno| local(&self.target)(error);
        let found = self.hidden.look(CONTENT).map_err(here)?;
        if Some(Id::from(&found)) != self.content {
            return Err(self.exchanged());
        }
        // A folder that may not be written to can't be moved to another one as it is.
        let mode = found.st_mode & PLAIN;
        let closed = kind(&found).is_dir() && mode & OWNER != OWNER;
        let folder = if closed { Some(self.hidden.child(CONTENT).map_err(here)?) } else { None };
        if let Some(folder) = &folder {
            folder.set_mode(mode | OWNER).map_err(here)?;
        }
        self.hidden.rename_new(CONTENT, &self.parent, &self.last).map_err(|error| self.unnamed(error))?;
        if let Some(folder) = &folder {
            folder.set_mode(mode).map_err(here)?;
        }
        match self.parent.look(&self.last) {
            Ok(named) if Some(Id::from(&named)) == self.content => Ok(()),
            _ => Err(self.exchanged()),
        }
    }

    fn exchanged(&self) -> CopyError {
        let target = self.target.display();
        CopyError::Refused(format!(
            "Another program changed the copy to {target} before it was there: don't use what lies there."
        ))
    }

    fn unnamed(&self, error: Errno) -> CopyError {
        let target = self.target.display();
        match error {
            Errno::EXIST => exists(&self.target),
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => CopyError::Refused(format!(
                "The file system of {target} (NFS or 9p, for example) can't name a copy without the risk of replacing \
                 something: copy to a local disk first."
            )),
            error => local(&self.target)(error),
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // What was kept is not there any more. Where this fails, the hidden folder is what is left.
        let _ = empty(Arc::clone(&self.hidden));
        let _ = self.parent.remove_folder(&self.hidden_name);
    }
}

fn exists(target: &Path) -> CopyError {
    CopyError::Refused(format!("{} exists already: name something new.", target.display()))
}

/// Why unpacking stopped.
struct Stopped(CopyError);

impl From<io::Error> for Stopped {
    fn from(source: io::Error) -> Self {
        Self(CopyError::Refused(format!("What the hand sent is no archive that can be read: {source}.")))
    }
}

/// The way of an archive's entries into a folder.
struct Unpacking<'a> {
    top: &'a Folder,
    entries: usize,
    /// The folder that an entry was made in last.
    last: Option<(PathBuf, Arc<Folder>)>,
    /// Folders that their owner may not write to, once all is in them.
    closed: Vec<(PathBuf, u32)>,
    /// What the first entry became.
    content: Option<Id>,
}

impl Unpacking<'_> {
    fn one(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), CopyError> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(CopyError::Refused(format!("It holds more than {MOST_ENTRIES} files.")));
        }
        let sent = Sent(entry.path().map_err(local(Path::new("the archive")))?.into_owned());
        let path = sent.place(&sent.0)?;
        let made = self.make(entry, &path, &sent)?;
        if path.as_os_str().as_bytes() == CONTENT.to_bytes() {
            self.content = made;
        }
        Ok(())
    }

    /// Makes one entry; `None` when there is nothing to make.
    fn make(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        path: &Path,
        sent: &Sent,
    ) -> Result<Option<Id>, CopyError> {
        let (folder, name) = self.parent(path, sent)?;
        let mode = entry.header().mode().map_err(|error| sent.failed(error))? & PLAIN;
        match entry.header().entry_type() {
            EntryType::Directory => {
                let made = folder.make_folder(&name).map_err(|error| sent.failed(error))?;
                if mode & OWNER == OWNER {
                    made.set_mode(mode).map_err(|error| sent.failed(error))?;
                } else {
                    self.closed.push((path.to_owned(), mode));
                }
                let id = made.stat().map_err(|error| sent.failed(error))?;
                self.last = Some((path.to_owned(), Arc::new(made)));
                Ok(Some(Id::from(&id)))
            }
            EntryType::Regular | EntryType::Continuous => {
                let mut file = folder.make_file(&name, mode).map_err(|error| sent.failed(error))?;
                let copied = io::copy(entry, &mut file).map_err(|error| sent.failed(error))?;
                if copied != entry.size() {
                    return Err(sent.refused("ends too early"));
                }
                let id = fstat(&file).map_err(|error| sent.failed(error))?;
                Ok(Some(Id::from(&id)))
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = CString::new(&*target).map_err(|_| sent.refused("is a link to no path"))?;
                folder.make_link(&name, &target).map_err(|error| sent.failed(error))?;
                let id = folder.look(&name).map_err(|error| sent.failed(error))?;
                Ok(Some(Id::from(&id)))
            }
            EntryType::Link => {
                let target = entry.link_name().map_err(|error| sent.failed(error))?.unwrap_or_default();
                self.same(&sent.place(&target)?, &folder, &name, sent).map(|()| None)
            }
            EntryType::GNUSparse => Err(sent.refused("is a sparse file, which may be of any size")),
            // Devices and pipes. Whoever packed them counted them.
            _ => Ok(None),
        }
    }

    /// The folder in which a path lies, and its name there.
    fn parent(&mut self, path: &Path, sent: &Sent) -> Result<(Arc<Folder>, CString), CopyError> {
        let (folder, last) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        let last = name(last).map_err(|error| sent.failed(error))?;
        if let Some((before, opened)) = &self.last
            && before == folder
        {
            return Ok((Arc::clone(opened), last));
        }
        let opened = Arc::new(self.top.beneath(folder).map_err(|error| sent.astray(error))?);
        self.last = Some((folder.to_owned(), Arc::clone(&opened)));
        Ok((opened, last))
    }

    /// Makes another name for what was unpacked before. One of a link becomes a link like it, one of what was left out is
    /// left out.
    fn same(&self, target: &Path, folder: &Folder, name: &CStr, sent: &Sent) -> Result<(), CopyError> {
        let failed = |error: Errno| sent.failed(error);
        let (there, last) =
            (target.parent().unwrap_or(Path::new("")), target.file_name().unwrap_or_default());
        let last = crate::folder::name(last).map_err(|error| sent.failed(error))?;
        let there = self.top.beneath(there).map_err(|error| sent.astray(error))?;
        let found = match there.look(&last) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(failed)?,
        };
        if kind(&found).is_symlink() {
            let target = there.read_link(&last).map_err(failed)?;
            return folder.make_link(name, &target).map_err(failed);
        }
        if !kind(&found).is_file() {
            return Err(sent.refused("is another name of what is no file"));
        }
        match there.link_to(&last, folder, name) {
            Ok(()) => {}
            // File systems without such names have copies.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => {
                let mut from = there.read_file(&last, &found).map_err(|error| sent.failed(error))?;
                let mut to = folder.make_file(name, found.st_mode & PLAIN).map_err(failed)?;
                return io::copy(&mut from, &mut to).map(|_| ()).map_err(|error| sent.failed(error));
            }
            Err(error) => return Err(failed(error)),
        }
        // Somebody may have put something else there meanwhile.
        match folder.look(name) {
            Ok(made) if Id::from(&made) == Id::from(&found) => Ok(()),
            _ => Err(sent.refused("was changed by another program while it was copied")),
        }
    }

    /// Gives folders their modes that can't be written to, the deepest first.
    fn close(&self) -> Result<(), Errno> {
        for (path, mode) in self.closed.iter().rev() {
            self.top.beneath(path)?.set_mode(*mode)?;
        }
        Ok(())
    }
}

/// An entry as the hand named it.
struct Sent(PathBuf);

impl Sent {
    /// Where a path goes: its first name is that of what was copied, the rest lies below.
    fn place(&self, path: &Path) -> Result<PathBuf, CopyError> {
        let mut place = PathBuf::from("content");
        let mut names = 0;
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::Normal(_) if names == 0 => names += 1,
                Component::Normal(name) => place.push(name),
                _ => return Err(self.refused("is, or is another name of, no path below what was asked for")),
            }
        }
        if names == 0 {
            return Err(self.refused("is, or is another name of, no path below what was asked for"));
        }
        if place.as_os_str().len() > MOST_PATH {
            return Err(CopyError::Refused(format!(
                "It is too deeply nested: a path in it has more than {MOST_PATH} bytes."
            )));
        }
        Ok(place)
    }

    fn refused(&self, why: &str) -> CopyError {
        CopyError::Refused(format!("The hand sent {:?}, which {why}.", self.0.to_string_lossy()))
    }

    /// Why the folder of an entry can't be opened.
    fn astray(&self, error: Errno) -> CopyError {
        match error {
            Errno::LOOP | Errno::NOENT | Errno::NOTDIR | Errno::XDEV => {
                self.refused("lies behind a link or in no folder of the copy")
            }
            error => self.failed(error),
        }
    }

    /// Why an entry can't be made.
    fn failed(&self, error: impl Into<io::Error>) -> CopyError {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::AlreadyExists => self.refused("was there already"),
            _ => local(&self.0)(error),
        }
    }
}
