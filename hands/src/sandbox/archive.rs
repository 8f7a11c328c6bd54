//! This machine's side of a copy: what a stream is made of and how it is read.
//!
//! What is copied in may lie where an agent can write, and be exchanged for a link or a pipe at any moment. So it is read by
//! descriptors, and what is not the file that was seen is refused.

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{FileType, Stat};
use tar::{Archive, Builder, Entry, EntryType, Header, HeaderMode};

use super::CopyError;
use crate::folder::{Folder, Walk, kind, name, split};

/// Longest path in a copy, in bytes: the kernel takes no longer one.
pub(super) const MOST_PATH: usize = 4095;
/// Most bytes of an archive between the data of two entries: their names, and what else is said of them.
const MOST_HEADERS: u64 = 256 << 10;
/// More than an entry has.
const UNLIMITED: u64 = u64::MAX;

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

/// Writes a file or folder of this machine, below a folder without links on its way, as a stream for
/// [`crate::Files::copy_in`]. Links stay links. Gives how many
/// pipes, sockets and devices were left out.
pub fn pack(source: &Path, to: impl Write) -> Result<u64, CopyError> {
    let (folder, last) = split(source);
    let opened = Folder::open_canonical(&folder).map_err(local(source))?;
    let (last, whole) = match last {
        Some(last) => (name(last).map_err(local(source))?, folder.join(last)),
        // The folder itself, of which the name does not matter.
        None => (c".".to_owned(), folder),
    };
    let stat = opened.look(&last).map_err(local(source))?;
    if !can_be_copied(kind(&stat)) {
        return Err(CopyError::Refused(format!("{} is neither a file nor a folder.", source.display())));
    }
    let mut builder = Builder::new(Unbroken::new(to));
    builder.mode(HeaderMode::Complete);
    let mut packing = Packing { builder: &mut builder, left_out: 0 };
    let packed = packing.all(&opened, &last, &stat, &whole).map(|()| packing.left_out);
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

struct Packing<'a, W: Write> {
    builder: &'a mut Builder<W>,
    left_out: u64,
}

impl<W: Write> Packing<'_, W> {
    fn all(&mut self, folder: &Folder, last: &CStr, stat: &Stat, source: &Path) -> Result<(), CopyError> {
        let top = Path::new("content");
        self.one(folder, last, stat, top).map_err(local(source))?;
        if !kind(stat).is_dir() {
            return Ok(());
        }
        let below = folder.child(last).map_err(local(source))?;
        let mut walk = Walk::below(below).map_err(local(source))?;
        while let Some(entry) = walk.next() {
            let entry = entry.map_err(local(source))?;
            let path = walk.path(MOST_PATH).map(|path| path.join(OsStr::from_bytes(entry.name.to_bytes())));
            let path =
                path.filter(|path| top.join(path).as_os_str().len() <= MOST_PATH).ok_or_else(|| {
                    let why = format!(
                        "{} is too deeply nested: a path in it has more than {MOST_PATH} bytes.",
                        source.display()
                    );
                    CopyError::Refused(why)
                })?;
            let shown = source.join(&path);
            self.one(&entry.parent, &entry.name, &entry.stat, &top.join(path)).map_err(local(&shown))?;
        }
        Ok(())
    }

    /// Packs one that was seen, without what lies in it.
    fn one(&mut self, folder: &Folder, entry: &CStr, stat: &Stat, path: &Path) -> io::Result<()> {
        if kind(stat).is_file() {
            let mut file = folder.read_file(entry, stat)?;
            let length = file.metadata()?.len();
            self.builder.append_file(path, &mut file)?;
            // What it grew or lost meanwhile would be taken for the beginning of what comes next.
            return if file.metadata()?.len() == length {
                Ok(())
            } else {
                Err(io::Error::other("it changed while it was copied"))
            };
        }
        let mut header = Header::new_gnu();
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(stat.st_uid.into());
        header.set_gid(stat.st_gid.into());
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
        header.set_size(0);
        if kind(stat).is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.builder.append_data(&mut header, path, io::empty())
        } else if kind(stat).is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = folder.read_link(entry)?;
            self.builder.append_link(&mut header, path, OsStr::from_bytes(target.to_bytes()))
        } else {
            self.left_out += 1;
            Ok(())
        }
    }
}

pub(super) fn local<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> CopyError + use<E> {
    let path = path.to_owned();
    move |source| CopyError::Local { path, source: source.into() }
}

/// Gives so much of an archive and no more.
pub(crate) struct Rationed<R> {
    from: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Rationed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a name in it is too long"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.from.read(&mut buffer[..most])?;
        self.left.set(left - read as u64);
        Ok(read)
    }
}

/// Gives all entries of an archive to `take`, and then what it was read from. Names are kept in memory by who reads them,
/// and whoever wrote the archive says how long they are: so there is a bound on what is read between two entries.
pub(crate) fn each_entry<R: Read, E: From<io::Error>>(
    from: R,
    mut take: impl FnMut(&mut Entry<'_, Rationed<R>>) -> Result<(), E>,
) -> Result<R, E> {
    let left = Rc::new(Cell::new(0));
    let mut archive = Archive::new(Rationed { from, left: Rc::clone(&left) });
    let mut entries = archive.entries()?;
    let mut skipped = 0;
    loop {
        left.set(MOST_HEADERS.saturating_add(skipped));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        left.set(UNLIMITED);
        take(&mut entry)?;
        let taken = UNLIMITED - left.get();
        skipped = entry.header().entry_size().unwrap_or_default().saturating_sub(taken);
    }
    Ok(archive.into_inner().from)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

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

    /// Whoever wrote the archive says how long its names are.
    #[test]
    fn a_name_is_read_into_memory_only_so_far() {
        for (bytes, fits) in [(1000, true), (MOST_HEADERS, false)] {
            let mut builder = Builder::new(Vec::new());
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::GNULongName);
            header.set_size(bytes);
            header.set_cksum();
            builder.append(&header, io::repeat(b'n').take(bytes)).unwrap();
            let mut header = Header::new_gnu();
            header.set_size(0);
            builder.append_data(&mut header, "file", io::empty()).unwrap();
            let archive = builder.into_inner().unwrap();
            let mut names = Vec::new();
            let read = each_entry(archive.as_slice(), |entry| {
                names.push(entry.path_bytes().len() as u64);
                Ok::<_, io::Error>(())
            });
            assert_eq!(read.is_ok(), fits, "{bytes}");
            assert_eq!(names, if fits { vec![bytes] } else { vec![] });
        }
    }
}
