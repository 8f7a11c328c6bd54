//! What machines of one kind begin with: an initial file system with our agent in it, and the state of a machine that
//! has booted, so that each boots once.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::{Accelerator, VmConfig};
use crate::HandError;

/// What the guest runs first.
const INIT: &str = include_str!("init.sh");
/// What it runs from then on.
const AGENT: &str = include_str!("agent.sh");
/// Changes when QEMU's arguments do: a state fits one machine only.
const MACHINE: u32 = 1;

/// The folder of one kind of machine.
pub(super) struct Template {
    /// The initial file system.
    pub(super) initrd: PathBuf,
    /// The state, when there is one.
    pub(super) state: PathBuf,
    /// Where the machine that makes it runs.
    pub(super) folder: PathBuf,
}

impl Template {
    /// Finds its folder, and makes the initial file system when it is missing.
    pub(super) fn open(config: &VmConfig, accelerator: Accelerator) -> Result<Self, HandError> {
        let kernel = identity(&config.kernel, "kernel")?;
        let initrd = identity(&config.initrd, "initial file system")?;
        let image = config.image.as_deref().map(|image| identity(image, "image")).transpose()?;
        // Another QEMU may read states differently. One that is found by its name is looked up by the system.
        let qemu = fs::metadata(&config.qemu).and_then(|file| file.modified()).ok();
        let what = format!(
            "{MACHINE} {kernel} {initrd} {image:?} {qemu:?} {} {} {} {} {accelerator:?} {INIT} {AGENT}",
            config.qemu.display(),
            config.memory_mib,
            config.cpus,
            config.disk_bytes,
        );
        let name: String = Sha256::digest(what).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let folder = config.cache.join(name);
        let template = Self {
            initrd: folder.join("initrd"),
            state: folder.join("state"),
            folder: folder.join("making"),
        };
        let making = |source| HandError::Io { doing: "making a machine's initial file system", source };
        DirBuilder::new().recursive(true).mode(0o700).create(&template.folder).map_err(making)?;
        if !template.initrd.exists() {
            write_initrd(&config.initrd, &template.initrd).map_err(making)?;
        }
        Ok(template)
    }
}

impl Template {
    /// The right to make its state, as long as the file is open.
    pub(super) async fn alone(&self) -> Result<File, HandError> {
        let lock = self.folder.join("lock");
        let waiting = tokio::task::spawn_blocking(move || {
            let file = File::options().create(true).truncate(true).write(true).open(lock)?;
            file.lock().map(|()| file)
        });
        let locked = waiting.await.map_err(io::Error::other).and_then(|locked| locked);
        locked.map_err(|source| HandError::Io { doing: "waiting for a machine's state", source })
    }
}

/// Tells a file from others and from what it was before.
fn identity(path: &Path, what: &str) -> Result<String, HandError> {
    let file = fs::metadata(path).map_err(|error| HandError::Unavailable {
        why: format!("the machine's {what} {} can't be read ({error})", path.display()),
        remedy: format!("give the path of a {what} that the gateway's user may read"),
    })?;
    let changed = file.modified().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    Ok(format!("{} {} {changed:?}", path.display(), file.len()))
}

/// The guest's own, then ours: the kernel unpacks one after the other.
fn write_initrd(own: &Path, whole: &Path) -> io::Result<()> {
    let part = whole.with_extension(std::process::id().to_string());
    let mut writing = File::create(&part)?;
    let length = io::copy(&mut File::open(own)?, &mut writing)?;
    writing.write_all(&vec![0; pad(length)])?;
    let mut archive = Vec::new();
    for (number, (name, mode, content)) in (1..).zip([
        ("manyhands", 0o40755, ""),
        ("manyhands/init", 0o100_755, INIT),
        ("manyhands/agent", 0o100_644, AGENT),
        ("TRAILER!!!", 0, ""),
    ]) {
        add(&mut archive, number, name, mode, content.as_bytes());
    }
    writing.write_all(&archive)?;
    writing.sync_all()?;
    fs::rename(part, whole)
}

/// One file of a `newc` archive: numbers in hexadecimal, name and content each filled up to four bytes.
fn add(archive: &mut Vec<u8>, number: u32, name: &str, mode: u32, content: &[u8]) {
    archive.extend_from_slice(b"070701");
    let named = name.len() + 1;
    for field in [number as usize, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, named, 0] {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.extend(std::iter::repeat_n(0, pad(archive.len() as u64)));
    archive.extend_from_slice(content);
    archive.extend(std::iter::repeat_n(0, pad(archive.len() as u64)));
}

/// Bytes that are missing to a multiple of four.
fn pad(length: u64) -> usize {
    (length.wrapping_neg() & 3) as usize
}
