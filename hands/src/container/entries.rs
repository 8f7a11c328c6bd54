//! What the daemon packs and unpacks, entry by entry.
//!
//! The daemon is root, and does with an archive what the archive says. So none is passed on as it came: each is made anew
//! of folders, files, links and pipes that belong to whoever works in the container, and of nothing else that an entry
//! may say, such as devices, owners and capabilities.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Builder, Entry, EntryType, Header};

use crate::sandbox::archive::{Unbroken, each_entry};

/// How entries of one archive become those of another.
pub(super) struct Plan {
    /// How many names at the beginning of each path go.
    pub(super) skip: usize,
    /// What comes before the rest.
    pub(super) below: PathBuf,
    /// What is left out, with all below it, by the first name of the rest.
    pub(super) without: Option<&'static str>,
    /// Whose all of it is.
    pub(super) owner: (u64, u64),
}

impl Plan {
    /// Where a path goes; `None` when it is left out.
    fn place(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                _ => return Err(malformed(format!("{} leads out of it", path.display()))),
            }
        }
        let rest = names.get(self.skip..).unwrap_or_default();
        if self.without.is_some_and(|without| rest.first().is_some_and(|first| *first == without)) {
            return Ok(None);
        }
        let place = rest.iter().fold(self.below.clone(), |place, name| place.join(name));
        Ok((!place.as_os_str().is_empty()).then_some(place))
    }
}

fn malformed(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Makes the archive `to` of the whole archive `from`.
pub(super) fn rewrite(from: impl Read, to: impl Write, plan: &Plan) -> io::Result<()> {
    let mut builder = Builder::new(Unbroken::new(to));
    let rewritten = all(from, &mut builder, plan);
    if rewritten.is_err() {
        builder.get_mut().break_off();
        return rewritten;
    }
    builder.into_inner()?.into_inner().flush()
}

fn all(from: impl Read, builder: &mut Builder<impl Write>, plan: &Plan) -> io::Result<()> {
    let mut from = each_entry(Noting { from, over: false }, |entry| one(entry, builder, plan))?;
    // An archive says where it ends. One that does not was broken off, be it between two entries.
    if from.over {
        return Err(malformed("it ends too early"));
    }
    io::copy(&mut from, &mut io::sink()).map(|_| ())
}

fn one(entry: &mut Entry<'_, impl Read>, builder: &mut Builder<impl Write>, plan: &Plan) -> io::Result<()> {
    let Some(place) = plan.place(&entry.path()?)? else { return Ok(()) };
    let typ = match entry.header().entry_type() {
        EntryType::Continuous | EntryType::GNUSparse => EntryType::Regular,
        typ => typ,
    };
    let mut header = Header::new_gnu();
    header.set_entry_type(typ);
    // Neither setuid nor setgid: the daemon would make them on its host.
    header.set_mode(entry.header().mode()? & 0o1777);
    header.set_mtime(entry.header().mtime()?);
    header.set_uid(plan.owner.0);
    header.set_gid(plan.owner.1);
    header.set_size(0);
    match typ {
        EntryType::Regular => {
            let size = entry.size();
            header.set_size(size);
            let mut data = Counting { from: entry, bytes: 0 };
            builder.append_data(&mut header, place, &mut data)?;
            if data.bytes == size { Ok(()) } else { Err(malformed("it ends within a file")) }
        }
        EntryType::Directory | EntryType::Fifo => builder.append_data(&mut header, place, io::empty()),
        EntryType::Symlink => match entry.link_name()? {
            Some(target) => builder.append_link(&mut header, place, target),
            None => Err(malformed("a link in it leads nowhere")),
        },
        EntryType::Link => {
            let target = entry.link_name()?.map(|target| plan.place(&target)).transpose()?.flatten();
            // One of a file that is left out is left out as well.
            target.map_or(Ok(()), |target| builder.append_link(&mut header, place, target))
        }
        _ => Ok(()),
    }
}

/// Notes when there is nothing more.
struct Noting<R> {
    from: R,
    over: bool,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.over |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

/// Counts what is read.
struct Counting<R> {
    from: R,
    bytes: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use tar::Archive;

    use super::*;

    const OWNER: (u64, u64) = (60_001, 60_002);

    fn plan(skip: usize, below: &str, without: Option<&'static str>) -> Plan {
        Plan { skip, below: below.into(), without, owner: OWNER }
    }

    fn add(to: &mut Builder<Vec<u8>>, name: &str, typ: EntryType, link: &str, data: &[u8]) {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(typ);
        header.set_mode(0o4755);
        header.set_mtime(7);
        header.set_size(data.len() as u64);
        header.set_cksum();
        to.append(&header, data).unwrap();
    }

    /// Type, path and link of what comes of it.
    fn entries(archive: &[u8]) -> Vec<(EntryType, String, String)> {
        let mut archive = Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), OWNER);
            assert_eq!(entry.header().mode().unwrap(), 0o755);
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            let path = entry.path().unwrap().display().to_string();
            (entry.header().entry_type(), path, link.unwrap_or_default())
        });
        entries.collect()
    }

    fn whole() -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "top/", EntryType::Directory, "", b"");
        add(&mut archive, "top/kept/one", EntryType::Regular, "", b"1");
        add(&mut archive, "top/file", EntryType::Regular, "", &[1; 2000]);
        add(&mut archive, "top/same", EntryType::Link, "top/file", b"");
        add(&mut archive, "top/of-kept", EntryType::Link, "top/kept/one", b"");
        add(&mut archive, "top/out", EntryType::Symlink, "../../etc/passwd", b"");
        add(&mut archive, "top/device", EntryType::Char, "", b"");
        let mut pax = Vec::new();
        for (key, value) in [("uid", "0"), ("SCHILY.xattr.security.capability", "all")] {
            let length = key.len() + value.len() + 3;
            let length = length + (length + 2).to_string().len();
            pax.extend(format!("{length} {key}={value}\n").bytes());
        }
        add(&mut archive, "pax", EntryType::XHeader, "", &pax);
        add(&mut archive, "top/program", EntryType::Regular, "", b"x");
        archive.into_inner().unwrap()
    }

    #[test]
    fn nothing_passes_but_names_modes_and_contents() {
        let mut made = Vec::new();
        rewrite(whole().as_slice(), &mut made, &plan(1, "a/b", Some("kept"))).unwrap();
        let expected = [
            (EntryType::Directory, "a/b", ""),
            (EntryType::Regular, "a/b/file", ""),
            (EntryType::Link, "a/b/same", "a/b/file"),
            (EntryType::Symlink, "a/b/out", "../../etc/passwd"),
            (EntryType::Regular, "a/b/program", ""),
        ];
        assert_eq!(entries(&made), expected.map(|(typ, path, link)| (typ, path.into(), link.into())));
        assert!(!String::from_utf8_lossy(&made).contains("SCHILY"));
        // At the top of an archive there is no name for the top.
        let mut made = Vec::new();
        rewrite(whole().as_slice(), &mut made, &plan(1, "", None)).unwrap();
        assert_eq!(entries(&made)[0], (EntryType::Regular, "kept/one".into(), String::new()));
    }

    #[test]
    fn what_was_broken_off_is_noticed_wherever_that_was() {
        let whole = whole();
        for cut in 0..whole.len() {
            let rewritten = rewrite(&whole[..cut], io::sink(), &plan(1, "a", None));
            // Two blocks of nothing end an archive, of which the first says so.
            assert_eq!(rewritten.is_ok(), cut >= whole.len() - 512, "cut at {cut} of {}", whole.len());
        }
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        for path in ["top/../../x", "/etc/x"] {
            let mut archive = Builder::new(Vec::new());
            add(&mut archive, path, EntryType::Regular, "", b"x");
            let archive = archive.into_inner().unwrap();
            let said = rewrite(archive.as_slice(), io::sink(), &plan(0, "a", None)).unwrap_err().to_string();
            assert!(said.contains("leads out of it"), "{said}");
        }
    }
}
