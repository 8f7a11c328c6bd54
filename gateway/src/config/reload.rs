//! Reading `manyhands.toml` again while the gateway runs: its hands apply at once, anything else with the next start.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::{Config, ConfigError, environment};
use crate::hand::{HandConfig, HandName};

/// A configuration file as it was read.
#[derive(Clone, Default)]
pub struct FileRead {
    /// Its absolute path. Empty: no file was asked for.
    pub path: PathBuf,
    /// What it was like.
    pub stamp: Option<Stamp>,
    /// What it says beside hands, by setting, as digests: some of it is secret.
    pub(super) others: BTreeMap<String, [u8; 32]>,
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.path, f)
    }
}

/// Tells one state of a file from another, whether it is written in place or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// Of the file as it is now. None when there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino() })
    }
}

/// What a file says that was read again.
#[derive(Debug)]
pub struct Reread {
    /// The hands. Default: one sandbox called `sandbox`.
    pub hands: BTreeMap<HandName, HandConfig>,
    /// Settings that it changes and that apply with the next start only.
    pub later: Vec<String>,
}

impl FileRead {
    /// Reads the file again. One that went away is an error, like one that can't be read: most often it is just being
    /// replaced.
    pub fn again(&mut self) -> Result<Reread, ConfigError> {
        let text = std::fs::read_to_string(&self.path)
            .map_err(|source| ConfigError::Unreadable { path: self.path.clone(), source })?;
        let config = Config::parse(&text, &self.path, environment()?)?;
        let others = others(&text);
        let changed = |setting: &&String| others.get(*setting) != self.others.get(*setting);
        let mut later: Vec<_> = self.others.keys().chain(others.keys()).filter(changed).cloned().collect();
        later.sort();
        later.dedup();
        self.others = others;
        Ok(Reread { hands: config.hands, later })
    }
}

/// What a file says beside hands.
pub(super) fn others(text: &str) -> BTreeMap<String, [u8; 32]> {
    let mut found = BTreeMap::new();
    let table: toml::Table = text.parse().unwrap_or_default();
    for (key, value) in table.iter().filter(|(key, _)| *key != "hands") {
        match value {
            toml::Value::Table(section) => {
                found.extend(section.iter().map(|(inner, value)| (format!("{key}.{inner}"), digest(value))));
            }
            value => {
                found.insert(key.clone(), digest(value));
            }
        }
    }
    found
}

fn digest(value: &toml::Value) -> [u8; 32] {
    Sha256::digest(value.to_string().as_bytes()).into()
}
