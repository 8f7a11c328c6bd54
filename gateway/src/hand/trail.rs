//! A path step by step, as the kernel goes it: every folder, every link, and what is at its end.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// Most links that one path may have: the kernel's own limit.
const LINKS_MAX: usize = 40;

/// One folder, link or file on the way.
#[derive(Clone, Debug)]
pub struct Step {
    /// Where it is, without a link in its path.
    pub path: PathBuf,
    /// What it is. Of a link, the link's own.
    pub metadata: Metadata,
}

impl Step {
    /// What it is, whatever it is called: device and inode.
    pub fn identity(&self) -> (u64, u64) {
        (self.metadata.dev(), self.metadata.ino())
    }
}

/// How far a path leads.
#[derive(Debug)]
pub struct Trail {
    /// The steps in their order, from `/` on.
    pub steps: Vec<Step>,
    /// Whether its end was reached.
    pub ended: io::Result<()>,
}

impl Trail {
    /// Follows an absolute path.
    pub fn of(path: &Path) -> Self {
        let mut steps = Vec::new();
        let ended = follow(path, &mut steps);
        Self { steps, ended }
    }

    /// All its steps, or why its end can't be reached.
    pub fn whole(self) -> io::Result<Vec<Step>> {
        self.ended.map(|()| self.steps)
    }
}

fn follow(path: &Path, steps: &mut Vec<Step>) -> io::Result<()> {
    let mut here = PathBuf::from("/");
    steps.push(Step { path: here.clone(), metadata: here.symlink_metadata()? });
    let (mut ahead, mut links) = (parts(path), 0);
    while let Some(part) = ahead.pop() {
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(part);
        let metadata = next.symlink_metadata()?;
        let link = metadata.is_symlink();
        steps.push(Step { path: next.clone(), metadata });
        if !link {
            here = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = next.read_link()?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        ahead.extend(parts(&target));
    }
    Ok(())
}

/// The parts of a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let walked = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(walked).map(|part| part.as_os_str().to_owned()).rev().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_folder_and_link_on_the_way_is_a_step() {
        let here = std::env::temp_dir().canonicalize().unwrap().join(format!("trail-{}", std::process::id()));
        std::fs::create_dir_all(here.join("a/b")).unwrap();
        std::fs::create_dir_all(here.join("c")).unwrap();
        std::fs::write(here.join("a/b/file"), "").unwrap();
        symlink("../a/b", here.join("c/link")).unwrap();
        symlink(here.join("c/link/file"), here.join("far")).unwrap();
        let steps = Trail::of(&here.join("far")).whole().unwrap();
        let steps: Vec<_> = steps.iter().filter_map(|step| step.path.strip_prefix(&here).ok()).collect();
        let names = ["", "far", "", "c", "c/link", "a", "a/b", "a/b/file"].map(Path::new);
        assert_eq!(steps, names);
        let missing = Trail::of(&here.join("a/none/file"));
        assert_eq!(missing.steps.last().unwrap().path, here.join("a"));
        assert_eq!(missing.ended.unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("loop", here.join("loop")).unwrap();
        assert!(Trail::of(&here.join("loop")).whole().is_err());
        std::fs::remove_dir_all(here).unwrap();
    }
}
