//! The way from a folder down to another one, however deep: with few descriptors, and back again.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::Arc;

use super::{Folder, Id};

/// How many of the deepest folders are open, besides the first.
const OPEN: usize = 16;

/// Folders, each of which lies in the one before it. `T` is what is kept of each.
pub(super) struct Chain<T> {
    /// Never empty; the last one is open.
    links: Vec<Link<T>>,
}

struct Link<T> {
    name: CString,
    id: Id,
    /// The first one's and those of the last [`OPEN`].
    folder: Option<Arc<Folder>>,
    kept: T,
}

impl<T> Chain<T> {
    pub(super) fn new(first: Arc<Folder>, kept: T) -> io::Result<Self> {
        let id = Id::from(&first.stat()?);
        Ok(Self { links: vec![Link { name: CString::default(), id, folder: Some(first), kept }] })
    }

    /// What is kept of the last one.
    pub(super) fn kept(&mut self) -> &mut T {
        let last = self.links.len() - 1;
        &mut self.links[last].kept
    }

    /// The last one.
    pub(super) fn folder(&self) -> io::Result<Arc<Folder>> {
        self.links.last().and_then(|link| link.folder.clone()).ok_or_else(changed)
    }

    /// The names of all but the first.
    pub(super) fn names(&self) -> impl Iterator<Item = &CStr> {
        self.links.iter().skip(1).map(|link| link.name.as_c_str())
    }

    /// Goes on to a folder in the last one.
    pub(super) fn down(&mut self, name: CString, folder: Folder, kept: T) -> io::Result<()> {
        let id = Id::from(&folder.stat()?);
        self.links.push(Link { name, id, folder: Some(Arc::new(folder)), kept });
        // The first one stays open.
        if let Some(far) = self.links.len().checked_sub(OPEN + 1).filter(|far| *far > 0) {
            self.links[far].folder = None;
        }
        Ok(())
    }

    /// Goes back by one. Gives the name of the one that is left, and `None` at the first. Fails when a folder is not
    /// where it was any more.
    pub(super) fn up(&mut self) -> io::Result<Option<CString>> {
        let Some(left) = (self.links.len() > 1).then(|| self.links.pop()).flatten() else { return Ok(None) };
        let last = self.links.len() - 1;
        if self.links[last].folder.is_none() {
            let folder = self.last_by(left.folder.as_deref())?;
            self.links[last].folder = Some(Arc::new(folder));
        }
        Ok(Some(left.name))
    }

    /// The last one, by way of one that was seen in it, or else from the first one down. Only the same folder will do:
    /// both ways may lead to another one by now.
    fn last_by(&self, inner: Option<&Folder>) -> io::Result<Folder> {
        let wanted = self.links.last().map(|link| link.id);
        let same = |folder: &Folder| folder.stat().ok().map(|stat| Id::from(&stat)) == wanted;
        if let Some(parent) = inner.and_then(|inner| inner.parent().ok()).filter(same) {
            return Ok(parent);
        }
        let first = self.links.first().and_then(|link| link.folder.as_deref()).ok_or_else(changed)?;
        let mut reached = first.child(c".")?;
        for name in self.names() {
            reached = reached.child(name)?;
        }
        if same(&reached) { Ok(reached) } else { Err(changed()) }
    }
}

fn changed() -> io::Error {
    io::Error::other("its folders were moved meanwhile")
}
