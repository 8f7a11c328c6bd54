//! Which user of this machine a sandbox runs as.
//!
//! Without root it is the gateway's own. As root every work folder has a user of its own, with no name
//! and no other file. The folder's owner is the record of it, so that it outlives the gateway.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::HandError;
use crate::folder::{self, Walk};

/// Where users of sandboxes are taken from on a machine that has all ids: beyond those that
/// distributions, LDAP and systemd hand out.
const WIDE: Range<u32> = 2_000_000_000..2_000_065_536;
/// The same in a container that has ids up to 65535: above accounts, below systemd's dynamic users.
const NARROW: Range<u32> = 40_000..60_000;

/// Two first calls must not choose the same user.
static CHOOSING: Mutex<()> = Mutex::new(());

/// Makes the folder if it is missing and says whom its sandbox runs as; `None`: as ourselves.
pub(crate) fn prepare(work: &Path) -> Result<Option<u32>, HandError> {
    let io = |doing| move |source| HandError::Io { doing, source };
    if let Some(parent) = work.parent() {
        fs::create_dir_all(parent).map_err(io("making the folder of work folders"))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(work) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io("making a work folder")(error));
        }
        Ok(()) | Err(_) => {}
    }
    let Some(range) = users() else { return Ok(None) };
    let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let owner = fs::symlink_metadata(work).map_err(io("looking at a work folder"))?.uid();
    let others = neighbours(work).map_err(io("looking at the other work folders"))?;
    if range.contains(&owner) && !others.contains(&owner) {
        return Ok(Some(owner));
    }
    let user = choose(work, &range, &others).ok_or_else(|| HandError::Unavailable {
        why: format!("all {} users for sandboxes are taken", range.len()),
        remedy: "delete sessions that are no longer needed".into(),
    })?;
    give(work, user).map_err(io("giving a work folder to its user"))?;
    Ok(Some(user))
}

/// Whether each work folder has a user of its own.
pub(super) fn gives_users() -> bool {
    users().is_some()
}

/// The users to choose from; `None`: there is nobody but ourselves.
fn users() -> Option<Range<u32>> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    // Root of a namespace with hardly any ids is an ordinary user outside.
    range(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// The users to choose from, by what `/proc/self/uid_map` says exists here.
pub(crate) fn range(uid_map: &str) -> Option<Range<u32>> {
    let blocks: Vec<Range<u64>> = uid_map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().map(str::parse::<u64>);
            let (start, _, length) = (fields.next()?.ok()?, fields.next()?, fields.next()?.ok()?);
            Some(start..start.saturating_add(length))
        })
        .collect();
    let fits = |range: &Range<u32>| {
        blocks.iter().any(|block| block.start <= u64::from(range.start) && u64::from(range.end) <= block.end)
    };
    [WIDE, NARROW, 5_000..9_000, 500..900].into_iter().find(fits)
}

/// Owners of the folders beside `work`.
fn neighbours(work: &Path) -> io::Result<HashSet<u32>> {
    let Some(parent) = work.parent() else { return Ok(HashSet::new()) };
    let mut owners = HashSet::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if Some(entry.file_name().as_os_str()) != work.file_name() {
            owners.insert(entry.metadata()?.uid());
        }
    }
    Ok(owners)
}

/// Starts at a place that depends on the path, so that two gateways on a machine rarely share users.
fn choose(work: &Path, range: &Range<u32>, taken: &HashSet<u32>) -> Option<u32> {
    let length = u32::try_from(range.len()).ok()?;
    let mut hasher = DefaultHasher::new();
    work.hash(&mut hasher);
    let start = u32::try_from(hasher.finish() % u64::from(length)).ok()?;
    (0..length).map(|step| range.start + (start + step) % length).find(|user| !taken.contains(user))
}

/// Everything below first, the folder last: it is the record, and this may be cut short.
fn give(work: &Path, user: u32) -> io::Result<()> {
    for entry in Walk::open(work)? {
        let entry = entry?;
        entry.parent.give(&entry.name, user)?;
    }
    Ok(folder::give(work, user)?)
}
