//! What nobody in a sandbox gets to see of a mount: the gateway's own files, and sockets on which somebody listens.
//!
//! The walk is iterative and by descriptor, follows no link and is bounded. What a brain moves while it lasts, from
//! another sandbox that can write to the same folder, it may miss, as it misses sockets that are made later.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2, statat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::enter::{EnterError, at, step};
use super::refusal::Lack;
use super::{Access, Mount};

/// Most files and folders that are looked at in all mounts of an instance.
const MOST_ENTRIES: usize = 1_000_000;
/// How long that may take. Less than a sandbox may take to start.
const LONGEST: Duration = Duration::from_secs(10);
/// Most sockets that are covered in an instance.
const MOST_COVERS: usize = 256;
/// Most bytes of the paths of folders that wait to be looked into.
const MOST_WAITING: usize = 32 << 20;
/// File systems of the kernel's own, in which no socket can be: proc, sysfs, both cgroups, devpts, debugfs, tracefs,
/// securityfs.
const KERNELS_OWN: [u64; 8] =
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x1cd1, 0x6462_6720, 0x7472_6163, 0x7363_6673];

/// Something in a mount that is to be covered.
pub(super) struct Cover {
    /// Itself, opened by `O_PATH`.
    pub(super) covered: OwnedFd,
    /// Its path below the mount.
    pub(super) below: PathBuf,
    pub(super) shape: Shape,
}

/// What a cover must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// An empty folder that can't be written to.
    Folder,
    /// `/dev/null`, on a mount that lets nobody open devices.
    File,
}

/// Finds what is to be covered in the mounts of one instance.
pub(super) struct Finder<'a> {
    /// Where the gateway's own files appear on this machine.
    hidden: &'a [PathBuf],
    /// Sockets that stay, or folders whose sockets do, by their paths in the sandbox.
    stay: &'a [PathBuf],
    entries: usize,
    covers: usize,
    until: Instant,
}

impl<'a> Finder<'a> {
    pub(super) fn new(hidden: &'a [PathBuf], stay: &'a [PathBuf]) -> Self {
        Self { hidden, stay, entries: 0, covers: 0, until: Instant::now() + LONGEST }
    }

    /// All of one mount, whose root is open.
    pub(super) fn find(&mut self, mount: &Mount, root: &OwnedFd) -> Result<Vec<Cover>, EnterError> {
        if !kind(root).map_err(at("looking at", &mount.host))?.is_dir() {
            // One that is a socket itself was named by a person.
            return Ok(Vec::new());
        }
        let mut covers = self.own_files(mount, root);
        if !self.stays(&mount.at) {
            self.sockets(mount, root, &mut covers)?;
        }
        Ok(covers)
    }

    fn own_files(&self, mount: &Mount, root: &OwnedFd) -> Vec<Cover> {
        let below = self.hidden.iter().filter_map(|place| place.strip_prefix(&mount.host).ok());
        // One that can't be opened is not there any more, or hidden by another mount, or nobody's to look at.
        below.filter_map(|below| cover(root, below).ok()).collect()
    }

    fn sockets(&mut self, mount: &Mount, root: &OwnedFd, covers: &mut Vec<Cover>) -> Result<(), EnterError> {
        let (mut waiting, mut waiting_bytes) = (vec![PathBuf::new()], 0);
        while let Some(path) = waiting.pop() {
            waiting_bytes -= path.as_os_str().len();
            let Some(folder) = look_into(mount, root, &path)? else { continue };
            let entries = Dir::read_from(&folder).map_err(at("looking into", &mount.host))?;
            for entry in entries {
                let entry = entry.map_err(at("looking into", &mount.host))?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                self.count(mount, waiting_bytes)?;
                let below = path.join(name);
                let kind = match entry.file_type() {
                    FileType::Unknown => statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                        .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                    known => known,
                };
                if kind.is_dir() {
                    if !covers.iter().any(|cover| cover.below == below) && !self.stays(&mount.at.join(&below))
                    {
                        waiting_bytes += below.as_os_str().len();
                        waiting.push(below);
                    }
                } else if leads_out(kind, mount.access) && !self.stays(&mount.at.join(&below)) {
                    // What can't be opened went away.
                    let found = cover(root, &below).ok();
                    let cover = found.filter(|cover| cover.shape == Shape::File && is_open(&cover.covered));
                    self.covers += usize::from(cover.is_some());
                    covers.extend(cover);
                }
            }
        }
        Ok(())
    }

    fn stays(&self, inside: &Path) -> bool {
        self.stay.iter().any(|stay| inside.starts_with(stay))
    }

    fn count(&mut self, mount: &Mount, waiting_bytes: usize) -> Result<(), EnterError> {
        self.entries += 1;
        let most = if self.entries > MOST_ENTRIES {
            format!("it holds more than {MOST_ENTRIES} files")
        } else if self.covers > MOST_COVERS {
            format!("it holds more than {MOST_COVERS} of them")
        } else if waiting_bytes > MOST_WAITING {
            "it holds too many folders".to_owned()
        } else if Instant::now() > self.until {
            format!("that would take longer than {} s", LONGEST.as_secs())
        } else {
            return Ok(());
        };
        Err(not_covered(mount, &most))
    }
}

/// What is at a path below a mount, to be covered.
fn cover(root: &OwnedFd, below: &Path) -> io::Result<Cover> {
    let covered =
        openat2(root, below, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), SAFELY)?;
    let shape = if kind(&covered)?.is_dir() { Shape::Folder } else { Shape::File };
    Ok(Cover { covered, below: below.to_owned(), shape })
}

/// Links lead nowhere, neither out of the mount nor within it.
const SAFELY: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Whether another program may be at the other end. A pipe can be written to on a read-only mount as well, where no
/// sandbox has made it; on others it may be one of the sandbox's own.
fn leads_out(kind: FileType, access: Access) -> bool {
    kind == FileType::Socket || (kind == FileType::Fifo && access == Access::ReadOnly)
}

/// A folder below a mount; none where it went away, or where nobody in the sandbox can look either.
fn look_into(mount: &Mount, root: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>, EnterError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(root, path, how, Mode::empty(), SAFELY) {
        Ok(folder) => {
            let system = fstatfs(&folder).map_err(at("looking into", &mount.host))?;
            let own = u64::try_from(system.f_type).is_ok_and(|kind| KERNELS_OWN.contains(&kind));
            Ok((!own).then_some(folder))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NOTCONN | Errno::STALE | Errno::IO) => {
            Ok(None)
        }
        Err(Errno::ACCESS) if !could_be_opened(mount, root, path) => Ok(None),
        Err(Errno::ACCESS) => {
            Err(not_covered(mount, &format!("its folder {} can't be looked into", path.display())))
        }
        Err(Errno::NAMETOOLONG) => Err(not_covered(mount, "its folders lie too deep in each other")),
        Err(error) => Err(step("looking for sockets")(error)),
    }
}

/// Whether the sandbox could open a folder that is closed now: it runs as its owner, and may write there.
fn could_be_opened(mount: &Mount, root: &OwnedFd, path: &Path) -> bool {
    let closed =
        openat2(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), SAFELY);
    let owner = closed.and_then(|closed| fstat(&closed)).map(|stat| stat.st_uid);
    mount.access == Access::ReadWrite && owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
}

/// Whether something may be at the other end: of a socket that its server left behind, nothing ever will be.
fn is_open(covered: &OwnedFd) -> bool {
    if !kind(covered).is_ok_and(|kind| kind == FileType::Socket) {
        return true;
    }
    // Of a kind that most servers do not have, so that they notice nothing: the kernel looks for the server first. One that
    // has this kind hears nothing before something is sent.
    let asked =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).and_then(|socket| {
            connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", covered.as_fd().as_raw_fd()))?)
        });
    asked != Err(Errno::CONNREFUSED)
}

fn kind(file: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode))
}

fn not_covered(mount: &Mount, why: &str) -> EnterError {
    let (host, at) = (mount.host.display(), mount.at.display());
    Lack::new(
        format!("the sockets in {host}, a mount of this hand, can't all be covered: {why}"),
        format!("mount a smaller folder, or leave its sockets open to the sandbox with sockets = [\"{at}\"] (--socket {at})"),
    )
    .into()
}
