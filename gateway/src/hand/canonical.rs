//! Paths of this machine in settings, made canonical once: when `hand add` sees them, or when the file is read.
//!
//! **Invariant:** a link that a brain may have made is not followed, neither here nor later (`hands::canonical`).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Most links on the way to a file, as the kernel has it.
const MOST_LINKS: usize = 40;

/// A link stands where a brain may have put it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is a link in a folder that a hand may write to, so it is not followed: name what it leads to", .0.display()
)]
pub struct PlantedLink(PathBuf);

/// The path without links, as far as it exists. `writable`: folders in which no link is followed.
pub fn canonical(path: &Path, writable: &[PathBuf]) -> Result<PathBuf, PlantedLink> {
    let mut done = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&part);
        let target = match std::fs::read_link(&next) {
            Ok(target) if links < MOST_LINKS => target,
            Ok(_) | Err(_) => {
                done = next;
                continue;
            }
        };
        if writable.iter().any(|folder| done.starts_with(folder)) {
            return Err(PlantedLink(next));
        }
        links += 1;
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok(done)
}

/// Makes each of these canonical. One that is not set stays so.
pub(super) fn make_canonical<'a>(
    paths: impl IntoIterator<Item = &'a mut PathBuf>,
    writable: &[PathBuf],
) -> Result<(), PlantedLink> {
    for path in paths.into_iter().filter(|path| path.is_absolute()) {
        *path = canonical(path, writable)?;
    }
    Ok(())
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}
