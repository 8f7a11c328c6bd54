//! This machine's side of a copy.
//!
//! What comes out of a sandbox is hostile: [`unpack`] makes a fresh tree with nothing in it but folders, files and, last
//! of all, links, so that nothing is ever written through a link.

use std::fs::{self, DirBuilder, File, FileType, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Builder, Entry, EntryType, HeaderMode};

use super::CopyError;

/// Most files, folders and links of one copy out of a sandbox.
const MOST_ENTRIES: usize = 1_000_000;

/// Takes an archive until something fails.
///
/// **Invariant:** a builder that is dropped ends its archive, which then looks whole. Once this is broken, nothing gets
/// through any more, so that an archive has an end only when all of it is there.
pub(crate) struct Unbroken<W> {
    to: W,
    broken: bool,
}

impl<W> Unbroken<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, broken: false }
    }

    /// Lets nothing through any more.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
    }

    /// What takes the archive.
    pub(crate) fn into_inner(self) -> W {
        self.to
    }
}

impl<W: Write> Write for Unbroken<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = self.to.write(bytes);
        self.broken = written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.broken { Err(io::ErrorKind::BrokenPipe.into()) } else { self.to.flush() }
    }
}

/// Writes a file or folder of this machine as a stream for [`crate::Files::copy_in`]. Links stay links. Gives how many
/// pipes, sockets and devices were left out.
pub fn pack(source: &Path, to: impl Write) -> Result<u64, CopyError> {
    let kind = fs::symlink_metadata(source).map_err(local(source))?.file_type();
    if !can_be_copied(kind) {
        return Err(CopyError::Refused(format!("{} is neither a file nor a folder.", source.display())));
    }
    let mut builder = Builder::new(Unbroken::new(to));
    builder.follow_symlinks(false);
    builder.mode(HeaderMode::Complete);
    let packed = pack_all(source, kind, &mut builder);
    if packed.is_err() {
        builder.get_mut().break_off();
    } else {
        builder.into_inner().and_then(|to| to.into_inner().flush()).map_err(local(source))?;
    }
    packed
}

fn can_be_copied(kind: FileType) -> bool {
    kind.is_file() || kind.is_dir() || kind.is_symlink()
}

fn pack_all(source: &Path, kind: FileType, builder: &mut Builder<impl Write>) -> Result<u64, CopyError> {
    let mut left_out = 0;
    let mut waiting = vec![(source.to_owned(), PathBuf::from("content"), kind)];
    while let Some((path, name, kind)) = waiting.pop() {
        if !can_be_copied(kind) {
            left_out += 1;
        } else if kind.is_dir() {
            builder.append_dir(&name, &path).map_err(local(&path))?;
            for entry in fs::read_dir(&path).map_err(local(&path))? {
                let entry = entry.map_err(local(&path))?;
                let kind = entry.file_type().map_err(local(&entry.path()))?;
                waiting.push((entry.path(), name.join(entry.file_name()), kind));
            }
        } else if kind.is_file() {
            pack_file(&path, &name, builder).map_err(local(&path))?;
        } else {
            builder.append_path_with_name(&path, &name).map_err(local(&path))?;
        }
    }
    Ok(left_out)
}

fn pack_file(path: &Path, name: &Path, builder: &mut Builder<impl Write>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    builder.append_file(name, &mut file)?;
    // What it grew or lost meanwhile would be taken for the beginning of what comes next.
    if file.metadata()?.len() == length {
        Ok(())
    } else {
        Err(io::Error::other("it changed while it was copied"))
    }
}

fn local(path: &Path) -> impl FnOnce(io::Error) -> CopyError + use<> {
    let path = path.to_owned();
    move |source| CopyError::Local { path, source }
}

/// Makes `to` of a stream from [`crate::Files::copy_out`]. `to` must not exist.
pub fn unpack(archive: impl Read, to: &Path) -> Result<(), CopyError> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(CopyError::Refused(format!("{} exists already; name something new.", to.display())));
    }
    let mut archive = Archive::new(archive);
    let mut links = Vec::new();
    let mut modes = Vec::new();
    for (number, entry) in archive.entries().map_err(local(to))?.enumerate() {
        let mut entry = entry.map_err(local(to))?;
        if number >= MOST_ENTRIES {
            return Err(CopyError::Refused(format!("It holds more than {MOST_ENTRIES} files.")));
        }
        let path = inside(to, &entry.path().map_err(local(to))?)?;
        let mode = entry.header().mode().map_err(local(&path))? & 0o777;
        match entry.header().entry_type() {
            EntryType::Directory => {
                DirBuilder::new().mode(0o700).create(&path).map_err(local(&path))?;
                modes.push((path, mode));
            }
            EntryType::Regular | EntryType::Continuous => {
                let mut file = new_file(&path, mode).map_err(local(&path))?;
                io::copy(&mut entry, &mut file).map_err(local(&path))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(local(&path))?.map(std::borrow::Cow::into_owned);
                links.push((path, target.unwrap_or_default()));
            }
            EntryType::Link if is_same(to, &entry, &path) => {}
            // Devices, pipes: nothing that a sandbox has to give. Who packed them counted them.
            _ => {}
        }
    }
    for (path, target) in links {
        symlink(target, &path).map_err(local(&path))?;
    }
    if fs::symlink_metadata(to).is_err() {
        return Err(CopyError::Refused("What came is neither a file nor a folder.".into()));
    }
    // Folders that may not be written come last, the deepest first.
    for (path, mode) in modes.into_iter().rev() {
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(local(&path))?;
    }
    Ok(())
}

/// Removes what [`unpack`] made, with folders that may not be written to.
pub fn discard(unpacked: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(unpacked)?.is_dir() {
        return fs::remove_file(unpacked);
    }
    let mut waiting = vec![unpacked.to_owned()];
    while let Some(folder) = waiting.pop() {
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(unpacked)
}

/// Makes another name for a file that was unpacked before, if the entry is one. There are no links yet to be led astray by.
fn is_same(to: &Path, entry: &Entry<'_, impl Read>, path: &Path) -> bool {
    let Ok(Some(target)) = entry.link_name() else { return false };
    let Ok(target) = inside(to, &target) else { return false };
    let is_file = fs::symlink_metadata(&target).is_ok_and(|found| found.is_file());
    is_file && (fs::hard_link(&target, path).is_ok() || fs::copy(&target, path).is_ok())
}

/// Never an existing file, so never through a link.
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Where an entry goes: its first component is what was copied, the rest lies below.
fn inside(to: &Path, entry: &Path) -> Result<PathBuf, CopyError> {
    let mut parts = entry.components().filter(|part| *part != Component::CurDir);
    let mut path = to.to_owned();
    let first = parts.next();
    for part in first.into_iter().chain(parts).skip(1) {
        path.push(part);
    }
    let safe = entry.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if safe && first.is_some() {
        Ok(path)
    } else {
        Err(CopyError::Refused(format!(
            "The sandbox sent {}, which is no path below what was asked for.",
            entry.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so much and no more.
    struct Full(Vec<u8>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Has a file grow with each of the first pieces of the archive that it is in.
    struct Growing(Vec<u8>, File);

    impl Write for Growing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() < 2048 {
                self.1.write_all(b"more")?;
            }
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn is_whole(archive: &[u8]) -> bool {
        archive.ends_with(&[0; 1024])
    }

    #[test]
    fn an_archive_has_an_end_only_when_all_is_in_it() {
        let folder = std::env::temp_dir().join(format!("manyhands-pack-{}", std::process::id()));
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("deep/file"), "text").unwrap();
        let socket = std::os::unix::net::UnixListener::bind(folder.join("deep/socket")).unwrap();
        let mut archive = Vec::new();
        assert_eq!(pack(&folder, &mut archive).unwrap(), 1);
        assert!(is_whole(&archive));
        // Whatever it was that failed: what takes it,
        for most in (0..archive.len()).step_by(512) {
            let mut full = Full(Vec::new(), most);
            assert!(pack(&folder, &mut full).is_err());
            assert!(!is_whole(&full.0), "{most} of {}", archive.len());
        }
        // or what is packed.
        let changing = fs::OpenOptions::new().append(true).open(folder.join("deep/file")).unwrap();
        let mut growing = Growing(Vec::new(), changing);
        let said = pack(&folder, &mut growing).unwrap_err().to_string();
        assert_eq!(said, format!("{}: it changed while it was copied", folder.join("deep/file").display()));
        assert!(!is_whole(&growing.0));
        let said = pack(&folder.join("deep/socket"), io::sink()).unwrap_err().to_string();
        assert!(said.ends_with("socket is neither a file nor a folder."), "{said}");
        drop(socket);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_unpacked_can_be_discarded_even_by_who_is_not_root() {
        let folder = std::env::temp_dir().join(format!("manyhands-discard-{}", std::process::id()));
        fs::create_dir_all(folder.join("closed/deep")).unwrap();
        fs::write(folder.join("closed/deep/file"), "text").unwrap();
        for closed in ["closed/deep", "closed"] {
            fs::set_permissions(folder.join(closed), Permissions::from_mode(0o555)).unwrap();
        }
        let (mut archive, to) = (Vec::new(), folder.join("to"));
        pack(&folder.join("closed"), &mut archive).unwrap();
        unpack(archive.as_slice(), &to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o555);
        discard(&to).unwrap();
        assert!(!to.exists());
        discard(&folder).unwrap();
        assert!(!folder.exists());
    }
}
