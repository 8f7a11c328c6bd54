//! Removing everything below a folder, however deep it is and whatever its modes are.

use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::chain::Chain;
use super::{Folder, name, split};

/// Most folders of a folder whose names are in memory. The others come when those are removed.
const MOST_AT_ONCE: usize = 1024;
/// Most times that a folder is read: somebody may fill it faster than it can be emptied.
const MOST_ROUNDS: u32 = 10_000;
/// What an owner needs to empty a folder.
const OWNER: u32 = 0o700;

/// Removes the file, link or folder at `path` with everything in it, through no link. Nothing there is fine. Goes on
/// with the rest where something can't be removed, and then fails with the first error.
pub fn remove(path: &Path) -> io::Result<()> {
    let (folder, last) = split(path);
    let last = last.ok_or(io::ErrorKind::InvalidInput)?;
    match Folder::open(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        folder => folder?.remove(&name(last)?),
    }
}

impl Folder {
    /// Removes what has this name in it, with everything below.
    pub(crate) fn remove(&self, name: &CStr) -> io::Result<()> {
        match self.unlink(name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let emptied = self.child(name).map_err(io::Error::from).and_then(|folder| empty(Arc::new(folder)));
        match self.remove_folder(name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => emptied.and(Err(error.into())),
        }
    }
}

/// What is known of a folder that is being emptied.
#[derive(Default)]
struct Emptying {
    /// Folders in it that were seen.
    waiting: Vec<CString>,
    /// Something went since it was read, so that there may be more to see.
    again: bool,
    /// Something in it can't be removed.
    stuck: bool,
    rounds: u32,
}

/// Removes everything in a folder. It may have been moved, and is emptied all the same.
pub(crate) fn empty(folder: Arc<Folder>) -> io::Result<()> {
    let mut failed = Ok(());
    let mut chain = Chain::new(folder, Emptying::default())?;
    read(&mut chain, &mut failed)?;
    loop {
        let kept = chain.kept();
        if let Some(name) = kept.waiting.pop() {
            match chain.folder()?.child(&name) {
                Ok(folder) => {
                    chain.down(name, folder, Emptying::default())?;
                    read(&mut chain, &mut failed)?;
                }
                Err(Errno::NOENT) => {}
                Err(error) => note(chain.kept(), &mut failed, error.into()),
            }
        } else if kept.again && !kept.stuck && kept.rounds < MOST_ROUNDS {
            read(&mut chain, &mut failed)?;
        } else {
            let Some(name) = chain.up()? else { return failed };
            match chain.folder()?.remove_folder(&name) {
                Ok(()) => chain.kept().again = true,
                Err(Errno::NOENT) => {}
                Err(error) => note(chain.kept(), &mut failed, error.into()),
            }
        }
    }
}

/// Removes the files of the last folder, and sees which folders are in it.
fn read(chain: &mut Chain<Emptying>, failed: &mut io::Result<()>) -> io::Result<()> {
    let folder = chain.folder()?;
    let kept = chain.kept();
    kept.again = false;
    kept.rounds += 1;
    if folder.stat()?.st_mode & OWNER != OWNER {
        // Where this fails, what comes next says why.
        let _ = folder.set_mode(OWNER);
    }
    let entries = match folder.entries() {
        Ok(entries) => entries,
        Err(error) => {
            note(kept, failed, error.into());
            return Ok(());
        }
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => Err(Errno::ISDIR),
            _ => folder.unlink(name),
        };
        match removed {
            Ok(()) => kept.again = true,
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => kept.waiting.push(name.to_owned()),
            Err(error) => note(kept, failed, error.into()),
        }
        if kept.waiting.len() == MOST_AT_ONCE {
            kept.again = true;
            break;
        }
    }
    Ok(())
}

fn note(kept: &mut Emptying, failed: &mut io::Result<()>, error: io::Error) {
    kept.stuck = true;
    if failed.is_ok() {
        *failed = Err(error);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn everything_goes_but_what_links_lead_to() {
        let scratch = tempfile::tempdir().unwrap();
        let (victim, tree) = (scratch.path().join("victim"), scratch.path().join("tree"));
        fs::create_dir_all(tree.join("closed/deep")).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("kept"), "text").unwrap();
        for count in 0..3 * MOST_AT_ONCE {
            fs::create_dir(tree.join(count.to_string())).unwrap();
        }
        fs::write(tree.join("closed/deep/file"), "text").unwrap();
        symlink(&victim, tree.join("closed/deep/link")).unwrap();
        for closed in ["closed/deep", "closed"] {
            fs::set_permissions(tree.join(closed), fs::Permissions::from_mode(0o0)).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
        // A link itself, a file, and what is not there.
        symlink(&victim, &tree).unwrap();
        remove(&tree).unwrap();
        remove(&tree).unwrap();
        remove(&tree.join("below")).unwrap();
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(victim.join("kept")).unwrap(), "text");
    }
}
