//! What no hand may write to: the configuration in use, the data directory, and the files that other hands rely on. Whoever
//! could change them would have commands run on this machine, or would be believed.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::HandConfig;
use super::sandbox::BadMount;
use super::trail::{Step, Trail};

/// Most of the list of mounted file systems that is looked at, in bytes.
const MOUNTS_MAX: u64 = 4 << 20;

/// What is guarded, and how to get out of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The configuration file.
    Configuration,
    /// The data directory.
    Data,
    /// A program, key or certificate that another hand names.
    Named,
}

impl Guard {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "the configuration in use",
            Self::Data => "the data directory",
            Self::Named => "a file that another hand relies on",
        }
    }

    /// What a person can do who needs the mount.
    pub fn way_out(self) -> &'static str {
        match self {
            Self::Configuration => "start the gateway with --config FILE, a file elsewhere",
            Self::Data => "start the gateway with --data DIR, a directory elsewhere",
            Self::Named => "keep that file elsewhere",
        }
    }
}

/// The places that hands may not write to.
#[derive(Clone, Debug, Default)]
pub struct Guarded(Vec<(Guard, PathBuf)>);

impl Guarded {
    /// These places, by their absolute paths.
    pub fn new(places: impl IntoIterator<Item = (Guard, PathBuf)>) -> Self {
        Self(places.into_iter().collect())
    }

    /// Refuses a hand that lets an agent write to one of them, by whatever name: what counts is which folders they are.
    pub fn check(&self, hand: &HandConfig) -> Result<(), BadMount> {
        let writable = hand.writable();
        if writable.is_empty() {
            return Ok(());
        }
        for (guard, place) in &self.0 {
            // One that is not there is guarded as far as its path leads.
            let trail = Trail::of(place);
            let on_the_way: HashSet<_> = trail.steps.iter().map(Step::identity).collect();
            for host in &writable {
                let part = *guard == Guard::Data && lies_in(host, &trail);
                if part || on_the_way.contains(&identity(host)) || leads(host, &on_the_way) {
                    let (host, place) = (host.clone(), place.clone());
                    return Err(BadMount::Guarded { host, guard: *guard, place });
                }
            }
        }
        Ok(())
    }
}

/// Which folder or file it is. One that is not there is none.
fn identity(path: &Path) -> (u64, u64) {
    path.metadata().map_or((0, 0), |metadata| (metadata.dev(), metadata.ino()))
}

/// Whether `host` is a part of the folder at the end of `trail`.
fn lies_in(host: &Path, trail: &Trail) -> bool {
    let Some(folder) = trail.steps.last().filter(|_| trail.ended.is_ok()) else { return false };
    Trail::of(host).steps.iter().any(|step| step.identity() == folder.identity())
}

/// Whether a file system that is mounted below `host` leads there. A mount takes those below it along.
fn leads(host: &Path, on_the_way: &HashSet<(u64, u64)>) -> bool {
    let Ok(host) = host.canonicalize() else { return false };
    mounted().iter().filter(|at| at.starts_with(&host)).any(|at| on_the_way.contains(&identity(at)))
}

/// Where file systems are mounted, as this process sees them.
fn mounted() -> Vec<PathBuf> {
    let mut list = Vec::new();
    let Ok(file) = std::fs::File::open("/proc/self/mountinfo") else { return Vec::new() };
    let _ = file.take(MOUNTS_MAX).read_to_end(&mut list);
    // The fifth word of a line, with blanks and the like in octal.
    let at = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescaped);
    list.split(|byte| *byte == b'\n').filter_map(at).collect()
}

fn unescaped(word: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&byte, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}
