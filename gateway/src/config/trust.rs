//! Reading `manyhands.toml`: only what nobody but root and this user can have written.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{OFlags, getxattr};
use rustix::process::{getegid, geteuid};

use super::ConfigError;
use crate::hand::{Step, Trail};

/// Longest configuration file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Who may write, in a mode.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// In such a folder nobody can replace what belongs to somebody else.
const STICKY: u32 = 0o1000;
/// Where Linux keeps further users and groups that may use a file.
const FURTHER_USERS: &str = "system.posix_acl_access";
/// What `/dev/null` is, for whoever wants no configuration: major and minor number.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// The text of the file at an absolute path.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let steps = Trail::of(path).whole().map_err(unreadable)?;
    let Some(file) = steps.last() else { return Err(ConfigError::NoFile(path.to_owned())) };
    if is_null(file) {
        return Ok(String::new());
    }
    if file.metadata.is_dir() {
        return Err(unreadable(ErrorKind::IsADirectory.into()));
    }
    if !file.metadata.is_file() {
        return Err(ConfigError::NoFile(path.to_owned()));
    }
    for step in &steps {
        if let Some(why) = foreign(step) {
            return Err(ConfigError::Foreign { path: path.to_owned(), at: step.path.clone(), why });
        }
    }
    // What took its place meanwhile can only have come from who may do so: it is the next look's.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(&file.path).map_err(unreadable)?;
    let mut text = String::new();
    opened.take(FILE_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_MAX {
        return Err(ConfigError::NoFile(path.to_owned()));
    }
    Ok(text)
}

fn is_null(step: &Step) -> bool {
    let device = step.metadata.rdev();
    step.metadata.file_type().is_char_device()
        && (rustix::fs::major(device), rustix::fs::minor(device)) == NULL_DEVICE
}

/// Why somebody else could have changed or replaced this, and what to do.
fn foreign(step: &Step) -> Option<String> {
    let (owner, group, mode) = (step.metadata.uid(), step.metadata.gid(), step.metadata.mode());
    if owner != 0 && owner != geteuid().as_raw() {
        return Some(format!(
            "belongs to the user {owner}: have it belong to root or to the gateway's user, or name a file elsewhere with \
             --config"
        ));
    }
    // A link has no mode of its own.
    if step.metadata.is_symlink() || (step.metadata.is_dir() && mode & STICKY != 0) {
        return None;
    }
    if mode & OTHERS_WRITE != 0 {
        return Some(format!("can be written by everybody (mode {:o}): `chmod go-w` it", mode & 0o7777));
    }
    if mode & GROUP_WRITES != 0 && (!is_own(group) || has_further_users(&step.path)) {
        return Some(format!(
            "can be written by the group {group} (mode {:o}): `chmod g-w` it",
            mode & 0o7777
        ));
    }
    None
}

/// Whether a group is root's, or this user's alone: distributions give each user one, with the user's number.
fn is_own(group: u32) -> bool {
    group == 0 || (group == getegid().as_raw() && group == geteuid().as_raw())
}

/// Whether users or groups are named that may use it: then the mode's group stands for them, too.
fn has_further_users(path: &Path) -> bool {
    let mut list = [0; 4096];
    !matches!(
        getxattr(path, FURTHER_USERS, &mut list),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}
