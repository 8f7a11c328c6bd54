//! What machines of one kind begin with: an initial file system with our agent in it, and the state of a machine that
//! has booted, so that each boots once.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::{Accelerator, VmConfig, seed};
use crate::{HandError, canonical};

/// What the guest runs first.
const INIT: &str = include_str!("init.sh");
/// What it runs from then on.
const AGENT: &str = include_str!("agent.sh");
/// Changes when QEMU's arguments do, or the program that renews randomness: a state fits one machine only.
const MACHINE: u32 = 2;
/// Most kinds of machine that are kept, besides those in use.
const MOST_KEPT: usize = 8;
/// How much longer ago than the newest a kind may have been used to be kept.
const LONGEST_UNUSED: Duration = Duration::from_hours(30 * 24);
/// In each folder, written to when it is used: locked by users together, and by who removes it alone.
const USE: &str = "use";
/// In each folder, locked by who makes the state.
const LOCK: &str = "lock";

/// The folder of one kind of machine.
pub(super) struct Template {
    /// The initial file system.
    pub(super) initrd: PathBuf,
    /// The state, when there is one.
    pub(super) state: PathBuf,
    /// Where the machine that makes it runs.
    pub(super) folder: PathBuf,
    /// As long as it is open, nobody removes the folder.
    _use: File,
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
        let making = |source| HandError::Io { doing: "making a machine's initial file system", source };
        let in_use = claim(&folder).map_err(making)?;
        let template = Self {
            _use: in_use,
            initrd: folder.join("initrd"),
            state: folder.join("state"),
            folder: folder.join("making"),
        };
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
        let lock = self.folder.with_file_name(LOCK);
        let waiting = tokio::task::spawn_blocking(move || {
            let file = File::options().create(true).truncate(true).write(true).open(lock)?;
            file.lock().map(|()| file)
        });
        let locked = waiting.await.map_err(io::Error::other).and_then(|locked| locked);
        locked.map_err(|source| HandError::Io { doing: "waiting for a machine's state", source })
    }
}

/// Keeps others from removing the folder, which is made when it is missing, and notes that it is used.
fn claim(folder: &Path) -> io::Result<File> {
    loop {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(USE);
        // Who removes folders may be faster.
        let mut file = match File::options().create(true).append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        file.lock_shared()?;
        if fs::metadata(&path).is_ok_and(|there| there.ino() == file.metadata().map_or(0, |ours| ours.ino()))
        {
            file.set_len(0)?;
            // Its time is that of the last use.
            file.write_all(b"\n")?;
            return Ok(file);
        }
    }
}

/// Removes kinds of machine that nobody uses: those beyond the newest few, and those that were used long ago. `mine` is
/// one that was used just now.
pub(super) fn sweep(cache: &Path, mine: &Template) -> io::Result<()> {
    let mine = mine.folder.parent().map(|folder| folder.join(USE));
    let Some(now) = mine.and_then(|mine| fs::metadata(mine).ok()?.modified().ok()) else { return Ok(()) };
    let mut kinds: Vec<(SystemTime, PathBuf)> = fs::read_dir(cache)?
        .filter_map(|entry| {
            let folder = entry.ok()?.path();
            let name = folder.file_name()?.to_str()?;
            let ours = name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            // Those of before there was such a file are the oldest.
            let used = fs::metadata(folder.join(USE)).and_then(|file| file.modified());
            ours.then(|| (used.unwrap_or(SystemTime::UNIX_EPOCH), folder))
        })
        .collect();
    kinds.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
    for (place, (used, folder)) in kinds.into_iter().enumerate() {
        let old = now.duration_since(used).is_ok_and(|unused| unused > LONGEST_UNUSED);
        if (place >= MOST_KEPT || old)
            && let Ok(file) = File::options().create(true).append(true).open(folder.join(USE))
            && file.try_lock().is_ok()
        {
            tracing::info!(folder = %folder.display(), "a machine that nobody uses is removed");
            crate::folder::remove(&folder)?;
        }
    }
    Ok(())
}

/// Tells a file from others and from what it was before.
fn identity(path: &Path, what: &str) -> Result<String, HandError> {
    let opened = canonical::open(path, OFlags::PATH).map(File::from);
    let file = opened.and_then(|file| file.metadata()).map_err(|error| HandError::Unavailable {
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
    let length = io::copy(&mut canonical::open_file(own)?, &mut writing)?;
    writing.write_all(&vec![0; pad(length)])?;
    let mut archive = Vec::new();
    let reseed = seed::program();
    for (number, (name, mode, content)) in (1..).zip([
        ("manyhands", 0o40755, &[] as &[u8]),
        ("manyhands/init", 0o100_755, INIT.as_bytes()),
        ("manyhands/agent", 0o100_644, AGENT.as_bytes()),
        ("manyhands/reseed", 0o100_755, &reseed),
        ("TRAILER!!!", 0, &[]),
    ]) {
        add(&mut archive, number, name, mode, content);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(cache: &Path, number: u64, days_ago: u64) -> PathBuf {
        let folder = cache.join(format!("{number:024x}"));
        let file = claim(&folder).unwrap();
        let used = file.metadata().unwrap().modified().unwrap();
        file.set_modified(used - Duration::from_hours(24 * days_ago)).unwrap();
        folder
    }

    #[test]
    fn kinds_that_nobody_uses_go_when_they_are_too_old_or_too_many() {
        let cache = std::env::temp_dir().join(format!("manyhands-templates-{}", std::process::id()));
        let kinds: Vec<PathBuf> = (1..12).map(|number| kind(&cache, number, number)).collect();
        let old = kind(&cache, 20, 40);
        fs::create_dir(cache.join("something-else")).unwrap();
        let held = claim(&kinds[10]).unwrap();
        held.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let folder = kind(&cache, 99, 0);
        let mine = Template {
            initrd: folder.join("initrd"),
            state: folder.join("state"),
            folder: folder.join("making"),
            _use: claim(&folder).unwrap(),
        };
        sweep(&cache, &mine).unwrap();
        // Itself and seven more; one that is used; what is none.
        assert!(kinds[..7].iter().all(|kind| kind.exists()) && folder.exists());
        assert!(kinds[7..10].iter().all(|kind| !kind.exists()) && !old.exists());
        assert!(kinds[10].exists() && cache.join("something-else").exists());
        fs::remove_dir_all(cache).unwrap();
    }
}
